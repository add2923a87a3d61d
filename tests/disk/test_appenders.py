"""Appending: the same bytes through the page cache and past it, every failing call noticed."""

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csf_tool.disk import appenders
from csf_tool.disk.appenders import Appender, CachedAppender, DirectAppender, make_appender
from csf_tool.disk.reader import RandomReader
from csf_tool.errors import CheckpointError, EnvironmentFault
from csf_tool.write.destination import Destination

if sys.platform != "linux":
    pytest.skip("O_DIRECT and mountinfo are Linux's", allow_module_level=True)

PIECE = 8192

Append = Callable[[Path, Callable[[Appender], None]], None]


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appenders, "_PIECE_BYTES", PIECE)
        patch.setattr(appenders, "_LEAST_DIRECT_BYTES", 2 * PIECE)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where files can be written past the page cache."""
    found = tmp_path_factory.mktemp("direct")
    try:
        os.close(os.open(found / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        pytest.skip("the temporary folder's file system has no O_DIRECT")
    return found


@pytest.fixture(scope="module", params=[CachedAppender, DirectAppender])
def append(request: pytest.FixtureRequest) -> Append:
    """Make a file by one of the appenders."""

    def run(path: Path, work: Callable[[Appender], None]) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        appender = request.param(fd, path.name)
        try:
            work(appender)
            appender.sync()
        finally:
            appender.abandon()
            os.close(fd)

    return run


STORED = os.urandom(50_000)
PARTS = st.lists(
    st.one_of(st.binary(max_size=3 * PIECE), st.tuples(*[st.integers(0, len(STORED))] * 2).map(sorted).map(tuple)),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(parts=PARTS)
def test_new_bytes_and_ranges_in_order(folder: Path, append: Append, parts: list[bytes | tuple[int, int]]) -> None:
    source, target = folder / "source", folder / "target"
    source.write_bytes(STORED)
    passed: list[int] = []

    def work(appender: Appender) -> None:
        with RandomReader(source, "source") as reader:
            for part in parts:
                if isinstance(part, bytes):
                    data = bytearray(part)
                    appender.write(memoryview(data))
                    data[:] = bytes(len(data))  # it is the caller's again
                else:
                    appender.copy(reader, *part, passed.append)

    append(target, work)
    assert target.read_bytes() == b"".join(p if isinstance(p, bytes) else STORED[slice(*p)] for p in parts)
    assert sum(passed) == sum(end - begin for begin, end in (p for p in parts if not isinstance(p, bytes)))


def test_a_range_that_the_other_file_does_not_have(folder: Path, append: Append) -> None:
    (folder / "short").write_bytes(bytes(100))
    with RandomReader(folder / "short", "short") as reader, pytest.raises(CheckpointError, match="short: ends at byte"):
        append(folder / "target", lambda appender: appender.copy(reader, 0, 5 * PIECE, lambda _: None))


# Past the cache


def big(folder: Path, data: bytes = bytes(3 * PIECE + 5)) -> None:
    with Destination(folder).create("x", len(data)) as file:
        file.write(data)


@pytest.fixture
def direct(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder where large files are written past the cache."""
    monkeypatch.setattr(appenders, "_writes_directly", lambda _: True)
    return folder / f"{len(list(folder.iterdir()))}"


@pytest.mark.parametrize("size", [2 * PIECE, 3 * PIECE - 1, 3 * PIECE + 1, 3 * PIECE + 4096])
def test_sizes_around_blocks_and_pieces(direct: Path, size: int) -> None:
    data = os.urandom(size)
    big(direct, data)
    assert (direct / "x").read_bytes() == data


