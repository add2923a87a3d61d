"""Layers of vLLM's own methods with its Marlin back end, kept compressed: what its experts read, on the CPU.

The methods, their parameters, the processing of scales and the experts are vLLM's. Stood in for are the CUDA function
that repacks weights and the kernel that calls the experts, which gives the scales that these would read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.engines.expert_groups import ExpertGroup, expert_groups
from csf_tool.engines.kept_layer import SCALES, KeptLayer
from csf_tool.engines.layer_workspace import LayerWorkspace
from tests import building
from tests.building import MXFP4, NVFP4, Codec, compressed, matrix, write_hf
from tests.engines.test_kept_layer import DEVICE, EXPERTS, dense, raw, stem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/engines runs these"),
]

QUANTISATION = "vllm.model_executor.layers.quantization"
COMPRESSED_TENSORS = f"{QUANTISATION}.compressed_tensors.compressed_tensors_moe"


@dataclass(frozen=True)
class Method:
    """A class of vLLM that has the experts of a format, and what its `__init__` would look up on a GPU."""

    codec: Codec
    module: str
    name: str
    fields: Callable[[], dict[str, Any]] = dict

    def __str__(self) -> str:
        return self.name


METHODS = [
    Method(
        NVFP4, f"{QUANTISATION}.modelopt", "ModelOptNvFp4FusedMoE",
        lambda: {
            "quant_config": SimpleNamespace(is_checkpoint_nvfp4_serialized=True, group_size=16),
            "use_a16": False, "use_global_sf": False, "per_token_activation": False,
        },
    ),
    Method(
        NVFP4, f"{COMPRESSED_TENSORS}.compressed_tensors_moe_w4a4_nvfp4", "CompressedTensorsW4A4Nvfp4MoEMethod",
        lambda: {"group_size": 16, "use_a16": False, "use_global_sf": False},
    ),
    Method(
        MXFP4, f"{QUANTISATION}.mxfp4", "Mxfp4MoEMethod",
        lambda: {"_cache_permute_indices": {}, "activation_key": None}
        | dict.fromkeys(("is_k3_situ_aiter", "is_k3_situ_int4_gfx942"), False),
    ),
    Method(
        MXFP4, f"{COMPRESSED_TENSORS}.compressed_tensors_moe_w4a4_mxfp4", "CompressedTensorsW4A4Mxfp4MoEMethod",
        lambda: {"group_size": 32, "use_cutlass_mxfp4": False},
    ),
]  # fmt: skip
"""DeepSeek's experts are the third's, Kimi's the fourth's."""


class Layer(torch.nn.Module):
    """What the methods ask of a layer of vLLM's."""

    activation = global_num_experts = expert_map = apply_router_weight_on_input = None

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.moe_config = config
        self.hidden_size = config.hidden_dim
        self.intermediate_size_per_partition = config.intermediate_size_per_partition

    def _expert_routing_tables(self) -> None:
        return None


def moe_config(hidden: int, width: int) -> Any:
    fused = import_module("vllm.model_executor.layers.fused_moe.config")
    activation = import_module("vllm.model_executor.layers.fused_moe.activation").MoEActivation.SILU
    parallel = fused.FusedMoEParallelConfig(
        tp_size=1, pcp_size=1, dp_size=1, ep_size=1, tp_rank=0, pcp_rank=0, dp_rank=0, ep_rank=0, sp_size=1,
        use_ep=False, all2all_backend="naive", enable_eplb=False,
    )  # fmt: skip
    return fused.FusedMoEConfig(
        num_experts=EXPERTS, experts_per_token=2, hidden_dim=hidden, intermediate_size=width,
        num_local_experts=EXPERTS, num_logical_experts=EXPERTS, activation=activation, device="cpu",
        routing_method=fused.RoutingMethodType.Renormalize, moe_parallel_config=parallel, in_dtype=torch.bfloat16,
    )  # fmt: skip


class Kernel:
    """vLLM's Marlin experts, called for nothing but the scales that they read."""

    is_monolithic = False

    def __init__(self, moe_quant_config: Any, moe_config: Any, **_: Any) -> None:
        experts = import_module("vllm.model_executor.layers.fused_moe.experts.marlin_moe")
        self.fused_experts = experts.MarlinExperts(moe_config=moe_config, quant_config=moe_quant_config)

    @property
    def scales(self) -> list[torch.Tensor]:
        return [self.fused_experts.w1_scale, self.fused_experts.w2_scale]

    def apply(self, *_: Any, **__: Any) -> list[torch.Tensor]:
        return [raw(scale).clone() for scale in self.scales]


