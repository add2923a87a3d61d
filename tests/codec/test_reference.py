"""The numpy codec against golden streams, hand-made faults, and round trips."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from csf_tool.codec import reference
from csf_tool.codec.formats import FORMATS, MXFP4, NVFP4, CsfFormat
from csf_tool.errors import StreamError
from tests import oracle
from tests.building import CODECS
from tests.codec.vectors import Vector, broken, golden


@pytest.mark.parametrize("vector", golden(), ids=str)
def test_golden_streams_decode_to_their_scales(vector: Vector) -> None:
    dense = reference.decode(vector.fmt, vector.fixed, vector.exceptions, rows=vector.rows, cols=vector.cols)
    assert vector.scales is not None
    assert dense.tobytes() == vector.scales.tobytes()
    assert reference.check(vector.fmt, vector.fixed, vector.exceptions, rows=vector.rows, cols=vector.cols) == []


@pytest.mark.parametrize("vector", golden(), ids=str)
def test_golden_scales_encode_to_their_streams(vector: Vector) -> None:
    assert vector.scales is not None
    fixed, exceptions = reference.encode(vector.fmt, vector.scales)
    assert fixed.tobytes() == vector.fixed.tobytes()
    assert exceptions.tobytes() == vector.exceptions.tobytes()


FIRST_PLACE = {
    "padding_bit_set": "row 0: bits past the last column are not zero",
    "base_above_254": "is above 254",
    "base_above_240": "is above 240",
    "positions_not_sorted": "positions must strictly increase",
    "position_repeated": "positions must strictly increase",
    "position_past_end": "is outside the plane of 768 scales",
    "fixed_truncated": "fixed stream has 384 bytes, but a 32x24 plane needs 416",
    "fixed_one_row_short": "fixed stream has 208 bytes, but a 32x24 plane needs 416",
    "exception_inside_window": "is inside its row's window",
}


@pytest.mark.parametrize("vector", broken(), ids=str)
def test_broken_streams_are_named(vector: Vector) -> None:
    faults = reference.check(vector.fmt, vector.fixed, vector.exceptions, rows=vector.rows, cols=vector.cols)
    assert [fault.decodable for fault in faults] == [vector.decodable]
    assert FIRST_PLACE[vector.name] in str(faults[0])
    assert faults[0].count >= 1


def test_decode_of_an_exception_inside_its_window_is_exact() -> None:
    odd = next(v for v in broken() if v.name == "exception_inside_window")
    dense = reference.decode(odd.fmt, odd.fixed, odd.exceptions, rows=odd.rows, cols=odd.cols)
    assert dense.tobytes() == independently(odd.fmt, odd.fixed, odd.exceptions, odd.rows, odd.cols)


@pytest.mark.parametrize("name", ["fixed_truncated", "fixed_one_row_short", "position_past_end"])
def test_decode_refuses_streams_that_do_not_fit(name: str) -> None:
    vector = next(v for v in broken() if v.name == name)
    with pytest.raises(StreamError):
        reference.decode(vector.fmt, vector.fixed, vector.exceptions, rows=vector.rows, cols=vector.cols)


def test_all_faults_of_a_plane_are_named_together() -> None:
    fixed = np.zeros((1, NVFP4.slab_bytes(8)), np.uint8)
    fixed[0, [2, 5]] = 241
    exceptions = np.array([5, 4, 128], "<u4")
    problems = [str(f) for f in reference.check(NVFP4, fixed, exceptions, rows=16, cols=8)]
    assert problems == [
        "row 2: base 241 is above 240 (and 1 more)",
        "exception 2: position 128 is outside the plane of 128 scales",
        "exception 1: position 4 is less than the one before, 5; positions must strictly increase",
    ]


@pytest.mark.parametrize(
    ("fmt", "rows", "cols"),
    [(NVFP4, 20, 8), (NVFP4, 32, 9), (NVFP4, 0, 8), (MXFP4, 16, 0), (NVFP4, 8208, 2048)],
)
def test_impossible_geometry(fmt: CsfFormat, rows: int, cols: int) -> None:
    empty = np.empty(0, np.uint8)
    assert len(reference.check(fmt, empty, np.empty(0, "<u4"), rows=rows, cols=cols)) == 1
    with pytest.raises(StreamError):
        reference.encode(fmt, np.zeros((rows, cols), np.uint8))
    with pytest.raises(StreamError):
        reference.decode(fmt, empty, np.empty(0, "<u4"), rows=rows, cols=cols)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_a_plane_of_exactly_the_most_scales(fmt: CsfFormat) -> None:
    scales = np.full((8192, 2048), 7, np.uint8)
    scales[0, 0] = 255
    scales[-1, -1] = 200
    fixed, exceptions = reference.encode(fmt, scales)
    assert exceptions.tolist() == [255 << 24, 200 << 24 | (1 << 24) - 1]
    assert (reference.decode(fmt, fixed, exceptions, rows=8192, cols=2048) == scales).all()


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("value", [0x00, 0x7F, 0x80, 0xEF, 0xF0, 0xF1, 0xFE, 0xFF])
def test_constant_rows_need_no_exceptions(fmt: CsfFormat, value: int) -> None:
    fixed, exceptions = reference.encode(fmt, np.full((16, 10), value, np.uint8))
    assert len(exceptions) == 0
    assert (reference.decode(fmt, fixed, exceptions, rows=16, cols=10) == value).all()


def independently(fmt: CsfFormat, fixed: NDArray[np.uint8], words: NDArray[np.uint32], rows: int, cols: int) -> bytes:
    """The scales by the oracle, which knows the codecs by their names."""
    codec = next(codec for codec in CODECS if codec.name == fmt.name)
    return oracle.decode(fixed.tobytes(), words.tobytes(), rows, cols, codec)


@st.composite
def planes(draw: st.DrawFn) -> tuple[CsfFormat, NDArray[np.uint8]]:
    """Planes of any geometry whose scales lie in a band of bytes, with from none to all of them astray."""
    fmt = draw(st.sampled_from(FORMATS))
    rows = 16 * draw(st.integers(1, 5))
    cols = fmt.column_multiple * draw(st.integers(1, 70))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    width = draw(st.sampled_from([1, 2, 3, 16, 17, 40, 256]))
    low = draw(st.integers(0, 256 - width))
    scales = rng.integers(low, low + width, (rows, cols)).astype(np.uint8)
    astray = rng.random((rows, cols)) < draw(st.sampled_from([0.0, 0.001, 0.01, 0.3, 1.0]))
    scales[astray] = rng.integers(0, 256, int(astray.sum()))
    return fmt, scales


@settings(deadline=None, max_examples=150)
@given(planes())
def test_round_trip(plane: tuple[CsfFormat, NDArray[np.uint8]]) -> None:
    fmt, scales = plane
    rows, cols = scales.shape
    fixed, exceptions = reference.encode(fmt, scales)
    assert fixed.nbytes == fmt.fixed_bytes(rows, cols)
    assert reference.check(fmt, fixed, exceptions, rows=rows, cols=cols) == []
    assert reference.decode(fmt, fixed, exceptions, rows=rows, cols=cols).tobytes() == scales.tobytes()
    assert independently(fmt, fixed, exceptions, rows, cols) == scales.tobytes()


@settings(deadline=None, max_examples=60)
@given(planes())
def test_every_row_has_the_lowest_best_base(plane: tuple[CsfFormat, NDArray[np.uint8]]) -> None:
    fmt, scales = plane
    for row, base in zip(scales[:4].tolist(), reference.row_bases(fmt, scales[:4]).tolist(), strict=True):
        covered = [sum(b <= value < b + fmt.window for value in row) for b in range(fmt.max_base + 1)]
        assert base == covered.index(max(covered))


def test_exception_words_are_read_unsigned_and_little_endian_at_any_offset() -> None:
    raw = b"\x00" + bytes([9, 0, 0, 0xFE])
    assert reference.exception_words(memoryview(raw)[1:]).tolist() == [0xFE000009]
    with pytest.raises(StreamError, match="5 bytes, not a multiple of 4"):
        reference.exception_words(raw)


def stacks() -> list[list[Vector]]:
    """Golden planes by format and geometry, each with another after it and before it."""
    kinds: dict[tuple[str, int, int], list[Vector]] = {}
    for v in golden():
        kinds.setdefault((v.fmt.name, v.rows, v.cols), []).append(v)
    return [[*kind, kind[0]] for kind in kinds.values()]


def decoded_together(stack: list[Vector]) -> NDArray[np.uint8] | None:
    """The scales of planes decoded as one; None where that is refused."""
    first = stack[0]
    out = np.full((len(stack), first.rows, first.cols), 0xA5, np.uint8)
    fixed = np.stack([v.fixed.reshape(-1) for v in stack])
    words = np.concatenate([v.exceptions for v in stack])
    counts = [len(v.exceptions) for v in stack]
    return out if reference.decode_stack(first.fmt, fixed, words, counts, out) else None


@pytest.mark.parametrize("stack", stacks(), ids=lambda stack: str(stack[0]))
def test_planes_of_one_geometry_decode_together(stack: list[Vector]) -> None:
    found = decoded_together(stack)
    assert found is not None
    for plane, vector in zip(found, stack, strict=True):
        assert vector.scales is not None
        assert plane.tobytes() == vector.scales.tobytes()


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("vector", [v for v in broken() if not v.name.startswith("fixed_")], ids=str)
def test_one_broken_plane_of_several_is_found(vector: Vector, place: int) -> None:
    """Also where its exceptions would be in order, or inside, as those of the plane after it."""
    fmt, rows, cols = vector.fmt, vector.rows, vector.cols
    sound = np.random.default_rng(5).integers(100, 103, (rows, cols), np.uint8)
    sound[3, 5] = 200
    fixed, exceptions = reference.encode(fmt, sound)
    good = Vector(fmt, "sound", rows, cols, fixed, exceptions, sound)
    stack = [good, good]
    stack.insert(place, vector)
    found = decoded_together(stack)
    if not vector.decodable:
        assert found is None
        return
    assert found is not None
    assert found[place].tobytes() == independently(fmt, vector.fixed, vector.exceptions, rows, cols)
    assert all(found[i].tobytes() == sound.tobytes() for i in range(3) if i != place)
