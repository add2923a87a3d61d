"""Experts of NVFP4 and MXFP4 in plain torch, registered with vLLM: it has no kernel for them on a CPU.

A plug-in of vLLM that the tests install beside csf_tool's own. All else in the way of a weight is vLLM's: its config,
its choice of a back end, its parameters, loading and processing. These replace the experts of back ends that take
scales as they are: of the emulation for NVFP4, and for MXFP4, which the emulation asks a package for, of B12X.
"""

from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as modular
from vllm.model_executor.layers.fused_moe.oracle import mxfp4, nvfp4
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.quantization.utils.quant_utils import kMxfp4Static, kNvfp4Static

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The values of E2M1 by their codes."""


def dequantised(packed: torch.Tensor, scales: torch.Tensor, factor: torch.Tensor | float) -> torch.Tensor:
    """A matrix from its codes, two a byte, the block scales and the scale of the whole."""
    codes = torch.stack([packed & 15, packed >> 4], -1).view(*scales.shape, -1)
    values = (scales.float() - 127).exp2() if scales.dtype == torch.uint8 else scales.float()
    return (VALUES[codes.long()] * (values * factor)[..., None]).view(len(packed), -1)


class ReferenceExperts(modular.FusedMoEExpertsModular):  # type: ignore[misc]
    """Every expert that has tokens, one after another, its matrices dequantised."""

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    @staticmethod
    def activation_format() -> Any:
        return modular.FusedMoEActivationFormat.Standard

    @staticmethod
    def _supports_current_device() -> bool:
        return True

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return True

    @staticmethod
    def _supports_parallel_config(config: Any) -> bool:
        return True

    @staticmethod
    def _supports_quant_scheme(weight: Any, activation: Any) -> bool:
        return weight in (kNvfp4Static, kMxfp4Static)

    @staticmethod
    def _supports_routing_method(*_: Any) -> bool:
        return True

    @staticmethod
    def _supports_router_logits_dtype(*_: Any) -> bool:
        return True

    def supports_expert_map(self) -> bool:
        return True

    def workspace_shapes(self, M: int, N: int, K: int, *_: Any) -> tuple[tuple[int, ...], ...]:
        return (0,), (0,), (M, K)

    def finalize_weight_and_reduce_impl(self) -> Any:
        return TopKWeightAndReduceNoOP()

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: Any,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        **_: Any,
    ) -> None:
        config = self.quant_config
        x = hidden_states.float()
        total = torch.zeros_like(x)
        for expert in set(topk_ids.flatten().tolist()):
            local = expert if expert_map is None else int(expert_map[expert])
            if local < 0:
                continue
            tokens, slots = (topk_ids == expert).nonzero(as_tuple=True)
            first, second = (1.0 if whole is None else whole[local] for whole in (config.g1_alphas, config.g2_alphas))
            both = x[tokens] @ dequantised(w1[local], config.w1_scale[local], first).T
            gate, up = both.chunk(2, -1)
            inner = torch.nn.functional.silu(gate) * up
            y = inner @ dequantised(w2[local], config.w2_scale[local], second).T
            total.index_add_(0, tokens, y * topk_weights[tokens, slots].float()[:, None])
        output.copy_(total)


def register() -> None:
    """Have vLLM take these experts where it would take those of the two back ends."""
    for oracle, backends in ((nvfp4, [nvfp4.NvFp4MoeBackend.EMULATION]), (mxfp4, mxfp4.B12X_BACKENDS)):
        original = oracle.backend_to_kernel_cls
        if original.__name__ != "with_reference":
            oracle.backend_to_kernel_cls = _with_reference(original, backends)


def _with_reference(original: Any, backends: Any) -> Any:
    def with_reference(backend: Any) -> Any:
        return [ReferenceExperts] if backend in backends else original(backend)

    return with_reference
