"""Layouts of engines, through numpy and through Triton: rows in other orders, Marlin's places, bytes by a table.

What is expected is written as the engines write it: whole planes reshaped and permuted. The numpy decoder places scale
after scale instead, by the formula of docs/format.md.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from csf_tool import ScaleLayout, ScaleWorkspace, decompress_nvfp4_csf_scales
from csf_tool.codec import reference
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.codec.tiles import padded_shape
from csf_tool.gpu.layouts import DenseLayout
from csf_tool.gpu.scales import decompress_csf_scales
from tests.codec.vectors import Vector, golden
from tests.gpu.stacks import DEVICE, Bytes, Stack, all_exceptions, encoded, on_device, prepared, random_stack
from tests.swizzled import swizzle

POISON = 0xA5

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


def marlin(plane: Bytes) -> Bytes:
    """As vLLM does it: `marlin_permute_scales`, then what both functions that process FP4 scales begin with."""
    permutation = [i + 8 * j for i in range(8) for j in range(8)]
    permuted = plane.T.reshape(-1, 64)[:, permutation]
    return permuted.reshape(-1, 4)[:, [0, 2, 1, 3]].reshape(plane.T.shape)


def interleaved(plane: Bytes, rows: int) -> Bytes:
    """As FlashInfer's CuteDSL kernels want gate and up: `interleave_linear_and_gate`."""
    return plane.reshape(2, -1, rows, plane.shape[1]).swapaxes(0, 1).reshape(plane.shape)


FORMS: dict[DenseLayout, Callable[[Bytes], Bytes]] = {
    "linear": lambda plane: plane,
    "swizzled": swizzle,
    "marlin": marlin,
}


def expected(stack: Stack, layout: ScaleLayout) -> Bytes:
    """Every plane as the engine would make it of dense scales, `[experts, bytes]`."""
    planes = []
    for plane in stack.scales:
        if layout.swap_halves:
            plane = np.concatenate(np.split(plane, 2)[::-1])
        if layout.interleave:
            plane = interleaved(plane, layout.interleave)
        if layout.row_order is not None:
            plane = plane[layout.row_order.cpu().numpy()]
        if layout.table is not None:
            plane = layout.table.cpu().numpy()[plane]
        planes.append(FORMS[layout.form](plane).reshape(-1))
    return np.stack(planes)


def place(form: DenseLayout, rows: int, cols: int, row: int, col: int) -> int:
    """The byte of a plane at which a scale lies."""
    if form == "linear":
        return row * cols + col
    if form == "swizzled":
        tile = row // 128 * -(-cols // 4) + col // 4
        return tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + col % 4
    i = row % 8 * 8 + row % 64 // 8
    return col * rows + row // 64 * 64 + (i & ~3) + (0, 2, 1, 3)[i % 4]