@pytest.fixture(params=METHODS, ids=str)
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Method:
    """A method's class, with the CUDA functions that it leads to stood in for."""
    found: Method = next(one for one in METHODS if request.param in (one, one.name))
    module = import_module(found.module)
    maker = "make_nvfp4_moe_kernel" if found.codec is NVFP4 else "make_mxfp4_moe_kernel"
    monkeypatch.setattr(module, maker, Kernel)
    parameters = import_module("vllm.model_executor.parameter")
    monkeypatch.setattr(parameters, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parameters, "get_tensor_model_parallel_world_size", lambda: 1)
    ops = import_module(f"{QUANTISATION}.utils.marlin_utils_fp4").ops
    monkeypatch.setattr(ops, "gptq_marlin_repack", repacked)
    return found


def kept_experts() -> Any:
    """csf_tool's module, which imports vLLM."""
    return import_module("csf_tool.engines.vllm.kept_experts")


def repacked(b_q_weight: torch.Tensor, *, size_k: int, size_n: int, **_: Any) -> torch.Tensor:
    return torch.zeros(size_k // 16, size_n * 2, dtype=torch.int32)


def group_of(root: Path, codec: Codec, hidden: int, width: int) -> ExpertGroup:
    """A checkpoint of a layer whose experts have such sizes."""
    shapes = {
        "down_proj": (hidden, width // codec.group),
        "gate_proj": (width, hidden // codec.group),
        "up_proj": (width, hidden // codec.group),
    }
    tensors = [
        tensor
        for expert in range(EXPERTS)
        for i, (name, (rows, cols)) in enumerate(shapes.items())
        for tensor in compressed(
            matrix(f"{stem(0, expert)}.{name}", codec, 10 * expert + i, rows=rows, cols=cols), codec
        )
    ]
    (group,) = expert_groups(open_checkpoint(write_hf(root, {"model.safetensors": tensors}))).values()
    return group


def made(method: Method, config: Any) -> tuple[Any, Layer]:
    """The method with its Marlin back end, and a layer, not yet with parameters."""
    oracle = "nvfp4" if method.codec is NVFP4 else "mxfp4"
    backends = import_module(f"vllm.model_executor.layers.fused_moe.oracle.{oracle}")
    backend = (backends.NvFp4MoeBackend if method.codec is NVFP4 else backends.Mxfp4MoeBackend).MARLIN
    marlin = import_module("vllm.model_executor.layers.fused_moe.experts.marlin_moe").MarlinExperts
    made: Any = object.__new__(getattr(import_module(method.module), method.name))
    vars(made).update(moe=config, experts_cls=marlin, **{f"{oracle}_backend": backend}, **method.fields())
    return made, Layer(config)


def created(method: Any, layer: Layer, config: Any, dtype: torch.dtype) -> None:
    """Have the method make the layer's parameters, and fill all but the block scales."""
    method.create_weights(
        layer, EXPERTS, config.hidden_dim, config.intermediate_size_per_partition, dtype,
        weight_loader=lambda *_: None, global_num_experts=EXPERTS,
    )  # fmt: skip
    for name, parameter in layer.named_parameters():
        if name not in SCALES:
            parameter.data.zero_() if parameter.dtype == torch.uint8 else parameter.data.fill_(0.5)


def processed(method: Any, layer: Layer, config: Any, dtype: torch.dtype, scales: list[torch.Tensor]) -> Any:
    """The method after vLLM's own processing of dense scales."""
    created(method, layer, config, dtype)
    for name, wanted in zip(SCALES, scales, strict=True):
        getattr(layer, name).data.view(torch.uint8).copy_(wanted)
    method.process_weights_after_loading(layer)
    return method


def kept_by(
    method: Method, config: Any, dtype: torch.dtype, group: ExpertGroup
) -> tuple[Any, Layer, LayerWorkspace, list[str]]:
    """The method after csf_tool has loaded its layer's scales, the layer, the workspace, and reasons to stay dense."""
    said: list[str] = []
    workspace = LayerWorkspace(DEVICE)
    plain, layer = made(method, config)
    keeping = kept_experts().keeping_compressed(
        plain, KeptLayer(group, workspace), lambda _, reason: said.append(reason)
    )
    created(keeping, layer, config, dtype)
    keeping.process_weights_after_loading(layer)
    return keeping, layer, workspace, said


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_experts_read_what_they_would_read_of_a_dense_checkpoint(
    tmp_path: Path, method: Method, dtype: torch.dtype
) -> None:
    """The same bytes, shapes, dtypes and strides, in the workspace, and nowhere else."""
    hidden, width = 8 * method.codec.group, 4 * method.codec.group
    group, config = group_of(tmp_path, method.codec, hidden, width), moe_config(hidden, width)
    stock = processed(*made(method, config), config, dtype, dense(group))
    wanted = stock.moe_kernel.scales

    keeping, layer, workspace, said = kept_by(method, config, dtype, group)
    assert not said and kept_experts().backend_of(keeping) == "MARLIN"
    for found, expected, name in zip(keeping.moe_kernel.scales, wanted, SCALES, strict=True):
        assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())
        assert found.data_ptr() == getattr(layer, name).data_ptr()
        assert workspace.holds(found)
    assert scales_elsewhere(keeping, layer, workspace) == []

    everyone = torch.arange(EXPERTS, dtype=torch.int32).view(2, -1)
    for chosen in (everyone, torch.tensor([[2, 0]])):
        workspace.buffer.fill_(0xA5)
        read = keeping.apply(layer, None, None, chosen, None, None)
        for found, expected in zip(read, wanted, strict=True):
            for expert in range(EXPERTS):
                same = raw(expected)[expert] if expert in chosen else torch.full_like(found[expert], 0xA5)
                assert torch.equal(found[expert], same)


def scales_elsewhere(method: Any, layer: Layer, workspace: LayerWorkspace) -> list[str]:
    """Names under which layer, quantisation config or experts hold scales that are not in the workspace."""
    least = min(getattr(layer, name).numel() for name in SCALES)
    held = {f"layer.{name}": value for name, value in layer.named_parameters()}
    for owner in (method, method.moe_quant_config, method.moe_kernel.fused_experts, *_descriptions(method)):
        held |= {f"{type(owner).__name__}.{name}": value for name, value in vars(owner).items()}
    return [
        name for name, value in held.items()
        if isinstance(value, torch.Tensor) and value.dtype.itemsize == 1 and value.numel() >= least
        and not workspace.holds(value)
    ]  # fmt: skip


def _descriptions(method: Any) -> list[Any]:
    return [method.moe_quant_config._w1, method.moe_quant_config._w2]


def fp8_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """VLLM_MARLIN_INPUT_DTYPE=fp8, for which Marlin has another order of scales, and adds to them."""
    utils = import_module(f"{QUANTISATION}.utils.marlin_utils_fp4")
    monkeypatch.setattr(utils, "get_marlin_input_dtype", lambda *_, **__: torch.float8_e4m3fn)
    monkeypatch.setattr(building, "make_scales", lambda rows, cols, *_: bytes(i % 7 + 100 for i in range(rows * cols)))


OTHER_LAYOUTS: dict[str, tuple[str, int, int, Callable[[pytest.MonkeyPatch], None]]] = {
    "a width that vLLM pads": ("ModelOptNvFp4FusedMoE", 128, 32, lambda _: None),
    "a width that vLLM pads to 128": ("CompressedTensorsW4A4Nvfp4MoEMethod", 64, 64, lambda _: None),
    "activations in FP8": ("Mxfp4MoEMethod", 256, 128, fp8_activations),
}


@pytest.mark.parametrize(
    ("method", "hidden", "width", "prepare"), OTHER_LAYOUTS.values(), ids=OTHER_LAYOUTS.keys(), indirect=["method"]
)
def test_scales_in_another_layout_stay_dense(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: Method,
    hidden: int,
    width: int,
    prepare: Callable[[pytest.MonkeyPatch], None],
) -> None:
    prepare(monkeypatch)
    group, config = group_of(tmp_path, method.codec, hidden, width), moe_config(hidden, width)
    stock = processed(*made(method, config), config, torch.bfloat16, dense(group))
    keeping, layer, workspace, said = kept_by(method, config, torch.bfloat16, group)
    assert said == ["its scales are in a layout that csf-tool does not write (MARLIN)"]
    workspace.buffer.fill_(0xA5)
    read = keeping.apply(layer, None, None, torch.zeros(1, 2, dtype=torch.int32), None, None)
    for found, expected in zip(read, stock.moe_kernel.scales, strict=True):
        assert torch.equal(found, raw(expected))
