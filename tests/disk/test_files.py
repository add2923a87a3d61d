"""Plain reading: short reads, files that shrink, strict JSON, hostile names."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from csf_tool.disk.json_files import load_json, parse_json
from csf_tool.disk.paths import relative_files, safe_relative
from csf_tool.disk.reader import CHUNK_BYTES, RandomReader
from csf_tool.errors import CheckpointError, EnvironmentFault
from tests.building import LFS_POINTER

CONTENT = bytes(range(256)) * 20


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[RandomReader]:
    path = tmp_path / "x"
    path.write_bytes(CONTENT)
    with RandomReader(path, "x") as opened:
        yield opened


def test_any_range_is_read(reader: RandomReader) -> None:
    assert reader.read(0, 5120) == CONTENT
    assert reader.read(1001, 1003) == CONTENT[1001:1003]
    assert reader.read(7, 7) == b""


@pytest.mark.parametrize("at_once", [None, 0, 1, 699, 2000])
def test_one_range_to_many_places(reader: RandomReader, monkeypatch: pytest.MonkeyPatch, at_once: int | None) -> None:
    """The same bytes with calls that give only a part, and on systems without scattered reads."""
    if at_once is None:
        monkeypatch.delattr("os.preadv", raising=False)
    else:
        monkeypatch.setattr("os.preadv", lambda _, views, begin: fill(views, CONTENT[begin : begin + at_once]))
    monkeypatch.setattr("csf_tool.disk.reader._MAX_VIEWS", 3)
    sizes = [700, 1, 2500, 13, 100, 1000, 6]
    places = [bytearray(size) for size in sizes]
    reader.read_into_each([memoryview(place) for place in places], 300)
    assert b"".join(places) == CONTENT[300 : 300 + sum(sizes)]
    with pytest.raises(CheckpointError, match="1 bytes short"):
        reader.read_into_each([memoryview(bytearray(n)) for n in (2, 2)], len(CONTENT) - 3)


def fill(views: Sequence[memoryview], data: bytes) -> int:
    done = 0
    for view in views:
        part = data[done : done + len(view)]
        view[: len(part)] = part
        done += len(part)
    return done


def test_many_places_by_the_systems_own_call(reader: RandomReader) -> None:
    places = [bytearray(n) for n in (5, 3000, 1500)]
    reader.read_into_each([memoryview(place) for place in places], 600)
    assert b"".join(places) == CONTENT[600:5105]


def test_ranges_come_in_pieces(reader: RandomReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.disk.reader.CHUNK_BYTES", 1000)
    pieces = [bytes(piece) for piece in reader.chunks(100, 5120)]
    assert [len(piece) for piece in pieces] == [1000] * 5 + [20]
    assert b"".join(pieces) == CONTENT[100:]
    assert list(reader.chunks(5, 5)) == []


def test_a_system_that_reads_little_at_a_time(reader: RandomReader, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = reader._file

    class Reluctant:
        """A file that gives at most 700 bytes a call, as network file systems and macOS may."""

        def seek(self, offset: int) -> None:
            real.seek(offset)

        def readinto(self, view: memoryview) -> int:
            calls.append(len(view))
            got = real.read(min(len(view), 700))
            view[: len(got)] = got
            return len(got)

        def close(self) -> None:
            real.close()

    monkeypatch.setattr(reader, "_file", Reluctant())
    assert reader.read(10, 5010) == CONTENT[10:5010]
    assert len(calls) == 8


def test_no_call_asks_for_more_than_a_chunk(reader: RandomReader, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Counting:
        def seek(self, offset: int) -> None:
            asked.append(-offset)

        def readinto(self, view: memoryview) -> int:
            asked.append(len(view))
            return len(view)

        def close(self) -> None:
            pass

    reader.close()
    monkeypatch.setattr(reader, "_file", Counting())
    reader.read(3, 3 + CHUNK_BYTES + 5)
    assert asked == [-3, CHUNK_BYTES, 5]


def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(CONTENT)
    with RandomReader(path, "shard") as reader:
        reader.read(0, 100)
        os.truncate(path, 2000)
        with pytest.raises(CheckpointError) as caught:
            reader.read(1000, 5000)
    assert str(caught.value) == "shard: ends at byte 2000, 3000 bytes short: it became shorter while csf-tool read it"


def test_nothing_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no mmap here")

    monkeypatch.setattr("mmap.mmap", refuse)
    path = tmp_path / "x"
    path.write_bytes(CONTENT)
    with RandomReader(path, "x") as reader:
        assert reader.read(0, 10) == CONTENT[:10]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^x: is missing, or is a link to a missing file$"):
        RandomReader(tmp_path / "x", "x")


def test_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("../blobs/gone")
    with pytest.raises(CheckpointError, match="a link to a missing file"):
        RandomReader(tmp_path / "x", "x")


@pytest.mark.parametrize("name", ["folder", "file/inside", "n" * 300, "loop"])
def test_names_that_lead_to_no_file_are_the_checkpoints_fault(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CheckpointError, match="x: is not a file"):
        RandomReader(tmp_path / name, "x")


def test_a_disk_that_fails_is_not_the_checkpoints_fault(reader: RandomReader, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def seek(self, _offset: int) -> None:
            raise OSError(5, "Input/output error")

        def close(self) -> None:
            pass

    reader.close()
    monkeypatch.setattr(reader, "_file", Failing())
    with pytest.raises(EnvironmentFault, match=r"^x: cannot be read: Input/output error$"):
        reader.read(0, 1)


@pytest.mark.parametrize("begin", [1 << 62, (1 << 63) - 1, 1 << 63, 1 << 70])
def test_an_offset_that_no_file_has(reader: RandomReader, begin: int) -> None:
    with pytest.raises(CheckpointError, match=rf"^x: (has no byte {begin}|ends at byte {begin}, 1 bytes short)"):
        reader.read(begin, begin + 1)


def test_a_file_system_that_refuses_the_offset(reader: RandomReader, monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict:
        def seek(self, _offset: int) -> None:
            raise OSError(22, "Invalid argument")

        def close(self) -> None:
            pass

    reader.close()
    monkeypatch.setattr(reader, "_file", Strict())
    with pytest.raises(CheckpointError, match=r"^x: has no byte 99$"):
        reader.read(99, 100)


# JSON


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"{} x", "not valid JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "key 'c' appears twice in one object"),
        (b'{"a": "\xfe"}', "not UTF-8 at byte 7"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8 at byte 0"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"[" * 100_000, "JSON nested too deeply"),
        (b"9" * 5000, "not valid JSON"),
        (b"[" * 41 + b"]" * 41, "JSON nested too deeply"),
        (b'{"a":[' * 21 + b"]}" * 21, "JSON nested too deeply"),
        (b'{"a": 1e999}', "a number that no reader can store"),
        (b'{"' + b"k" * 10_000 + b'": 1, "' + b"k" * 10_000 + b'": 1}', r"^.{0,300}$"),
        (b'"\\udc00"', "half a character"),
        (b'{"\\ud83d": 1}', "half a character"),
    ],
)
def test_json_is_read_strictly(raw: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason) as caught:
        parse_json(raw, "x.json")
    assert str(caught.value).startswith("x.json: ")
    assert "\n" not in str(caught.value)


def test_nesting_that_goes_deep_but_not_too_deep() -> None:
    assert json.dumps(parse_json(b"[" * 40 + b"]" * 40, "x")) == "[" * 40 + "]" * 40
    assert parse_json(b"[" + b"[]," * 1000 + b"{}]", "x") == [*([[]] * 1000), {}]


def test_escaped_pairs_are_whole_characters() -> None:
    assert parse_json(b'{"\\ud83d\\ude00": "\\u00e9\\\\ud800"}', "x") == {"😀": "é\\ud800"}


def test_a_json_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"[" + b" " * 100 + b"]")
    assert load_json(tmp_path / "x", "x", limit=102) == []
    with pytest.raises(CheckpointError, match=r"^x: has 102 bytes of text, but csf-tool reads at most 101$"):
        load_json(tmp_path / "x", "x", limit=101)


@pytest.mark.parametrize(
    ("content", "reason"), [(LFS_POINTER, "git-LFS pointer"), (b"\n<!doctype html>", "is a web page")]
)
def test_what_stands_where_json_should_be(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CheckpointError, match=reason):
        load_json(tmp_path / "x", "x")


def test_a_missing_json_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="x: is missing"):
        load_json(tmp_path / "x", "x")


# Names


@pytest.mark.parametrize("name", ["a", "a/b", ".hidden", "a.b..c", "é"])
def test_safe_names(name: str) -> None:
    assert safe_relative(name, "x").as_posix() == name


@pytest.mark.parametrize(
    "name",
    ["", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a\\b", "C:", "z:a", "a\0", "\x1f",
     "a:b", "a/.. /b", "...", " "],
)  # fmt: skip
def test_unsafe_names(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"^x: file name "):
        safe_relative(name, "x")


def test_every_file_under_a_folder_but_hidden_folders(tmp_path: Path) -> None:
    for name in ("b", "a/c", "a/.d", ".e", ".cache/x", ".git/y", "a/.z/w"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert relative_files(tmp_path) == [".e", "a/.d", "a/c", "b"]