def by_numpy(stack: Stack, layout: ScaleLayout, out: Bytes, active: list[int]) -> None:
    rows, cols = stack.rows, stack.cols
    half, turns = rows // 2, layout.interleave
    size = len(out) // len(stack.scales)
    for plane in active:
        dense = reference.decode(stack.fmt, stack.fixed[plane], stack.exceptions[plane], rows=rows, cols=cols)
        view = out[plane * size : (plane + 1) * size]
        view[:] = 0
        for row in range(rows):
            to = (row + half) % rows if layout.swap_halves else row
            if turns:
                to = (to % half // turns * 2 + to // half) * turns + to % half % turns
            if layout.row_order is not None:
                to = layout.row_order.tolist().index(row)
            for col in range(cols):
                value = int(dense[row, col])
                view[place(layout.form, rows, cols, to, col)] = value if layout.table is None else layout.table[value]


def by_triton(stack: Stack, layout: ScaleLayout, out: Bytes, active: list[int]) -> None:
    offset = out.ctypes.data % 16
    buffer = torch.empty(offset + len(out), dtype=torch.uint8, device=DEVICE)[offset:]
    if DEVICE == "cpu":
        buffer = torch.from_numpy(out)
    else:
        buffer.copy_(torch.from_numpy(out))
    everyone = len(active) == len(stack.scales)
    ids = None if everyone else torch.tensor(active, device=DEVICE)
    decompress_csf_scales(prepared(stack), out=buffer, layout=layout, topk_ids=ids)
    if DEVICE != "cpu":
        out[:] = buffer.cpu().numpy()


Decode = Callable[[Stack, ScaleLayout, Bytes, list[int]], None]


@pytest.fixture(params=[by_numpy, by_triton])
def decode(request: pytest.FixtureRequest) -> Decode:
    decode: Decode = request.param
    return decode


def check(decode: Decode, stack: Stack, layout: ScaleLayout, offset: int = 0, active: list[int] | None = None) -> None:
    """Decode into a poisoned workspace that is larger than it must be, and compare every byte of it."""
    want = expected(stack, layout)
    active = list(range(len(want))) if active is None else active
    want[[plane for plane in range(len(want)) if plane not in active]] = POISON
    buffer = np.full(want.size + 132, POISON, np.uint8)
    begin = -buffer.ctypes.data % 16 + offset
    workspace = buffer[begin : begin + want.size + 100]
    decode(stack, layout, workspace[: want.size] if decode is by_numpy else workspace, active)
    assert workspace[: want.size].tobytes() == want.tobytes()
    assert (workspace[want.size :] == POISON).all()


def table() -> torch.Tensor:
    """A table in which no byte stays, and none gives 0: that padding stays 0 must not come from it."""
    return on_device(np.random.default_rng(5).integers(1, 256, 256, np.uint8))


def shuffled(rows: int) -> torch.Tensor:
    return on_device(np.random.default_rng(rows).permutation(rows))


def trtllm(rows: int) -> torch.Tensor:
    """FlashInfer's order for TRT-LLM's gated kernels: gate and up take turns, then blocks of 32 rows are shuffled.

    Row `r` of a block goes to place `r % 4 * 8 + r // 4` of it.
    """
    turns = np.arange(rows).reshape(2, -1).T.reshape(-1)
    row = np.arange(rows)
    place = row // 32 * 32 + row % 4 * 8 + row % 32 // 4
    shuffled = np.empty(rows, np.int64)
    shuffled[place] = row
    return on_device(turns[shuffled])


LAYOUTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "as stored": lambda _: {},
    "swapped": lambda _: {"swap_halves": True},
    "row by row": lambda _: {"interleave": 1},
    "by eights": lambda _: {"interleave": 8},
    "swapped, by halves' quarters": lambda rows: {"swap_halves": True, "interleave": rows // 8},
    "shuffled": lambda rows: {"row_order": shuffled(rows)},
    "shuffled, 32 bits": lambda rows: {"row_order": shuffled(rows).int()},
    "TRT-LLM's": lambda rows: {"row_order": trtllm(rows)},
    "by a table": lambda _: {"table": table()},
    "swapped, by a table": lambda _: {"swap_halves": True, "table": table()},
}

BOTH = pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])

GEOMETRIES = [
    (NVFP4, 64, 8), (NVFP4, 192, 6), (NVFP4, 128, 40), (NVFP4, 512, 8),
    (MXFP4, 64, 7), (MXFP4, 192, 36), (MXFP4, 256, 5),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(("fmt", "rows", "cols"), GEOMETRIES)
def test_geometries(
    decode: Decode, fmt: CsfFormat, rows: int, cols: int, options: Callable[[int], dict[str, Any]], form: DenseLayout
) -> None:
    """Rows of whole chunks, of whole words and ragged ones; rows and halves that fill 128 and that do not."""
    check(decode, random_stack(fmt, 2, rows, cols, 0.03), ScaleLayout(form, **options(rows)))


@BOTH
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"swap_halves": True}, {"interleave": 8}], ids=str)
def test_a_plane_of_exceptions(decode: Decode, form: DenseLayout, options: dict[str, Any], fmt: CsfFormat) -> None:
    check(decode, all_exceptions(fmt, 2, 64, 6), ScaleLayout(form, table=table(), **options))


SHIFTS = {"as they are": (0, 255, 0), "up": (8, 135, 120), "down": (100, 250, -100), "few": (40, 70, 33)}
"""The first and the last byte that a table shifts, and by how much; its other entries are any."""


@BOTH
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strays", [0.0, 0.02])
@pytest.mark.parametrize(("low", "high", "shift"), SHIFTS.values(), ids=SHIFTS.keys())
def test_a_table_that_shifts_most_bytes(
    decode: Decode, low: int, high: int, shift: int, strays: float, form: DenseLayout, fmt: CsfFormat
) -> None:
    """Bytes at both ends of what is shifted, and with strays those beside them, too, which have others."""
    entries = np.random.default_rng(7).integers(1, 256, 256, np.uint8)
    entries[low : high + 1] = np.arange(low, high + 1) + shift
    rng = np.random.default_rng(8)
    base = rng.integers(low, high + 2 - fmt.window, (2, 64, 1))
    base[0, :2, 0] = low, high + 1 - fmt.window
    scales = (base + rng.integers(0, fmt.window, (2, 64, 8))).astype(np.uint8)
    scales[0, :2, 0] = low, high
    stray = rng.random(scales.shape) < strays
    scales[stray] = rng.choice([max(low - 1, 0), min(high + 1, 255), 0, 255], stray.sum())
    check(decode, encoded(fmt, scales), ScaleLayout(form, table=on_device(entries)))


