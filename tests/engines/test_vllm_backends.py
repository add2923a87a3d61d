"""Layers of vLLM's own methods with each back end that may keep scales: what its experts read, compressed or dense.

The methods, their processing of scales and the experts are vLLM's, without the kernels. Experts that make scales of
their own from the layer's must have them in memory that no other layer decodes into. Marlin has tests of its own.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from csf_tool.engines.kept_layer import KeptLayer
from csf_tool.engines.layer_workspace import LayerWorkspace
from tests.engines.test_kept_layer import DEVICE, dense, raw
from tests.engines.test_vllm_marlin import (
    METHODS,
    Layer,
    Method,
    created,
    group_of,
    kept_experts,
    made,
    moe_config,
    processed,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/engines runs these"),
]

NVFP4_BACKENDS = {
    "EMULATION": True,
    "VLLM_CUTLASS": True,
    "FLASHINFER_CUTLASS": True,
    "FLASHINFER_CUTEDSL_BATCHED": True,
    "FLASHINFER_B12X": False,
}
"""By name, and whether the experts read the layer's own scales; those of the last add to them."""

CASES = [
    *((name, backend) for name in ("ModelOptNvFp4FusedMoE", "CompressedTensorsW4A4Nvfp4MoEMethod")
      for backend in NVFP4_BACKENDS),
    ("Mxfp4MoEMethod", "EMULATION"),
]  # fmt: skip


class Kernel:
    """vLLM's experts, called for nothing but the scales that they read."""

    is_monolithic = False

    def __init__(self, moe_quant_config: Any, moe_config: Any, experts_cls: Any, **_: Any) -> None:
        batched = {"max_num_tokens": 1, "num_dispatchers": 1} if "Batched" in experts_cls.__name__ else {}
        self.fused_experts = experts_cls(moe_config=moe_config, quant_config=moe_quant_config, **batched)

    @property
    def scales(self) -> list[torch.Tensor]:
        """Those that `apply` of the experts names."""
        experts = self.fused_experts
        for one, two in (("w1_sf_mma", "w2_sf_mma"), ("w1_scale_val", "w2_scale_val"), ("w1_scale", "w2_scale")):
            if hasattr(experts, one):
                return [getattr(experts, one), getattr(experts, two)]
        raise AssertionError(f"{experts} has no scales")

    def apply(self, *_: Any, **__: Any) -> list[torch.Tensor]:
        return [raw(scale.contiguous()).clone() for scale in self.scales]


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What of vLLM needs a GPU or another package, as far as it lies on the way."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, *_: self)
    parameters = import_module("vllm.model_executor.parameter")
    monkeypatch.setattr(parameters, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parameters, "get_tensor_model_parallel_world_size", lambda: 1)
    b12x = import_module("vllm.model_executor.layers.fused_moe.experts.flashinfer_b12x_moe")
    monkeypatch.setattr(b12x, "flashinfer_convert_sf_to_mma_layout", mma_view)


def mma_view(scales: torch.Tensor, *, m: int, num_groups: int, **_: Any) -> torch.Tensor:
    """As FlashInfer's: a view of the same memory."""
    return scales.view(num_groups, m // 128, -1, 32, 4, 4).permute(3, 4, 1, 5, 2, 0)


def method_with(method: Method, backend: str, config: Any, patch: pytest.MonkeyPatch) -> tuple[Any, Layer]:
    """The method with a back end and its experts, and a layer."""
    module = import_module(method.module)
    oracle = method.codec.name.lower()
    backends: ModuleType = import_module(f"vllm.model_executor.layers.fused_moe.oracle.{oracle}")
    patch.setattr(module, f"make_{oracle}_moe_kernel", Kernel)
    kind = backends.NvFp4MoeBackend if oracle == "nvfp4" else backends.Mxfp4MoeBackend
    plain, layer = made(method, config)
    vars(plain)[f"{oracle}_backend"] = kind[backend]
    plain.experts_cls = backends.backend_to_kernel_cls(kind[backend])[0]
    layer.activation = config.activation
    return plain, layer


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_experts_read_what_they_would_read_of_a_dense_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, backend: str
) -> None:
    method = next(one for one in METHODS if one.name == name)
    hidden, width = 16 * method.codec.group, 8 * method.codec.group
    group, config = group_of(tmp_path, method.codec, hidden, width), moe_config(hidden, width)
    plain, layer = method_with(method, backend, config, monkeypatch)
    wanted = processed(plain, layer, config, torch.bfloat16, dense(group)).moe_kernel.apply()

    said: list[str] = []
    workspace = LayerWorkspace(DEVICE)
    plain, layer = method_with(method, backend, config, monkeypatch)
    kept = KeptLayer(group, workspace, padded=True)
    keeping = kept_experts().keeping_compressed(plain, kept, lambda _, reason: said.append(reason))
    created(keeping, layer, config, torch.bfloat16)
    keeping.process_weights_after_loading(layer)
    is_kept = NVFP4_BACKENDS[backend]
    assert said == ([] if is_kept else [f"the scales are not where the kernel of {backend} reads them"])
    assert all(map(workspace.holds, keeping.moe_kernel.scales)) is is_kept
    for _ in range(2):
        workspace.buffer.fill_(0xA5)  # another layer's
        read = keeping.apply(layer, None, None, torch.tensor([[0, 1], [2, 3]]), None, None)
        assert all(torch.equal(found, expected) for found, expected in zip(read, wanted, strict=True))
