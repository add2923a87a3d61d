"""The public API around decoding: what it accepts, refuses, keeps and promises."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from csf_tool import (
    CsfScales,
    decompress_mxfp4_csf_scales,
    decompress_nvfp4_csf_scales,
    prepare_csf_scales,
    prepare_mxfp4_csf_scales,
    prepare_nvfp4_csf_scales,
)
from csf_tool.codec import reference
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.codec.prepared import prepared_bytes
from tests.codec.vectors import Vector, broken
from tests.gpu.stacks import DEVICE, Stack, expert_start, on_device, prepared, random_stack

ROWS, COLS = 32, 24


@pytest.fixture
def stack() -> Stack:
    return random_stack(NVFP4, 3, ROWS, COLS, 0.02)


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).cpu().numpy().tobytes()


@pytest.mark.parametrize(
    ("fmt", "decompress", "dtype"),
    [
        (NVFP4, decompress_nvfp4_csf_scales, torch.float8_e4m3fn),
        (MXFP4, decompress_mxfp4_csf_scales, torch.float8_e8m0fnu),
    ],
    ids=["nvfp4", "mxfp4"],
)
def test_dense_scales_have_their_dtype_and_shape(
    fmt: CsfFormat, decompress: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    made = random_stack(fmt, 3, ROWS, COLS, 0.02)
    dense = decompress(prepared(made))
    assert (dense.dtype, dense.shape) == (dtype, (3, ROWS, COLS))
    assert as_bytes(dense) == made.scales.tobytes()
    assert decompress(prepared(made), layout="swizzled").shape == (3, 128, 24)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn, torch.float8_e8m0fnu])
def test_out_may_be_any_bytes_and_is_what_comes_back(stack: Stack, dtype: torch.dtype) -> None:
    out = torch.zeros(stack.scales.size + 5, dtype=torch.uint8, device=DEVICE).view(dtype)
    dense = decompress_nvfp4_csf_scales(prepared(stack), out=out)
    assert dense.data_ptr() == out.data_ptr()
    assert as_bytes(out) == stack.scales.tobytes() + bytes(5)


def test_streams_may_come_stacked_or_plane_by_plane(stack: Stack) -> None:
    stacked = on_device(np.stack(stack.fixed))
    words = [on_device(w.view(np.int32)) for w in stack.exceptions]
    for fixed in (stacked, list(stacked), [plane.reshape(-1) for plane in stacked]):
        scales = prepare_nvfp4_csf_scales(fixed, words, rows=ROWS, cols=COLS)
        assert scales.experts == 3
        assert as_bytes(decompress_nvfp4_csf_scales(scales)) == stack.scales.tobytes()


def test_a_single_plane_needs_no_sequence(stack: Stack) -> None:
    scales = prepare_nvfp4_csf_scales(on_device(stack.fixed[0]), on_device(stack.exceptions[0]), rows=ROWS, cols=COLS)
    assert as_bytes(decompress_nvfp4_csf_scales(scales)) == stack.scales[0].tobytes()


def test_streams_may_lie_at_odd_addresses(stack: Stack) -> None:
    """Nothing in a safetensors file is aligned."""
    raw = torch.zeros(1 + stack.fixed[0].size * 3, dtype=torch.uint8, device=DEVICE)
    raw[1:] = on_device(np.concatenate([f.reshape(-1) for f in stack.fixed]))
    words = on_device(np.concatenate(stack.exceptions))
    counts = [len(w) for w in stack.exceptions]
    scales = prepare_csf_scales(NVFP4, raw[1:], words, counts, rows=ROWS, cols=COLS)
    assert as_bytes(decompress_nvfp4_csf_scales(scales)) == stack.scales.tobytes()


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("outside", [0.0, 0.02])
def test_a_stack_prepared_for_one_use_decodes_the_same(reused: bool, outside: float) -> None:
    made = random_stack(NVFP4, 3, ROWS, COLS, outside)
    fixed, words = on_device(np.stack(made.fixed)), on_device(np.concatenate(made.exceptions))
    counts = [len(w) for w in made.exceptions]
    scales = prepare_csf_scales(NVFP4, fixed, words, counts, rows=ROWS, cols=COLS, validate=False, reused=reused)
    assert bool(scales._tables.lead_group) == (reused and outside > 0)
    assert as_bytes(decompress_nvfp4_csf_scales(scales)) == made.scales.tobytes()


def test_sizes() -> None:
    scales = prepared(random_stack(NVFP4, 2, 144, 10, 0.0))
    assert scales.dense_nbytes == scales.workspace_bytes() == 2 * 144 * 10
    assert scales.workspace_bytes("swizzled") == 2 * 256 * 12
    starts = 4 * (2 + 1) + 4 * (4 + 1)  # one piece and two blocks a plane
    assert scales.nbytes == 2 * NVFP4.fixed_bytes(144, 10) + starts


def test_a_stack_survives_pickling(stack: Stack) -> None:
    again = pickle.loads(pickle.dumps(prepared(stack)))
    assert as_bytes(decompress_nvfp4_csf_scales(again)) == stack.scales.tobytes()


def test_to_the_same_device_is_the_same_object(stack: Stack) -> None:
    scales = prepared(stack)
    assert scales.to(scales.device) is scales
    assert scales.to("meta").device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_expert_start_may_be_either_integer(stack: Stack, dtype: torch.dtype) -> None:
    out = torch.zeros(stack.scales.size, dtype=torch.uint8, device=DEVICE)
    decompress_nvfp4_csf_scales(prepared(stack), out=out, expert_start=expert_start([False, True, False], dtype))
    assert as_bytes(out) == bytes(ROWS * COLS) + stack.scales[1].tobytes() + bytes(ROWS * COLS)


BROKEN = {
    "padding_bit_set": "plane 1: bits past the last column are not zero",
    "base_above_254": "plane 1: a row base is above 254",
    "base_above_240": "plane 1: a row base is above 240",
    "positions_not_sorted": "plane 1: exception positions must strictly increase",
    "position_repeated": "plane 1: exception positions must strictly increase",
    "position_past_end": "plane 1: an exception position is outside the plane of 768 scales",
    "fixed_truncated": "fixed streams have 768 bytes, but 2 planes of 32x24 need 832",
    "fixed_one_row_short": "fixed streams have 416 bytes, but 2 planes of 32x24 need 832",
}


@pytest.mark.parametrize("vector", [v for v in broken() if not v.decodable], ids=str)
def test_broken_streams_are_refused(vector: Vector) -> None:
    """The broken plane is the second of two. Where the fault is a size, both planes have it."""
    good = vector.fixed
    if vector.fixed.size == vector.fmt.fixed_bytes(vector.rows, vector.cols):
        good, _ = reference.encode(vector.fmt, np.zeros((vector.rows, vector.cols), np.uint8))
    prepare = prepare_nvfp4_csf_scales if vector.fmt is NVFP4 else prepare_mxfp4_csf_scales
    fixed = [on_device(good), on_device(vector.fixed)]
    words = [on_device(np.empty(0, np.uint32)), on_device(vector.exceptions)]
    with pytest.raises(ValueError, match=BROKEN[vector.name]):
        prepare(fixed, words, rows=vector.rows, cols=vector.cols)


def test_an_exception_inside_its_window_is_no_fault() -> None:
    odd = next(v for v in broken() if v.decodable)
    scales = prepare_nvfp4_csf_scales(on_device(odd.fixed), on_device(odd.exceptions), rows=odd.rows, cols=odd.cols)
    want = reference.decode(odd.fmt, odd.fixed, odd.exceptions, rows=odd.rows, cols=odd.cols)
    assert as_bytes(decompress_nvfp4_csf_scales(scales)) == want.tobytes()


def test_positions_may_fall_from_one_plane_to_the_next() -> None:
    words = [torch.tensor([5 << 24 | 100], dtype=torch.int32), torch.tensor([6 << 24], dtype=torch.int32)]
    fixed = torch.zeros(2, NVFP4.fixed_bytes(16, 8), dtype=torch.uint8)
    scales = prepare_nvfp4_csf_scales(fixed.to(DEVICE), [w.to(DEVICE) for w in words], rows=16, cols=8)
    dense = decompress_nvfp4_csf_scales(scales).view(torch.uint8).reshape(2, -1)
    assert (int(dense[0, 100]), int(dense[1, 0])) == (5, 6)


PREPARE_REFUSALS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rows": ({"rows": 20}, ValueError, "20 rows are not a positive multiple of 16"),
    "columns": ({"cols": 9}, ValueError, "9 columns are not a positive multiple of 2"),
    "fixed dtype": ({"fixed": torch.zeros(3, dtype=torch.int8)}, TypeError, "fixed must be torch.uint8"),
    "fixed kind": ({"fixed": [b"bytes"]}, TypeError, "fixed must be tensors, not bytes"),
    "no planes": ({"exceptions": []}, ValueError, "exceptions has no planes"),
    "counts": (
        {"exceptions": [torch.zeros(0, dtype=torch.int32, device=DEVICE)] * 2},
        ValueError,
        "3 fixed streams, but 2 lists",
    ),
    "device": (
        {"exceptions": [torch.zeros(0, dtype=torch.int32, device="meta")] * 3},
        ValueError,
        "all streams must be on one device",
    ),
    "exception dtype": ({"exceptions": torch.zeros(1)}, TypeError, "exceptions must be torch.uint32 or torch.int32"),
}


@pytest.mark.parametrize(("change", "error", "message"), PREPARE_REFUSALS.values(), ids=PREPARE_REFUSALS.keys())
def test_prepare_refuses(stack: Stack, change: dict[str, Any], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {
        "fixed": [on_device(f) for f in stack.fixed],
        "exceptions": [on_device(w) for w in stack.exceptions],
        "rows": ROWS,
        "cols": COLS,
        **change,
    }
    with pytest.raises(error, match=message):
        prepare_nvfp4_csf_scales(given.pop("fixed"), given.pop("exceptions"), **given)


def test_counts_must_add_up(stack: Stack) -> None:
    fixed, words = on_device(np.stack(stack.fixed)), on_device(np.concatenate(stack.exceptions))
    with pytest.raises(ValueError, match=r"exceptions, but the planes have 0"):
        prepare_csf_scales(NVFP4, fixed, words, [0, 0, 0], rows=ROWS, cols=COLS)


def bytes_of(size: int, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, **{"device": DEVICE, **kwargs})


SIZE = 3 * ROWS * COLS

DECOMPRESS_REFUSALS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "small": ({"out": bytes_of(SIZE - 1)}, ValueError, f"out has {SIZE - 1} bytes, but the dense scales need {SIZE}"),
    "words": ({"out": torch.zeros(SIZE, device=DEVICE)}, TypeError, "bytes .uint8 or float8., not torch.float32"),
    "strided": ({"out": bytes_of(2 * SIZE)[::2]}, ValueError, "out must be contiguous"),
    "device": ({"out": bytes_of(SIZE, device="meta")}, ValueError, "out is on meta, but the scales are on"),
    "no tensor": ({"out": bytearray(SIZE)}, TypeError, "not bytearray"),
    "layout": (
        {"layout": "blocked"},
        ValueError,
        r'layout must be "linear", "swizzled" or "marlin", or a ScaleLayout, not \'blocked\'',
    ),
    "routing length": (
        {"expert_start": torch.zeros(3, dtype=torch.int32, device=DEVICE)},
        ValueError,
        r"expert_start has shape \(3,\), but 3 experts need \(4,\)",
    ),
    "routing dtype": (
        {"expert_start": torch.zeros(4, device=DEVICE)},
        TypeError,
        "int32 or int64 tensor, not torch.float32",
    ),
    "routing device": (
        {"expert_start": torch.zeros(4, dtype=torch.int32, device="meta")},
        ValueError,
        "expert_start is on meta",
    ),
    "routing stride": (
        {"expert_start": torch.zeros(8, dtype=torch.int32, device=DEVICE)[::2]},
        ValueError,
        "expert_start must be contiguous",
    ),
    "choices dtype": ({"topk_ids": torch.zeros(4, device=DEVICE)}, TypeError, "topk_ids must be an int32 or int64"),
    "choices kind": ({"topk_ids": [1, 2]}, TypeError, "topk_ids must be an int32 or int64 tensor, not list"),
    "choices device": (
        {"topk_ids": torch.zeros(4, dtype=torch.int64, device="meta")},
        ValueError,
        "topk_ids is on meta",
    ),
    "choices stride": (
        {"topk_ids": torch.zeros(8, 2, dtype=torch.int32, device=DEVICE).T},
        ValueError,
        "topk_ids must be contiguous",
    ),
    "two routings": (
        {
            "topk_ids": torch.zeros(1, dtype=torch.int32, device=DEVICE),
            "expert_start": torch.zeros(4, dtype=torch.int32, device=DEVICE),
        },
        ValueError,
        "expert_start or topk_ids, not both",
    ),
    "offset alone": ({"expert_offset": 2}, ValueError, "expert_offset is for topk_ids"),
    "offset kind": (
        {"topk_ids": torch.zeros(1, dtype=torch.int32, device=DEVICE), "expert_offset": 1.5},
        TypeError,
        "expert_offset must be an int, not float",
    ),
    "offset size": (
        {"topk_ids": torch.zeros(1, dtype=torch.int32, device=DEVICE), "expert_offset": 2**31},
        ValueError,
        "must fit 32 bits",
    ),
}


@pytest.mark.parametrize(("options", "error", "message"), DECOMPRESS_REFUSALS.values(), ids=DECOMPRESS_REFUSALS.keys())
def test_decompress_refuses(stack: Stack, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        decompress_nvfp4_csf_scales(prepared(stack), **options)


def test_decompress_refuses_another_format_or_raw_streams(stack: Stack) -> None:
    with pytest.raises(ValueError, match="the scales are NVFP4, not MXFP4"):
        decompress_mxfp4_csf_scales(prepared(stack))
    raw: Any = on_device(stack.fixed[0])
    with pytest.raises(TypeError, match="must be prepared CsfScales, not Tensor"):
        decompress_nvfp4_csf_scales(raw)


@pytest.mark.slow
@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("given_out", [False, True])
def test_it_compiles_as_one_graph(stack: Stack, routed: bool, given_out: bool) -> None:
    """The operator stands in the graph; its neighbours may be anything. "aot_eager" needs no C++ compiler."""
    scales = prepared(stack)
    routing = expert_start([True, False, True]) if routed else None

    def doubled(scales: CsfScales, out: torch.Tensor | None) -> torch.Tensor:
        dense = decompress_nvfp4_csf_scales(scales, out=out, expert_start=routing)
        return dense.view(torch.uint8).to(torch.int32) * 2

    out = bytes_of(SIZE + 3)[3:] if given_out else None
    got = torch.compile(doubled, fullgraph=True, backend="aot_eager")(scales, out).cpu().numpy()
    active = [0, 2] if routed else [0, 1, 2]
    assert (got[active] == stack.scales[active].astype(np.int32) * 2).all()


@pytest.mark.slow
def test_the_operator_is_sound(stack: Stack) -> None:
    """Torch's own check of a custom operator: schema, fake implementation, and its behaviour when traced."""
    tables = prepared(stack)._tables
    args = (tables.fixed, tables.leads, tables.rest, tables.piece_starts, None, None, 0, None, None, 0, False, 0)
    torch.library.opcheck(
        torch.ops.csf_tool.decompress.default, (*args, bytes_of(SIZE), ROWS, COLS, NVFP4.code_bits, tables.lead_group)
    )


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
@pytest.mark.parametrize(("outside", "tolerance"), [(0.0, 0), (0.002, 0), (0.02, 0.01), (0.2, 0.01)])
def test_the_size_of_a_prepared_stack_is_known_beforehand(fmt: CsfFormat, outside: float, tolerance: float) -> None:
    """To the byte without leads; with them, within a hundredth where exceptions lie anywhere alike."""
    stack = random_stack(fmt, 5, 160, 40, outside)
    counts = [len(words) for words in stack.exceptions]
    found = prepared(stack)
    assert (found._tables.lead_group > 0) == (tolerance > 0)
    assert prepared_bytes(fmt, 160, 40, counts) == pytest.approx(found.nbytes, rel=tolerance, abs=0)
