"""Layouts of vLLM's back ends: csf_tool's bytes against those of vLLM's own functions, run on the CPU."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from csf_tool import ScaleLayout
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.gpu.scales import decompress_csf_scales
from tests.gpu.stacks import DEVICE, Stack, on_device, prepared, random_stack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/engines runs these"),
]

UTILS = "vllm.model_executor.layers.quantization.utils"


def utils(module: str) -> Any:
    return pytest.importorskip(f"{UTILS}.{module}")


def dense(stack: Stack) -> torch.Tensor:
    return torch.from_numpy(stack.scales)


def decoded(stack: Stack, layout: ScaleLayout) -> torch.Tensor:
    return decompress_csf_scales(prepared(stack), layout=layout).view(torch.uint8).cpu()


def marlin_nvfp4(scales: torch.Tensor, dtype: torch.dtype, factor: float) -> torch.Tensor:
    """As `prepare_nvfp4_moe_layer_for_marlin` does it with every expert."""
    rows, cols = scales.shape[1:]
    planes = []
    for plane in scales.view(torch.float8_e4m3fn).to(dtype):
        permuted = utils("marlin_utils").marlin_permute_scales(plane.T, 16 * cols, rows, 16)
        processed, _ = utils("marlin_utils_fp4").nvfp4_marlin_process_scales(permuted, factor, dtype)
        planes.append(processed.view(torch.uint8))
    return torch.stack(planes)


def marlin_mxfp4(scales: torch.Tensor, dtype: torch.dtype, factor: float) -> torch.Tensor:
    """As `prepare_moe_fp4_layer_for_marlin` does it with every expert."""
    rows, cols = scales.shape[1:]
    planes = []
    for plane in scales.view(torch.float8_e8m0fnu).to(dtype):
        permuted = utils("marlin_utils").marlin_permute_scales(plane.T, 32 * cols, rows, 32)
        processed = utils("marlin_utils_fp4").mxfp4_marlin_process_scales(permuted)
        planes.append(processed.view(torch.uint8))
    return torch.stack(planes)


def table_of(fmt: CsfFormat, dtype: torch.dtype, factor: float) -> torch.Tensor:
    """What vLLM makes of each byte: a plane of 256 of them, put back into the order in which they were given."""
    given = torch.arange(256, dtype=torch.uint8).repeat(64, 1)[None]
    process = marlin_nvfp4 if fmt is NVFP4 else marlin_mxfp4
    table: torch.Tensor = process(given, dtype, factor)[0, :, 0]
    return table


@pytest.mark.parametrize("factor", [1.0, 2.0, 64.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("fmt", "rows", "cols"), [(NVFP4, 192, 8), (NVFP4, 64, 40), (MXFP4, 128, 7), (MXFP4, 192, 16)])
def test_marlin(fmt: CsfFormat, rows: int, cols: int, dtype: torch.dtype, factor: float) -> None:
    """Every byte value is in the planes: NaN, negative scales, and those that the factor takes out of the range."""
    stack = random_stack(fmt, 2, rows, cols, 0.3)
    process = marlin_nvfp4 if fmt is NVFP4 else marlin_mxfp4
    layout = ScaleLayout("marlin", table=table_of(fmt, dtype, factor).to(DEVICE))
    got = decoded(stack, layout)
    assert got.shape == (2, cols, rows)
    assert torch.equal(got, process(dense(stack), dtype, factor))


def test_gate_and_up_interleaved_in_the_128x4_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `prepare_nvfp4_moe_layer_for_flashinfer_cutedsl` does it: up before gate, turns of 64 rows, then tiles."""
    if DEVICE == "cpu":  # what gives tiles takes them to the GPU at once
        monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    stack = random_stack(NVFP4, 2, 256, 12, 0.05)
    gate, up = dense(stack).chunk(2, 1)
    turns = utils("flashinfer_fp4_moe").interleave_linear_and_gate(torch.cat([up, gate], 1), group_size=64, dim=1)
    want = utils("nvfp4_utils").swizzle_blockscale(turns.view(torch.float8_e4m3fn)).view(torch.uint8).cpu()
    got = decoded(stack, ScaleLayout("swizzled", swap_halves=True, interleave=64))
    assert torch.equal(got.reshape(-1), want.reshape(-1))


def test_the_128x4_layout_of_mxfp4() -> None:
    """As the CUTLASS back end of `CompressedTensorsW4A4Mxfp4MoEMethod` does it with every expert."""
    experts = pytest.importorskip("vllm.model_executor.layers.fused_moe.experts.cutlass_moe")
    stack = random_stack(MXFP4, 2, 256, 12, 0.05)
    want = [experts.swizzle_mxfp4_scales(plane, 256, 12 * 32).reshape(-1) for plane in dense(stack)]
    assert torch.equal(decoded(stack, ScaleLayout("swizzled")).reshape(2, -1), torch.stack(want))


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
def test_the_rows_of_each_half_taking_turns_and_back(fmt: CsfFormat) -> None:
    """gpt-oss's order to vLLM's: `w13[:, 0::2]` and `w13[:, 1::2]`, one after the other."""
    stack = random_stack(fmt, 2, 64, 8, 0.05)
    order = on_device(np.r_[0:64:2, 1:64:2])
    want = torch.cat([dense(stack)[:, 0::2], dense(stack)[:, 1::2]], 1)
    assert torch.equal(decoded(stack, ScaleLayout(row_order=order)), want)


def test_up_and_gate_row_by_row() -> None:
    """As `convert_weight_to_mxfp4_moe_kernel_format` begins for TRT-LLM, before it shuffles rows."""
    stack = random_stack(MXFP4, 2, 64, 8, 0.05)
    gate, up = dense(stack).chunk(2, 1)
    want = torch.stack([up, gate], 2).reshape(dense(stack).shape)
    assert torch.equal(decoded(stack, ScaleLayout(swap_halves=True, interleave=1)), want)