def test_a_system_that_writes_a_block_at_a_time(direct: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, data = os.pwrite, os.urandom(3 * PIECE + 5)
    monkeypatch.setattr("os.pwrite", lambda fd, piece, at: real(fd, piece[:4096], at))
    big(direct, data)
    assert (direct / "x").read_bytes() == data


def test_a_disk_with_larger_blocks(direct: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Direct writes are refused with EINVAL, and go through the cache from then on."""
    import fcntl

    real, data, refused = os.pwrite, os.urandom(3 * PIECE + 5), []

    def pwrite(fd: int, piece: memoryview, at: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(at)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, piece, at)

    monkeypatch.setattr("os.pwrite", pwrite)
    big(direct, data)
    assert (direct / "x").read_bytes() == data
    assert refused == [0]


@pytest.mark.parametrize("at", [0, PIECE, 3 * PIECE])
def test_a_full_disk_is_noticed_whenever_it_says_so(direct: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    real = os.pwrite

    def pwrite(fd: int, piece: memoryview, begin: int) -> int:
        if begin == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, piece, begin)

    monkeypatch.setattr("os.pwrite", pwrite)
    with pytest.raises(EnvironmentFault, match=r"^x: cannot be written: No space left on device$"):
        big(direct)
    assert list(direct.iterdir()) == []


def test_nothing_is_written_once_the_file_is_given_up(direct: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of its descriptor may be another file's by then."""
    real, begun, log = os.pwrite, threading.Event(), []

    def pwrite(fd: int, piece: memoryview, begin: int) -> int:
        begun.set()
        threading.Event().wait(0.05)
        log.append("written")
        return real(fd, piece, begin)

    def close(fd: int) -> None:
        log.append("closed")
        really_close(fd)

    really_close = os.close
    with pytest.raises(ValueError, match="enough"), Destination(direct).create("x", 3 * PIECE) as file:
        monkeypatch.setattr("os.pwrite", pwrite)
        file.write(bytes(PIECE))
        assert begun.wait(10)
        monkeypatch.setattr("os.close", close)
        raise ValueError("enough")
    monkeypatch.undo()
    assert log == ["written", "closed"]
    assert list(direct.iterdir()) == []


# Which one


def chosen(folder: Path, nbytes: int) -> type[Appender]:
    fd = os.open(folder / "chosen", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    appender = make_appender(fd, "chosen", nbytes)
    appender.abandon()
    os.close(fd)
    return type(appender)


@pytest.fixture
def mounted_as(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have the system say that the folder lies on another file system."""

    def mount(kind: str) -> None:
        device = folder.stat().st_dev
        lines = [
            "21 1 0:99 / /proc rw - proc proc rw",
            f"22 1 {os.major(device)}:{os.minor(device)} / /a\\040-\\040b rw",
        ]
        (tmp_path / "mountinfo").write_text(f"{lines[0]}\n{lines[1]},noatime shared:1 - {kind} /dev/x rw\n")
        monkeypatch.setattr(appenders, "_MOUNTS", str(tmp_path / "mountinfo"))

    return mount


@pytest.mark.parametrize("kind", ["ext4", "xfs", "nfs4", "tmpfs", "btrfs", "overlay"])
def test_local_file_systems_are_written_directly(folder: Path, mounted_as: Callable[[str], None], kind: str) -> None:
    mounted_as(kind)
    assert chosen(folder, 2 * PIECE) is (DirectAppender if kind in ("ext4", "xfs") else CachedAppender)
    assert chosen(folder, 2 * PIECE - 1) is CachedAppender


def test_without_mountinfo(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(appenders, "_MOUNTS", str(tmp_path / "nothing"))
    assert chosen(folder, 2 * PIECE) is CachedAppender


def test_a_file_system_that_refuses(
    folder: Path, mounted_as: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted_as("ext4")

    def refuse(_: DirectAppender, wanted: bool) -> None:
        raise OSError(errno.EINVAL, f"no O_DIRECT, {wanted}")

    monkeypatch.setattr(DirectAppender, "_set_direct", refuse)
    assert chosen(folder, 2 * PIECE) is CachedAppender


def test_a_destination_that_keeps_the_cache(direct: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.pwrite", None)  # a direct write would fail
    with Destination(direct, keep_cache=True).create("x", 3 * PIECE) as file:
        file.write(bytes(3 * PIECE))
    assert (direct / "x").stat().st_size == 3 * PIECE
