"""Arguments of the public functions that only a stranger gives: of a near kind, on a near device, or for autograd."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from csf_tool import (
    ScaleLayout,
    ScaleWorkspace,
    compress_csf_scales,
    compress_nvfp4_scales,
    decompress_nvfp4_csf_scales,
    prepare_csf_scales,
    prepare_nvfp4_csf_scales,
)
from csf_tool.codec.formats import NVFP4
from tests.gpu.stacks import DEVICE, Stack, on_device, prepared, random_stack

ROWS, COLS = 32, 8


@pytest.fixture
def stack() -> Stack:
    return random_stack(NVFP4, 3, ROWS, COLS, 0.1)


def joined(stack: Stack) -> dict[str, Any]:
    """The arguments of `prepare_csf_scales`."""
    return {
        "fmt": stack.fmt,
        "fixed": on_device(np.stack(stack.fixed)),
        "exceptions": on_device(np.concatenate(stack.exceptions).view(np.int32)),
        "counts": [len(words) for words in stack.exceptions],
        "rows": ROWS,
        "cols": COLS,
    }


def as_bytes(dense: torch.Tensor) -> bytes:
    return dense.view(torch.uint8).cpu().numpy().tobytes()


def zeros(size: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, device=DEVICE).view(dtype)


Change = Callable[[dict[str, Any]], object]

REFUSED: dict[str, tuple[str, Change, type[Exception], str]] = {
    "format by name": ("fmt", lambda _: "nvfp4", TypeError, "fmt must be a CsfFormat, not str"),
    "no format": ("fmt", lambda _: None, TypeError, "fmt must be a CsfFormat, not NoneType"),
    "floats": ("fixed", lambda a: a["fixed"].float(), TypeError, "fixed must be a tensor of torch.uint8"),
    "signed": ("fixed", lambda a: a["fixed"].view(torch.int8), TypeError, "not torch.int8"),
    "numpy": ("fixed", lambda a: a["fixed"].cpu().numpy(), TypeError, "not ndarray"),
    "planes": ("fixed", lambda a: list(a["fixed"]), TypeError, "not list"),
    "long words": ("exceptions", lambda a: a["exceptions"].long(), TypeError, "torch.uint32 or torch.int32"),
    "half as many long words": (
        "exceptions",
        lambda a: torch.zeros(len(a["exceptions"]) // 2, dtype=torch.int64, device=DEVICE),
        TypeError,
        "not torch.int64",
    ),
    "words elsewhere": ("exceptions", lambda a: a["exceptions"].to("meta"), ValueError, "exceptions are on meta, but"),
    "counts that cancel out": (
        "counts",
        lambda a: [sum(a["counts"]) + 5, -5, 0],
        ValueError,
        "counts has -5: no plane has so many exceptions",
    ),
    "counts of floats": ("counts", lambda a: [float(n) for n in a["counts"]], TypeError, "must be an int, not float"),
    "one count": ("counts", lambda _: 3, TypeError, "counts must be ints, not int"),
    "no counts": ("counts", lambda _: None, TypeError, "counts must be ints, not NoneType"),
    "rows as a float": ("rows", lambda _: 32.0, TypeError, "rows must be an int, not float"),
    "rows as words": ("rows", lambda _: "32", TypeError, "rows must be an int, not str"),
    "columns as a float": ("cols", lambda _: 8.0, TypeError, "cols must be an int, not float"),
    "columns as a truth": ("cols", lambda _: True, TypeError, "cols must be an int, not bool"),
    "no columns": ("cols", lambda _: None, TypeError, "cols must be an int, not NoneType"),
}


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(("name", "change", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_stack_is_refused(
    stack: Stack, name: str, change: Change, error: type[Exception], message: str, validate: bool
) -> None:
    """Before a kernel takes it, also where streams are not checked: a kernel reads and writes wherever it is told."""
    given = joined(stack)
    with pytest.raises(error, match=message):
        prepare_csf_scales(**given | {name: change(given)}, validate=validate)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"fixed": 3}, TypeError, "fixed must be tensors, not int"),
        ({"exceptions": None}, TypeError, "exceptions must be tensors, not NoneType"),
        ({"rows": 32.0}, TypeError, "rows must be an int, not float"),
        ({"exceptions": [torch.tensor(0, dtype=torch.int32)] * 3}, ValueError, "exceptions must be 1-D"),
        ({"exceptions": torch.zeros(3, 0, dtype=torch.int32)}, ValueError, "exceptions must be 1-D"),
    ],
)
def test_planes_that_are_none_are_refused(
    stack: Stack, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    planes = {"fixed": [*map(on_device, stack.fixed)], "exceptions": [*map(on_device, stack.exceptions)]}
    given = {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    with pytest.raises(error, match=message):
        prepare_nvfp4_csf_scales(**{**planes, "rows": ROWS, "cols": COLS, **given})


@pytest.mark.parametrize("number", [np.int64, np.uint16, torch.tensor], ids=["int64", "uint16", "tensor"])
def test_numbers_may_be_of_another_library(stack: Stack, number: Callable[[int], Any]) -> None:
    given = joined(stack)
    given |= {"rows": number(ROWS), "cols": number(COLS), "counts": [number(n) for n in given["counts"]]}
    scales = prepare_csf_scales(**given)
    assert as_bytes(decompress_nvfp4_csf_scales(scales)) == stack.scales.tobytes()
    assert as_bytes(decompress_nvfp4_csf_scales(scales, layout="swizzled")) != b""


@pytest.mark.parametrize("counts", [torch.tensor, np.array], ids=["tensor", "array"])
def test_counts_may_be_an_array(stack: Stack, counts: Callable[[list[int]], Any]) -> None:
    given = joined(stack)
    scales = prepare_csf_scales(**given | {"counts": counts(given["counts"])})
    assert as_bytes(decompress_nvfp4_csf_scales(scales)) == stack.scales.tobytes()


def test_a_stack_of_no_experts() -> None:
    streams = compress_nvfp4_scales(torch.empty(0, ROWS, COLS, dtype=torch.uint8, device=DEVICE))
    assert (streams.counts, len(streams.exceptions)) == ([], 0)
    scales = prepare_csf_scales(NVFP4, streams.fixed, streams.exceptions, streams.counts, rows=ROWS, cols=COLS)
    assert decompress_nvfp4_csf_scales(scales).shape == (0, ROWS, COLS)
    ids = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    assert decompress_nvfp4_csf_scales(scales, topk_ids=ids, layout="swizzled").shape == (0, 128, COLS)


@pytest.mark.parametrize("device", [None, torch.float8_e4m3fn, torch.zeros(1), 1.5], ids=str)
def test_a_stack_goes_to_devices_only(stack: Stack, device: Any) -> None:
    """A tensor's `to` would take a dtype, and change the streams."""
    with pytest.raises(TypeError):
        prepared(stack).to(device)


