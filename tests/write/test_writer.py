"""Writing: nothing overwritten, nothing half written under its own name, every failing call noticed."""

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csf_tool.disk.json_files import render_json
from csf_tool.disk.new_file import remove_abandoned
from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.write.destination import Destination

if sys.platform != "win32":
    import fcntl


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def everything(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def test_a_file_in_a_new_folder(out: Path) -> None:
    with Destination(out).create("a/b.bin") as file:
        file.write(b"ab")
        file.write(memoryview(b"cd"))
        file.write_all([b"e", bytearray(b"f"), memoryview(b"")])  # type: ignore[list-item]
    assert (out / "a" / "b.bin").read_bytes() == b"abcdef"
    assert everything(out) == ["a", "a/b.bin"]


def test_a_small_file_at_once(out: Path) -> None:
    Destination(out).write("x.json", render_json({"é": [1]}))
    assert (out / "x.json").read_bytes() == '{\n  "é": [\n    1\n  ]\n}\n'.encode()


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(DOCUMENTS)
def test_json_is_written_as_the_library_does(document: object) -> None:
    assert render_json(document).decode() == json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def test_an_empty_folder_may_be_written(out: Path) -> None:
    out.mkdir()
    Destination(out).write("x", b"")
    assert everything(out) == ["x"]


def test_until_it_is_complete_the_file_has_another_name(out: Path) -> None:
    with Destination(out).create("model.safetensors") as file:
        file.write(b"x")
        [partial] = everything(out)
        assert partial.startswith(".model.safetensors.")
        assert partial.endswith(".partial")
    assert everything(out) == ["model.safetensors"]


def test_two_writers_of_one_name_have_different_temporary_names(out: Path) -> None:
    folder = Destination(out)
    with (
        pytest.raises(EnvironmentFault, match="another process has made a file of that name"),
        folder.create("x") as one,
    ):
        one.write(b"1")
        with folder.create("x") as two:
            two.write(b"2")
    assert (out / "x").read_bytes() == b"2"
    assert everything(out) == ["x"]


# What may be a destination


def test_a_folder_that_holds_something(out: Path) -> None:
    out.mkdir()
    (out / ".hidden").write_text("")
    with pytest.raises(UsageError, match="is not empty; give a new or empty folder"):
        Destination(out).require_empty()
    assert everything(out) == [".hidden"]


def test_a_file(out: Path) -> None:
    out.write_text("precious")
    with pytest.raises(UsageError, match="exists, but is not a folder"):
        Destination(out)


def test_a_dangling_link_is_not_written_through(out: Path, tmp_path: Path) -> None:
    out.symlink_to(tmp_path / "gone")
    with pytest.raises((UsageError, EnvironmentFault)):
        Destination(out).write("x", b"1")
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("destination", ["src", "src/out", "src/a/b/out", ".", "link", "link/out", "src/../src/x"])
def test_source_and_destination_inside_one_another(tmp_path: Path, destination: str) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (tmp_path / "link").symlink_to("src")
    with pytest.raises(UsageError, match="must not be inside one another"):
        Destination(tmp_path / destination, source)
    assert everything(source) == []


def test_a_source_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "link").symlink_to("src")
    with pytest.raises(UsageError, match="must not be inside one another"):
        Destination(tmp_path / "src" / "out", tmp_path / "link")


@pytest.mark.parametrize("destination", ["src2", "other/src", "srcs/out"])
def test_neighbours_are_not_nested(tmp_path: Path, destination: str) -> None:
    (tmp_path / "src").mkdir()
    Destination(tmp_path / destination, tmp_path / "src").write("x", b"1")
    assert (tmp_path / destination / "x").read_bytes() == b"1"


# Modes


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_the_umask_decides_the_modes(out: Path) -> None:
    Destination(out).write("a/x", b"1")
    assert stat.S_IMODE((out / "a" / "x").stat().st_mode) == 0o640
    assert stat.S_IMODE((out / "a").stat().st_mode) == 0o750


# Space


