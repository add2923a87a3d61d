"""Places that are not what they look like: something else under the journal's names, hints that a system refuses."""

import errno
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.building import tree
from tests.commands import run
from tests.fixture_types import Copied, Sample

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX files")


def link_to_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def link_to_file(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "victim")


def dangling(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "not-there")


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()


def file(path: Path, outside: Path) -> None:
    path.write_text("{}")


def sock(path: Path, outside: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # their names are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


FILES = (".csf-tool/lock", ".csf-tool/journal.json", ".csf-tool.closing", ".csf-tool/complete", ".csf-tool/kept/x")
FOLDERS = (".csf-tool", ".csf-tool/finished", ".csf-tool/consumed", ".csf-tool/kept", ".csf-tool/fetched")
KINDS = {
    **{(name, kind): "" for name in FILES for kind in (link_to_file, link_to_folder, dangling, pipe, sock)},
    **{(name, folder): "" for name in FILES[:3]},
    **{(name, kind): "" for name in FOLDERS for kind in (link_to_folder, link_to_file, dangling, pipe, file)},
}


@pytest.mark.parametrize("command", ["expand", "compress", "convert", "finish", "consume"])
@pytest.mark.parametrize(("name", "kind"), KINDS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_what_is_no_journal_is_refused(
    copied: Copied, tmp_path: Path, name: str, kind: Callable[[Path, Path], None], command: str
) -> None:
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    (outside / "victim").write_text('{"operation": "expand"}')
    (out / name).parent.mkdir(parents=True)
    kind(out / name, outside)
    source = copied("nvfp4-dense" if command == "compress" else "nvfp4-csf-hf")
    before = tree(outside), tree(source)
    more = {"convert": ["--to", "container"], "consume": ["--consume-source", "--yes", "--device", "cpu"]}
    verb = "expand" if command == "consume" else command
    result = run(verb, source, out, *more.get(command, []))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert f"{out / name}: has the name of csf-tool's journal, but is something else" in result.stderr
    assert (tree(outside), tree(source)) == before
    assert [path.name for path in outside.iterdir()] == ["victim"]
    assert os.path.lexists(out / name)


def test_a_link_named_like_a_partial_file_is_left_alone(sample: Sample, tmp_path: Path) -> None:
    from csf_tool.disk.new_file import _partial_name, remove_abandoned

    (tmp_path / "victim").write_text("")
    path = tmp_path / _partial_name("x")
    path.symlink_to("victim")
    remove_abandoned(path)
    assert path.is_symlink()


HINTS = {
    "posix_fadvise": "os.posix_fadvise",
    "statvfs": "shutil.disk_usage",
    "the cores": "os.sched_getaffinity",
    "copy_file_range": "os.copy_file_range",
    "flock": "fcntl.flock",
    "attributes": "os.setxattr",
    "fdatasync": "os.fdatasync",
}


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("hint", [*HINTS, "fsync of a folder"])
def test_a_hint_that_is_refused_is_no_error(
    sample: Sample, tmp_path: Path, hint: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    assert run("expand", sample("nvfp4-csf-hf"), tmp_path / "right").exit_code == 0
    if hint in HINTS:
        monkeypatch.setattr(HINTS[hint], refuse)
    else:
        fsync = os.fsync
        monkeypatch.setattr("os.fsync", lambda fd: refuse() if Path(f"/proc/self/fd/{fd}").is_dir() else fsync(fd))
    for more in ([], ["--drop-cache"], ["--keep-cache", "--jobs", "1"]):
        result = run("expand", sample("nvfp4-csf-hf"), tmp_path / "out", *more)
        assert result.exit_code == 0, result.output
        assert tree(tmp_path / "out") == tree(tmp_path / "right")
        shutil.rmtree(tmp_path / "out")
    assert run("verify", sample("nvfp4-csf-hf"), "--drop-cache").exit_code == 0


@pytest.mark.parametrize("call", ["rename", "replace"])
def test_a_refused_rename_names_the_file(
    sample: Sample, tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Any, target: Any, **_: Any) -> NoReturn:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(f"os.{call}", refuse)
    result = run("expand", sample("nvfp4-csf-hf"), tmp_path / "out", "--jobs", "1")
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert "cannot be written: Operation not permitted" in result.stderr
    assert "model-0000" in result.stderr or "journal.json" in result.stderr


ADDRESSES = ("hf://org/name", "https://huggingface.co/org/name", "s3://bucket/x")


@pytest.mark.parametrize("where", ["file/x", "dangling", "dangling/x", "pipe", "pipe/x", *ADDRESSES])
@pytest.mark.parametrize("command", ["expand", "expand --dry-run", "compress", "convert --to container"])
def test_a_destination_that_can_be_none(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, where: str
) -> None:
    """One line, before any work, and nothing is made: `hf:` is no folder that anybody wants."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("dangling").symlink_to("nowhere")
    os.mkfifo("pipe")
    before = sorted(tmp_path.rglob("*"))
    name, *options = command.split()
    result = run(name, sample("nvfp4-dense" if name == "compress" else "nvfp4-csf-hf"), where, *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    word = "is an address" if where in ADDRESSES else "leads nowhere" if "dangling" in where else "is not a folder"
    assert word in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["pipe", "/dev/null", "folder"])
def test_what_is_no_file_is_not_said_to_be_missing(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    os.mkfifo("pipe")
    source = sample("nvfp4-csf-hf")
    for words in (["verify", source, "--manifest", place], ["stats", place], ["verify", source, "--against", place]):
        if place == "folder" and "--manifest" not in words:
            continue
        result = run(*words)
        kind = "a folder" if place == "folder" else "a device, a pipe or a socket"
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert f"{place}: is {kind}, not a file" in result.stderr


def test_another_unfinished_run_is_refused_before_any_work(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of it is said to be finished: measuring all scales of a large checkpoint takes minutes."""
    half, work = tmp_path / "half", []
    assert run("expand", sample("nvfp4-csf-hf"), half, "--shards", "1/2").exit_code == 0
    monkeypatch.setattr("csf_tool.write.compress.count_exceptions", lambda *_: work.append(1))
    for words in (
        ["compress", sample("nvfp4-dense"), half],
        ["compress", sample("nvfp4-dense"), half, "--dry-run"],
        ["convert", sample("nvfp4-csf-hf"), half, "--to", "container"],
        ["expand", sample("mxfp4-csf-container"), half],
    ):
        result = run(*words)
        assert (result.exit_code, result.stdout, result.stderr.count("\n"), work) == (2, "", 1, [])
        assert "holds an unfinished run of something else" in result.stderr
