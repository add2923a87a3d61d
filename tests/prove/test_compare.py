"""Comparing tensors byte by byte, and saying where they first differ."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from csf_tool.checkpoint.logical import LogicalTensor, logical_tensors
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.streams import Readers
from csf_tool.errors import CheckpointError, StreamError
from csf_tool.prove.compare import DenseReader, TensorComparison, mismatch, place_of
from tests.building import MXFP4, NVFP4, Tensor, compressed, layer, streams, write_shard


def stored(folder: Path, *tensors: Tensor) -> dict[str, LogicalTensor]:
    """The dense tensors of a file with these tensors."""
    return logical_tensors(open_checkpoint(write_shard(folder / "model.safetensors", list(tensors))))


def tensor(folder: Path, dtype: str, shape: tuple[int, ...], data: bytes) -> LogicalTensor:
    return stored(folder, Tensor("t", dtype, shape, data))["t"]


def compare(tensor: LogicalTensor, ours: bytes, theirs: bytes, step: int = 1 << 20) -> str | None:
    comparison = TensorComparison(tensor)
    for at in range(0, len(ours), step):
        comparison.update(ours[at : at + step], theirs[at : at + step])
    result = comparison.result()
    return str(result) if result else None


def test_equal_bytes_are_equal_even_where_floats_are_not(tmp_path: Path) -> None:
    nan = b"\x7f\xff"
    assert compare(tensor(tmp_path, "F8_E4M3", (2,), nan), nan, nan) is None


def test_minus_zero_is_not_zero(tmp_path: Path) -> None:
    zero, minus = bytes(8), b"\0\0\0\0\0\0\0\x80"
    found = compare(tensor(tmp_path, "F32", (2,), zero), minus, zero)
    assert found == "differs first at element 1; wrong bytes: 1 of 8 (12.5%)"


@pytest.mark.parametrize("step", [1, 3, 7, 100])
def test_the_first_place_and_the_share_are_the_same_in_any_pieces(tmp_path: Path, step: int) -> None:
    ours, theirs = bytearray(24), bytearray(24)
    theirs[13] = theirs[14] = theirs[22] = 1
    found = compare(tensor(tmp_path, "U8", (4, 6), bytes(24)), bytes(ours), bytes(theirs), step)
    assert found == "differs first at row 2, column 1; wrong bytes: 3 of 24 (12.5%)"


@pytest.mark.parametrize(
    ("dtype", "shape", "offset", "place"),
    [
        ("U8", (4, 6), 23, "row 3, column 5"),
        ("BF16", (4, 6), 13, "row 1, column 0"),
        ("F32", (2, 3, 4), 4 * 17 + 3, "row 4, column 1"),
        ("F32", (5,), 9, "element 2"),
        ("F32", (), 3, "byte 3"),
        ("F4", (2, 8), 5, "byte 5"),
    ],
)
def test_places(tmp_path: Path, dtype: str, shape: tuple[int, ...], offset: int, place: str) -> None:
    bits = {"U8": 8, "BF16": 16, "F32": 32, "F4": 4}[dtype]
    for n in shape:
        bits *= n
    assert place_of(tensor(tmp_path, dtype, shape, bytes(bits // 8)), offset) == place


def test_the_place_in_a_tensor_of_unknown_dtype_is_its_byte(tmp_path: Path) -> None:
    assert place_of(tensor(tmp_path, "F6_X", (2, 2), b"abc"), 2) == "byte 2"


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    a = tensor(tmp_path / "a", "U8", (2, 3), bytes(6))
    b = tensor(tmp_path / "b", "U8", (3, 2), bytes(6))
    c = tensor(tmp_path / "c", "BF16", (2, 3), bytes(12))
    d = tensor(tmp_path / "d", "I8", (2, 3), bytes(6))
    assert mismatch(a, b) == "shape is [2, 3], but the reference has [3, 2]"
    assert mismatch(a, c) == "U8 takes 6 bytes, but the reference's BF16 takes 12"
    assert mismatch(a, a) is None
    assert mismatch(a, d) is None


@pytest.fixture
def reader() -> Iterator[DenseReader]:
    with DenseReader() as opened:
        yield opened


@pytest.mark.parametrize("codec", [NVFP4, MXFP4], ids=lambda c: c.name)
def test_any_range_of_dense_bytes_stored_or_decoded(tmp_path: Path, reader: DenseReader, codec: object) -> None:
    known = NVFP4 if codec is NVFP4 else MXFP4
    dense = layer(0, known)
    found = stored(tmp_path, *compressed(dense, known))
    for wanted in dense:
        assert reader.read(found[wanted.name], 0, len(wanted.data)) == wanted.data
        assert reader.read(found[wanted.name], 1, 3) == wanted.data[1:3]


def test_broken_streams_cannot_be_read(tmp_path: Path, reader: DenseReader) -> None:
    scale = layer(0, NVFP4)[3]
    fixed, exceptions = streams(scale, NVFP4)
    broken = Tensor(fixed.name, fixed.dtype, fixed.shape, b"\xff" + fixed.data[1:])
    found = stored(tmp_path, broken, exceptions)
    expected = rf"^model\.safetensors: {scale.name}: row 0: base 255 is above 240"
    with pytest.raises(StreamError, match=expected):
        reader.read(found[scale.name], 0, 1)


def test_an_exception_inside_its_window_can_be_decoded(tmp_path: Path) -> None:
    scale = Tensor("x.weight_scale", "F8_E4M3", (16, 4), bytes([0x30]) * 64)
    fixed, exceptions = streams(scale, NVFP4)
    odd = Tensor(exceptions.name, "U32", (1,), b"\x02\0\0\x2f")
    path = write_shard(tmp_path / "model.safetensors", [fixed, odd])
    [plane] = open_checkpoint(path).planes
    with Readers() as readers:
        read = readers.streams(plane).require_decodable()
    assert [(fault.decodable, fault.row, fault.col) for fault in read.faults()] == [(True, 0, 2)]


def test_a_shard_that_shrank_since_it_was_opened(tmp_path: Path, reader: DenseReader) -> None:
    found = stored(tmp_path, Tensor("a", "U8", (100,), bytes(100)))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-60])
    assert len(reader.read(found["a"], 0, 40)) == 40
    with pytest.raises(CheckpointError, match=r"model\.safetensors: ends at byte \d+, 10 bytes short"):
        reader.read(found["a"], 0, 50)


def test_shards_are_opened_once(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_shard(tmp_path / "model.safetensors", [Tensor("a", "U8", (1,), b"x")]))
    with Readers() as readers:
        assert readers[checkpoint.shards[0]] is readers[checkpoint.shards[0]]