@pytest.mark.parametrize("given", ["stack", None, [1], torch.zeros(1), 7], ids=str)
def test_a_workspace_is_for_stacks(stack: Stack, given: Any) -> None:
    with pytest.raises(TypeError, match=f"must be prepared CsfScales, not {type(given).__name__}"):
        ScaleWorkspace(prepared(stack), given)
    with pytest.raises(TypeError, match=f"must be prepared CsfScales, not {type(given).__name__}"):
        ScaleWorkspace(given)


def test_a_flag_is_no_number_of_rows() -> None:
    with pytest.raises(TypeError, match="interleave must be int, not bool"):
        ScaleLayout(interleave=True)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantized_tensors_are_no_bytes(stack: Stack) -> None:
    quantized = torch.quantize_per_tensor(torch.zeros(stack.scales.shape), 1.0, 0, torch.qint8)
    with pytest.raises(TypeError, match=r"out must be a tensor of bytes .*, not torch.qint8"):
        decompress_nvfp4_csf_scales(prepared(stack), out=quantized)
    with pytest.raises(TypeError, match=r"scales must be a tensor of bytes .*, not torch.qint8"):
        compress_nvfp4_scales(quantized)


def test_a_format_is_asked_for_by_its_object(stack: Stack) -> None:
    name: Any = "nvfp4"
    with pytest.raises(TypeError, match="fmt must be a CsfFormat, not str"):
        compress_csf_scales(name, on_device(stack.scales))


