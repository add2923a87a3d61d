"""Any stack, layout, workspace and routing at once: what one decode writes, and every byte that it must not."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from csf_tool import ScaleLayout
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.gpu.layouts import DenseLayout
from csf_tool.gpu.scales import decompress_csf_scales, prepare_csf_scales
from tests.gpu.stacks import DEVICE, Bytes, Stack, all_exceptions, on_device, prepared, random_stack
from tests.gpu.test_layouts import expected

POISON = 0xA5


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    """Few rows and many, ragged rows and whole chunks, one expert and more than a block; no exceptions, some, only."""
    fmt: CsfFormat = draw(st.sampled_from([NVFP4, MXFP4]))
    rows = 16 * draw(st.sampled_from([1, 2, 3, 4, 5, 8, 9, 12, 16]))
    cols = fmt.column_multiple * draw(st.integers(1, 9))
    experts = draw(st.sampled_from([1, 2, 5, 33, 70] if rows < 64 else [1, 2, 5]))
    outside = draw(st.sampled_from([0.0, 0.01, 0.3, None]))
    if outside is None:
        return all_exceptions(fmt, experts, rows, cols)
    return random_stack(fmt, experts, rows, cols, outside, draw(st.integers(0, 99)))


@st.composite
def tables(draw: st.DrawFn) -> Bytes:
    """Any bytes, and among them a run that is merely shifted, up or down: of none, some or all that scales have."""
    table = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, 256, np.uint8)
    low = draw(st.sampled_from([0, 1, 8, 100]))
    length = draw(st.sampled_from([0, 20, 119, 127, 256])) if low else draw(st.sampled_from([0, 127, 256]))
    bytes_ = np.arange(low, min(256, low + length))
    by = draw(st.integers(-low, 256 - (low + len(bytes_))))
    table[bytes_] = bytes_ + by
    return table


@st.composite
def layouts(draw: st.DrawFn, rows: int, cols: int) -> ScaleLayout:
    """Rows as they are, with halves swapped, interleaved or in any order; bytes as they are or by a table."""
    forms: list[DenseLayout] = ["linear", "swizzled", "marlin"]
    if rows % 64 or cols == 1:
        forms.remove("marlin")
    random = np.random.default_rng(draw(st.integers(0, 99)))
    table = on_device(draw(tables())) if draw(st.booleans()) else None
    form = draw(st.sampled_from(forms))
    if draw(st.booleans()):
        dtype = draw(st.sampled_from([torch.int32, torch.int64]))
        return ScaleLayout(form, row_order=on_device(random.permutation(rows)).to(dtype), table=table)
    turns = [0, *(n for n in range(1, rows // 2 + 1) if rows // 2 % n == 0)]
    return ScaleLayout(form, swap_halves=draw(st.booleans()), interleave=draw(st.sampled_from(turns)), table=table)


@dataclass(frozen=True)
class Routed:
    """A routing as arguments, and the experts that it means."""

    arguments: dict[str, object]
    active: set[int]


INTEGERS = st.sampled_from([torch.int32, torch.int64])


@st.composite
def routings(draw: st.DrawFn, experts: int) -> Routed:
    """Everyone; starts that begin anywhere, stand still, rise and fall; choices of any number, most of them foreign."""
    kind = draw(st.sampled_from(["everyone", "starts", "choices"]))
    if kind == "everyone":
        return Routed({}, set(range(experts)))
    dtype = draw(INTEGERS)
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    random = np.random.default_rng(draw(st.integers(0, 99)))
    if kind == "starts":
        first = draw(st.sampled_from([0, 7, -3, most - 1000, least + 1000]))
        starts = [first + int(n) for n in random.choice([0, 0, 1, 3, -1], experts + 1).cumsum()]
        active = {i for i in range(experts) if starts[i] != starts[i + 1]}
        return Routed({"expert_start": torch.tensor(starts, dtype=dtype, device=DEVICE)}, active)
    offset = draw(st.sampled_from([0, 5, -5, 2**31 - 1, -(2**31)]))
    ours = [offset + i for i in range(experts) if random.random() < 0.5]
    foreign = [least, most, offset - 1, offset + experts, *(offset + (n << 32) for n in (-1, 1, 2**30))]
    pool = [n for n in (*ours, *foreign, -1) if least <= n <= most]
    shape = draw(st.sampled_from([(), (0,), (0, 8), (1,), (127,), (64, 2), (129,), (3, 171), (350, 8)]))
    chosen = [pool[i] for i in random.integers(0, len(pool), int(np.prod(shape)))]
    ids = torch.tensor(chosen, dtype=dtype, device=DEVICE).reshape(shape)
    active = {n - offset for n in chosen} & set(range(experts))
    return Routed({"topk_ids": ids, "expert_offset": offset}, active)


BYTES = [torch.uint8, torch.int8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_decode(data: st.DataObject) -> None:
    stack = data.draw(stacks())
    experts = len(stack.scales)
    layout = data.draw(layouts(stack.rows, stack.cols))
    routed = data.draw(routings(experts))
    want = expected(stack, layout)
    want[[i for i in range(experts) if i not in routed.active]] = POISON
    before, after = data.draw(st.sampled_from([0, 1, 2, 3, 4, 13])), data.draw(st.sampled_from([0, 1, 100]))
    memory = torch.full((before + want.size + after,), POISON, dtype=torch.uint8, device=DEVICE)
    out = memory[before:].view(data.draw(st.sampled_from(BYTES)))
    dense = decompress_csf_scales(prepared(stack), out=out, layout=layout, **routed.arguments)  # type: ignore[arg-type]
    found = memory.cpu().numpy()
    assert found[before : before + want.size].tobytes() == want.tobytes()
    assert (found[:before] == POISON).all()
    assert (found[before + want.size :] == POISON).all()
    assert dense.data_ptr() == out.data_ptr()


@pytest.mark.slow
def test_threads_share_a_stack() -> None:
    stack = random_stack(NVFP4, 4, 64, 8, 0.1)
    scales = prepared(stack)

    def wrong_bytes(expert: int) -> int:
        out = torch.full((stack.scales.size,), POISON, dtype=torch.uint8, device=DEVICE)
        for _ in range(3):
            decompress_csf_scales(scales, out=out, topk_ids=torch.tensor([expert], device=DEVICE))
        want = np.full_like(stack.scales, POISON)
        want[expert] = stack.scales[expert]
        return int((out.cpu().numpy().reshape(want.shape) != want).sum())

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(wrong_bytes, [0, 1, 2, 3] * 2)] == [0] * 8


def test_a_stack_without_experts_is_decoded_by_any_routing() -> None:
    empty = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    scales = prepare_csf_scales(NVFP4, empty.to(torch.uint8), empty, [], rows=16, cols=4)
    ids = torch.zeros(200, dtype=torch.int32, device=DEVICE)
    routings: tuple[dict[str, Any], ...] = (
        {},
        {"expert_start": ids[:1]},
        {"topk_ids": ids[:8]},
        {"topk_ids": ids},
        {"topk_ids": empty},
    )
    for routing in routings:
        assert decompress_csf_scales(scales, **routing).shape == (0, 16, 4)
