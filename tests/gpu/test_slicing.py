"""Cutting and joining compressed stacks: what comes out decodes to the same cut of the dense scales."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from csf_tool import decompress_csf_scales
from csf_tool.codec import reference
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.gpu.scales import prepared
from csf_tool.gpu.slicing import RowStreams, join_rows
from csf_tool.gpu.streams import CsfStreams
from tests.gpu.stacks import Bytes, Stack, all_exceptions, on_device, random_stack

FORMATS = (NVFP4, MXFP4)


def name_of(fmt: CsfFormat) -> str:
    return fmt.name


def raw(stack: Stack) -> RowStreams:
    """The streams of a stack, taken apart."""
    fixed, words = on_device(np.stack(stack.fixed)), on_device(np.concatenate(stack.exceptions).view(np.int32))
    counts = [len(w) for w in stack.exceptions]
    return RowStreams.of(CsfStreams.of(stack.fmt, fixed, words, counts, stack.rows, stack.cols))


def decoded(streams: RowStreams) -> Bytes:
    return decompress_csf_scales(prepared(streams.stack())).view(torch.uint8).cpu().numpy()


def decoded_by_numpy(streams: RowStreams) -> Bytes:
    """What the reference makes of the streams, which must be without a fault that it knows."""
    rows, cols = streams.rows, streams.cols
    planes = []
    for fixed, words in streams.stack().planes():
        plane, own = fixed.cpu().numpy(), words.view(torch.int32).cpu().numpy().view(np.uint32)
        assert [f for f in reference.check(streams.format, plane, own, rows=rows, cols=cols) if not f.decodable] == []
        planes.append(reference.decode(streams.format, plane, own, rows=rows, cols=cols))
    return np.stack(planes)


@pytest.mark.parametrize("fmt", FORMATS, ids=name_of)
@pytest.mark.parametrize("every_scale", [True, False], ids=["all exceptions", "no exceptions"])
def test_taken_apart_and_put_together_a_stack_is_what_it_was(fmt: CsfFormat, every_scale: bool) -> None:
    stack = all_exceptions(fmt, 2, 16, 24) if every_scale else random_stack(fmt, 2, 16, 24, 0.0)
    assert np.array_equal(decoded(raw(stack)), stack.scales)
    assert raw(stack).stack().fixed.cpu().numpy().tobytes() == np.concatenate(stack.fixed).tobytes()


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_cut_of_the_streams_decodes_to_the_cut_of_the_scales(data: st.DataObject) -> None:
    fmt = data.draw(st.sampled_from(FORMATS))
    step = fmt.column_multiple
    rows = 16 * data.draw(st.integers(1, 4))
    cols = step * data.draw(st.integers(1, 20))
    outside = data.draw(st.sampled_from([0.0, 0.02, 0.5]))
    stack = random_stack(fmt, 2, rows, cols, outside, seed=data.draw(st.integers(0, 9)))
    top, bottom = (16 * slab for slab in sorted(data.draw(st.sets(st.integers(0, rows // 16), min_size=2, max_size=2))))
    left, right = (step * c for c in sorted(data.draw(st.sets(st.integers(0, cols // step), min_size=2, max_size=2))))
    cut = raw(stack).take_rows(top, bottom).take_columns(left, right)
    assert np.array_equal(decoded_by_numpy(cut), stack.scales[:, top:bottom, left:right])


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS, ids=name_of)
@pytest.mark.parametrize("outside", [0.0, 0.05])
def test_joined_rows_follow_one_another_or_take_turns(fmt: CsfFormat, outside: float) -> None:
    a, b = (random_stack(fmt, 3, 32, 20, outside, seed=seed) for seed in (1, 2))
    after = join_rows([raw(a), raw(b)])
    assert np.array_equal(decoded(after), np.concatenate([a.scales, b.scales], axis=1))
    turns = join_rows([raw(b), raw(a)], interleave=True)
    assert np.array_equal(decoded(turns)[:, 0::2], b.scales)
    assert np.array_equal(decoded(turns)[:, 1::2], a.scales)


def test_joining_needs_stacks_that_are_alike() -> None:
    a = raw(random_stack(NVFP4, 2, 32, 20, 0.0))
    for other in (random_stack(NVFP4, 2, 32, 18, 0.0), random_stack(NVFP4, 3, 32, 20, 0.0)):
        with pytest.raises(ValueError, match="cannot be joined"):
            join_rows([a, raw(other)])
    with pytest.raises(ValueError, match="cannot be joined"):
        join_rows([a, raw(random_stack(NVFP4, 2, 16, 20, 0.0))], interleave=True)
    assert join_rows([a, raw(random_stack(NVFP4, 2, 16, 20, 0.0))]).rows == 48


def test_what_the_format_cannot_hold_is_refused() -> None:
    streams = raw(random_stack(NVFP4, 1, 32, 20, 0.1))
    with pytest.raises(ValueError, match="8 rows are not a positive multiple of 16"):
        streams.take_rows(0, 8).stack()
    with pytest.raises(ValueError, match="5 columns are not a positive multiple of 2"):
        streams.take_columns(4, 9).stack()
