"""A device that the caller made the default, as engines do while they load, is not where helpers' tensors go."""

import ast
from pathlib import Path
from typing import Literal

import pytest
import torch

import csf_tool
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.gpu.layouts import DenseLayout
from csf_tool.gpu.scales import decompress_csf_scales
from tests.fixture_types import Sample
from tests.gpu.stacks import DEVICE, on_device, prepared, random_stack

MAKERS = {
    "arange",
    "empty",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "tensor",
    "zeros",
}
"""Functions of torch that put their result on the default device."""

ROOMS = ("coders", "engines", "gpu", "loading")
"""Rooms that other programs call into."""


FORMS: tuple[DenseLayout, ...] = ("linear", "swizzled", "marlin")

PROJECTIONS: tuple[Literal["gate_up", "down"], ...] = ("gate_up", "down")


def without_device(file: Path) -> list[int]:
    """The lines on which a tensor is made on no device in particular."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (node.func.value.id, node.func.attr) in {("torch", maker) for maker in MAKERS}
        and "device" not in {keyword.arg for keyword in node.keywords}
    ]


def test_every_tensor_is_made_on_a_device_by_name() -> None:
    package = Path(csf_tool.__file__).parent
    found = {file: without_device(file) for room in ROOMS for file in sorted((package / room).rglob("*.py"))}
    assert len(found) > 20
    assert {str(file): lines for file, lines in found.items() if lines} == {}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
def test_streams_and_scales(fmt: CsfFormat) -> None:
    stack = random_stack(fmt, 3, 64, 8, 0.05)
    dense = on_device(stack.scales)
    order = torch.arange(63, -1, -1, device=DEVICE)
    want = {form: decompress_csf_scales(prepared(stack), layout=form) for form in FORMS}
    with torch.device("meta"):
        scales = prepared(stack)
        for form, theirs in want.items():
            assert same(decompress_csf_scales(scales, layout=form), theirs)
        streams = csf_tool.compress_csf_scales(fmt, dense)
        planes = streams.planes()
        prepare = csf_tool.prepare_nvfp4_csf_scales if fmt is NVFP4 else csf_tool.prepare_mxfp4_csf_scales
        again = prepare([fixed for fixed, _ in planes], [words for _, words in planes], rows=64, cols=8)
        assert same(decompress_csf_scales(again), dense)
        workspace = csf_tool.ScaleWorkspace(again, layout=csf_tool.ScaleLayout(row_order=order))
        assert same(workspace.decompress(again), dense.flip(1))


@pytest.mark.parametrize("csf", ["nvfp4-csf-hf", "mxfp4-csf-container"])
def test_checkpoints(sample: Sample, csf: str) -> None:
    path = sample(csf)
    want = csf_tool.load_file(path, device=DEVICE)

    def stacks() -> list[torch.Tensor]:
        wanted = [(projection, size) for projection in PROJECTIONS for size in (1, 2)]
        loaded = [csf_tool.load_stack(path, 1, p, device=DEVICE, tp_rank=size - 1, tp_size=size) for p, size in wanted]
        return [decompress_csf_scales(stack) for stack in loaded]

    theirs = stacks()
    with torch.device("meta"):
        found = csf_tool.load_file(path, device=DEVICE)
        assert all(same(found[name], tensor) for name, tensor in want.items())
        assert all(same(ours, their) for ours, their in zip(stacks(), theirs, strict=True))