def test_what_is_on_meta_has_no_bytes(stack: Stack) -> None:
    """Decoding gives tensors on meta, as any operator of torch does; what must look at bytes refuses."""
    scales = prepared(stack).to("meta")
    ids = torch.empty(4, dtype=torch.int64, device="meta")
    out = torch.empty(scales.workspace_bytes("swizzled"), dtype=torch.uint8, device="meta")
    for options in ({}, {"topk_ids": ids}, {"out": out, "layout": "swizzled"}):
        dense = decompress_nvfp4_csf_scales(scales, **options)
        assert (dense.device.type, dense.dtype) == ("meta", torch.float8_e4m3fn)
    given = joined(stack)
    with pytest.raises(ValueError, match="streams on meta have no bytes"):
        prepare_csf_scales(**given | {name: given[name].to("meta") for name in ("fixed", "exceptions")})
    with pytest.raises(ValueError, match="the scales are on meta"):
        compress_nvfp4_scales(torch.empty(3, ROWS, COLS, dtype=torch.uint8, device="meta"))
    with pytest.raises(ValueError, match="row_order is on meta"):
        ScaleLayout(row_order=torch.arange(ROWS, device="meta"))


def test_autograd_would_not_see_what_is_written(stack: Stack) -> None:
    """A leaf, and the result of something with a gradient, which would go on to flow there."""
    scales = prepared(stack)
    size = stack.scales.size
    leaf = zeros(size, torch.float8_e4m3fn).requires_grad_()
    made = torch.zeros(size, device=DEVICE, requires_grad=True).to(torch.float8_e4m3fn)
    for out in (leaf, made, torch.nn.Parameter(zeros(size, torch.float8_e4m3fn))):
        assert out.requires_grad
        with pytest.raises(ValueError, match="out requires a gradient"):
            decompress_nvfp4_csf_scales(scales, out=out)
        assert not out.detach().view(torch.uint8).any()
        assert as_bytes(decompress_nvfp4_csf_scales(scales, out=out.detach())) == stack.scales.tobytes()
        with torch.no_grad():
            decompress_nvfp4_csf_scales(scales, out=out)
        with torch.inference_mode():
            decompress_nvfp4_csf_scales(scales, out=out)


def test_stacks_and_buffers_of_inference_mode_serve_outside_of_it(stack: Stack) -> None:
    with torch.inference_mode():
        scales, out = prepared(stack), zeros(stack.scales.size)
    assert out.is_inference()
    assert as_bytes(decompress_nvfp4_csf_scales(scales, out=out)) == stack.scales.tobytes()


class _Parameter(torch.nn.Parameter):
    """A parameter as engines have them: with methods of their own, and bytes like any."""


class _Tensor(torch.Tensor):
    """A tensor with a name of its own."""


def test_kinds_of_tensors_with_bytes_are_launched_at_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    from csf_tool.gpu import decode

    monkeypatch.setattr(decode, "_decompress_op", None)
    scales = prepared(stack)
    parameter = _Parameter(zeros(stack.scales.size), requires_grad=False)
    for out in (parameter, zeros(stack.scales.size).as_subclass(_Tensor)):
        decompress_nvfp4_csf_scales(scales, out=out)
        assert as_bytes(out.data) == stack.scales.tobytes()


def shown(stack: Stack) -> dict[str, object]:
    scales = prepared(stack)
    order = torch.arange(ROWS, device=DEVICE)
    layout = ScaleLayout("swizzled", row_order=order, table=zeros(256))
    return {
        f"<CsfScales nvfp4: 3 planes 32x8, {scales.device}>": scales,
        "ScaleLayout('swizzled', swap_halves=False, interleave=0, row_order=[32], table=[256])": layout,
        f"<ScaleWorkspace 3072 bytes, {layout}, {scales.device}>": ScaleWorkspace(scales, layout=layout),
    }


def test_what_they_print_is_short_and_reads_nothing_from_a_gpu(stack: Stack) -> None:
    for words, made in shown(stack).items():
        assert repr(made) == words