@pytest.mark.parametrize("vector", [v for v in golden() if not v.rows % 64], ids=str)
def test_golden_vectors(decode: Decode, vector: Vector) -> None:
    assert vector.scales is not None
    stack = Stack(vector.fmt, [vector.fixed], [vector.exceptions], vector.scales.reshape(1, vector.rows, vector.cols))
    forms: list[DenseLayout] = ["linear", "marlin"] if vector.cols > 1 else ["linear"]
    for form in forms:
        check(decode, stack, ScaleLayout(form, swap_halves=True))


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("offset", [1, 2, 4])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"swap_halves": True}], ids=str)
def test_workspace_at_any_offset(
    decode: Decode, form: DenseLayout, options: dict[str, Any], offset: int, fmt: CsfFormat
) -> None:
    check(decode, random_stack(fmt, 2, 64, 8, 0.03), ScaleLayout(form, **options), offset)


@BOTH
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"interleave": 16}], ids=str)
def test_skipped_experts_are_untouched(
    decode: Decode, form: DenseLayout, options: dict[str, Any], fmt: CsfFormat
) -> None:
    check(decode, random_stack(fmt, 5, 64, 8, 0.03), ScaleLayout(form, **options), active=[1, 4])


def test_a_name_stands_for_the_layout_without_more() -> None:
    stack = random_stack(NVFP4, 2, 64, 12, 0.03)
    scales = prepared(stack)
    for form in FORMS:
        dense = decompress_nvfp4_csf_scales(scales, layout=form)
        assert dense.shape == scales.dense_shape(form) == scales.dense_shape(ScaleLayout(form))
        assert dense.view(torch.uint8).cpu().numpy().tobytes() == expected(stack, ScaleLayout(form)).tobytes()
    assert scales.dense_shape("marlin") == (2, 12, 64)
    assert scales.dense_shape("swizzled") == (2, *padded_shape(64, 12))
    workspace = ScaleWorkspace(scales, layout=ScaleLayout("marlin", swap_halves=True))
    want = expected(stack, workspace.layout)  # type: ignore[arg-type]
    assert workspace.decompress(scales).view(torch.uint8).cpu().numpy().tobytes() == want.tobytes()


REFUSALS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "form": ({"form": "blocked"}, ValueError, "layout must be"),
    "negative": ({"interleave": -1}, ValueError, "interleave is -1"),
    "interleave kind": ({"interleave": 16.0}, TypeError, "interleave must be int, not float"),
    "swap kind": ({"swap_halves": "up"}, TypeError, "swap_halves must be bool, not str"),
    "uneven": ({"interleave": 24}, ValueError, "halves of 64 rows cannot take turns by 24"),
    "two orders": ({"swap_halves": True, "row_order": torch.arange(64)}, ValueError, "give row_order, or"),
    "row twice": ({"row_order": torch.zeros(64, dtype=torch.int64)}, ValueError, "each row once"),
    "row below": ({"row_order": torch.arange(-1, 63)}, ValueError, "each row once"),
    "shape": ({"row_order": torch.arange(64).view(8, 8)}, ValueError, "each row once"),
    "fewer rows": ({"row_order": torch.arange(48, device=DEVICE)}, ValueError, "has 48 rows, the planes have 64"),
    "order kind": ({"row_order": list(range(64))}, TypeError, "must be a tensor of torch.int32 or torch.int64"),
    "table kind": ({"table": torch.zeros(256)}, TypeError, "table must be a tensor of torch.uint8, not torch.float32"),
    "table size": ({"table": torch.zeros(128, dtype=torch.uint8)}, ValueError, r"table must be \[256\]"),
    "device": ({"table": torch.zeros(256, dtype=torch.uint8, device="meta")}, ValueError, "table is on meta"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "error", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_is_no_layout_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    scales = prepared(random_stack(NVFP4, 2, 64, 8, 0.0))
    with pytest.raises(error, match=message):
        decompress_nvfp4_csf_scales(scales, layout=ScaleLayout(**options))


def test_planes_that_marlin_has_no_place_for_are_refused() -> None:
    with pytest.raises(ValueError, match="takes rows by 64, the planes have 48"):
        decompress_nvfp4_csf_scales(prepared(random_stack(NVFP4, 2, 48, 8, 0.0)), layout="marlin")
    with pytest.raises(ValueError, match="one column"):
        decompress_csf_scales(prepared(random_stack(MXFP4, 2, 64, 1, 0.0)), layout="marlin")


@pytest.mark.slow
def test_it_compiles_as_one_graph() -> None:
    stack = random_stack(NVFP4, 2, 64, 8, 0.03)
    scales, layout = prepared(stack), ScaleLayout("marlin", row_order=shuffled(64), table=table())

    def doubled() -> torch.Tensor:
        return decompress_nvfp4_csf_scales(scales, layout=layout).view(torch.uint8).int() * 2

    got = torch.compile(doubled, fullgraph=True, backend="aot_eager")().cpu().numpy()
    assert np.array_equal(got.reshape(2, -1), expected(stack, layout).astype(np.int32) * 2)