def test_space_is_checked_before_anything_is_made(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def usage(path: Path) -> os.terminal_size:
        asked.append(path)
        return type("Usage", (), {"free": 1 << 20})()  # type: ignore[no-any-return]

    monkeypatch.setattr("shutil.disk_usage", usage)
    folder = Destination(out / "deep" / "down")
    folder.require_space(1 << 20)
    with pytest.raises(EnvironmentFault, match=r"2\.00 MiB needed, 1\.00 MiB free, 1\.00 MiB missing"):
        folder.require_space(2 << 20)
    assert asked == [out.parent, out.parent]
    assert not out.exists()


# Failing calls


def test_an_error_inside_the_block_leaves_nothing(out: Path) -> None:
    with pytest.raises(ValueError, match="boom"), Destination(out).create("x") as file:
        file.write(b"half")
        raise ValueError("boom")
    assert everything(out) == []


def test_an_interrupt_leaves_nothing(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Destination(out).create("x") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert everything(out) == []


def test_a_full_disk_leaves_nothing_and_keeps_finished_files(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Destination(out)
    folder.write("done", b"1")

    def full(_fd: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(EnvironmentFault, match=r"^x: cannot be written: No space left on device$"):
        folder.write("x", b"22")
    assert everything(out) == ["done"]


def test_a_disk_that_fills_in_the_middle(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.write, [5]

    def filling(fd: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(fd, data[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr("os.write", filling)
    with pytest.raises(EnvironmentFault, match="No space left"):
        Destination(out).write("x", b"0123456789")
    assert everything(out) == []


@pytest.mark.parametrize("call", ["fsync", "close"])
def test_a_write_that_fails_late(out: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Network file systems report a full disk only here."""
    real = os.close

    def fail(fd: int) -> None:
        if call == "close":
            real(fd)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    folder = Destination(out)
    with pytest.raises(EnvironmentFault, match=r"^x: cannot be written: Disk quota exceeded$"), folder.create("x") as f:
        f.write(b"1")
        monkeypatch.setattr(f"os.{call}", fail)
    monkeypatch.undo()
    assert everything(out) == []


def test_a_rename_that_fails(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    folder = Destination(out)
    monkeypatch.setattr("pathlib.Path.rename", fail)
    with pytest.raises(EnvironmentFault, match="Permission denied"):
        folder.write("x", b"1")
    assert everything(out) == []


def test_a_system_that_writes_little_at_a_time(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = os.write, []

    def reluctant(fd: int, data: memoryview) -> int:
        asked.append(len(data))
        return real(fd, data[:7])

    monkeypatch.setattr("os.write", reluctant)
    Destination(out).write("x", bytes(range(100)))
    assert (out / "x").read_bytes() == bytes(range(100))
    assert len(asked) == 15


def test_no_call_writes_more_than_a_chunk(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = os.write, []

    def counting(fd: int, data: memoryview) -> int:
        asked.append(len(data))
        return real(fd, data)

    monkeypatch.setattr("os.write", counting)
    monkeypatch.setattr("csf_tool.disk.appenders.CHUNK_BYTES", 1000)
    Destination(out).write("x", bytes(2500))
    assert asked == [1000, 1000, 500]


def test_file_and_folder_are_synced_before_and_after_the_rename(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, synced = os.fsync, []

    def fsync(fd: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else everything(out)[0])
        real(fd)

    monkeypatch.setattr("os.fsync", fsync)
    Destination(out).write("x", b"1")
    assert synced[0].endswith(".partial")
    assert synced[1:] == ["folder"]


@pytest.mark.skipif(not hasattr(os, "O_DIRECTORY"), reason="folders cannot be synced")
@pytest.mark.parametrize(("number", "is_written"), [(errno.EINVAL, True), (errno.EBADF, True), (errno.EIO, False)])
def test_file_systems_that_cannot_sync_a_folder(
    out: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_written: bool
) -> None:
    """Some shared folders and FUSE mounts cannot, and say so; a disk that fails is something else."""
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(number, os.strerror(number))
        real(fd)

    monkeypatch.setattr("os.fsync", fsync)
    if is_written:
        Destination(out).write("x", b"1")
        assert (out / "x").read_bytes() == b"1"
    else:
        with pytest.raises(EnvironmentFault, match=r"^x: cannot be written: Input/output error$"):
            Destination(out).write("x", b"1")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to count descriptors in")
def test_no_file_descriptor_is_left_open(out: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    folder = Destination(out)
    before = descriptors()
    folder.write("x", b"1")
    with pytest.raises(ValueError, match="boom"), folder.create("y"):
        raise ValueError("boom")
    assert descriptors() == before


def test_a_partial_file_that_others_keep_taking_for_abandoned(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.disk.new_file.lock", lambda *_, **__: False)
    with pytest.raises(
        EnvironmentFault, match=r"^x: cannot be written: other processes keep removing its partial file$"
    ):
        Destination(out).create("x")
    assert everything(out) == []


def dead_process() -> int:
    """A number that no process here has: that of one which has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_a_partial_file_that_is_written_elsewhere_on_a_network_file_system_stays(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a lock of one's own takes a file that is open for writing: flock(2), NFS details.

    Its writer's number says nothing: containers that share a machine's name do not see each other's processes.
    """
    real = fcntl.flock

    def as_on_nfs(fd: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(fd, operation)

    gone = dead_process()
    monkeypatch.setattr(fcntl, "flock", as_on_nfs)
    monkeypatch.setattr(os, "getpid", lambda: gone)
    with Destination(out).create("x"):
        [partial] = out.iterdir()
        remove_abandoned(partial)
        assert partial.exists()
    partial.write_bytes(b"")
    remove_abandoned(partial)
    assert everything(out) == ["x"]


def test_on_windows_no_process_is_asked_whether_it_runs(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal 0 is Ctrl-C there. What is abandoned goes when the run is complete."""
    with Destination(out).create("x"):
        [partial] = out.iterdir()
    partial.write_bytes(b"")
    asked: list[int] = []
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "kill", lambda process, _: asked.append(process))
    remove_abandoned(partial)
    assert (asked, partial.exists()) == ([], True)


def test_a_partial_file_of_another_user_is_left_to_them(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Destination(out).create("x"):
        [partial] = out.iterdir()
    partial.write_bytes(b"")
    usual = Path.open

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == partial:
            raise PermissionError(errno.EACCES, "Permission denied")
        return usual(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    remove_abandoned(partial)
    assert partial.exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file: exists, but is not a folder"):
        Destination(tmp_path / "file" / "out").write("x", b"1")


def test_a_name_that_is_too_long(out: Path) -> None:
    with pytest.raises(EnvironmentFault, match="File name too long"):
        Destination(out).write("n" * 300, b"1")


def test_a_link_that_leads_out_of_the_destination_is_not_followed(out: Path, tmp_path: Path) -> None:
    out.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (out / "tensors").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "x").write_bytes(b"x")
    for write in (
        lambda: Destination(out).write("tensors/x", b"x"),
        lambda: Destination(out).link("tensors/y/x", tmp_path / "x"),
    ):
        with pytest.raises(UsageError, match="a link leads out of"):
            write()
    assert everything(tmp_path / "elsewhere") == []


def test_a_destination_that_is_a_link_itself_is_the_users_own_doing(out: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    out.symlink_to(tmp_path / "elsewhere")
    Destination(out).write("a/x", b"x")
    assert (tmp_path / "elsewhere" / "a" / "x").read_bytes() == b"x"
