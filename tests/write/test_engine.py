"""What every command that writes can do: jobs, parts, going on, adopting, rechecking, consuming, a cluster."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from csf_tool.cli import app
from tests.building import tree
from tests.fixture_types import Copied, Sample

OPERATIONS = {
    "expand hf": ("nvfp4-csf-hf", ["expand"]),
    "expand container": ("mxfp4-csf-container", ["expand"]),
    "compress hf": ("nvfp4-dense", ["compress"]),
    "compress container": ("mxfp4-dense", ["compress"]),
    "expand two codecs": ("two-codecs-csf-hf", ["expand"]),
    "compress two codecs": ("two-codecs-dense", ["compress"]),
    "convert to container": ("nvfp4-csf-hf", ["convert", "--to", "container"]),
    "convert to hf": ("nvfp4-csf-container", ["convert", "--to", "hf"]),
}
"""A sample, and the command that makes another checkpoint of it."""

LAST = ("manifest.json", "model.safetensors.index.json", "config.json")

CONSUME = ("--consume-source", "--yes", "--jobs", "1")

every_operation = pytest.mark.parametrize("name", OPERATIONS)


def argv(name: str, source: Path, out: Path, *more: str) -> list[str]:
    operation, *options = OPERATIONS[name][1]
    device = [] if operation == "convert" else ["--device", "cpu"]
    return [operation, str(source), str(out), *options, *device, *more]


def run(name: str, source: Path, out: Path, *more: str) -> Result:
    return CliRunner().invoke(app, argv(name, source, out, *more))


def done(name: str, source: Path, out: Path, *more: str) -> Result:
    result = run(name, source, out, *more)
    assert result.exit_code == 0, result.stderr
    return result


def report(name: str, source: Path, out: Path, *more: str) -> dict[str, Any]:
    return dict(json.loads(done(name, source, out, *more, "--json").stdout))


def shards(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.safetensors"))


@pytest.fixture
def whole(sample: Sample, tmp_path: Path) -> Callable[[str], dict[str, bytes]]:
    """What the command gives when nothing happens."""

    def make(name: str) -> dict[str, bytes]:
        done(name, sample(OPERATIONS[name][0]), tmp_path / "whole", "--jobs", "1")
        return tree(tmp_path / "whole")

    return make


Whole = Callable[[str], dict[str, bytes]]


@every_operation
def test_any_number_of_jobs_gives_the_same(sample: Sample, tmp_path: Path, whole: Whole, name: str) -> None:
    done(name, sample(OPERATIONS[name][0]), tmp_path / "out", "--jobs", "3")
    assert tree(tmp_path / "out") == whole(name)


@every_operation
def test_parts_one_after_another(sample: Sample, tmp_path: Path, whole: Whole, name: str) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    first = report(name, source, out, "--shards", "2/2")
    assert first["missing_shards"]
    assert not any((out / last).exists() for last in LAST), "looks like a checkpoint, and is not all there"
    assert report(name, source, out, "--shards", "1/2")["missing_shards"] == []
    assert tree(out) == whole(name)


@pytest.mark.slow
@every_operation
def test_parts_at_once(sample: Sample, tmp_path: Path, whole: Whole, name: str) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    command = [sys.executable, "-m", "csf_tool", *argv(name, source, out, "--shards")]
    running = [subprocess.Popen([*command, part], stderr=subprocess.PIPE, text=True) for part in ("1/2", "2/2")]
    assert [process.communicate()[1] for process in running] == ["", ""]
    assert [process.returncode for process in running] == [0, 0]
    assert tree(out) == whole(name)


KILLED = """
import os, sys
import csf_tool.write.engine as engine
from csf_tool.cli import main

def killed(*arguments):
    os.kill(os.getpid(), 9)

engine._Run._finish = killed  # all shards are there, and nothing else is
main()
"""


@pytest.mark.slow
@every_operation
def test_finish_does_what_the_last_part_had_left_to_do(sample: Sample, tmp_path: Path, whole: Whole, name: str) -> None:
    source, out, expected = sample(OPERATIONS[name][0]), tmp_path / "out", whole(name)
    early = CliRunner().invoke(app, ["finish", str(source), str(out)])
    assert (early.exit_code, "holds no unfinished run" in early.stderr) == (2, True)
    done(name, source, out, "--shards", "1/2")
    early = CliRunner().invoke(app, ["finish", str(source), str(out)])
    assert (early.exit_code, "is not complete: it lacks 1 shard, " in early.stderr) == (3, True)
    command = [sys.executable, "-c", KILLED, *argv(name, source, out, "--shards", "2/2")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert shards(out) == sorted(file for file in expected if file.endswith(".safetensors"))
    result = CliRunner().invoke(app, ["finish", str(source), str(out), "--device", "cpu", "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["schema"] == f"csf-tool.{name.split()[0]}/1"
    assert tree(out) == expected


@every_operation
def test_adopted_files_stay_and_the_rest_is_written(sample: Sample, tmp_path: Path, whole: Whole, name: str) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    expected = whole(name)
    shutil.copytree(tmp_path / "whole", out)
    last = shards(out)[-1]
    (out / last).unlink()
    before = {name: (out / name).stat().st_ino for name in shards(out)}
    found = report(name, source, out, "--adopt")
    assert set(found["adopted_files"]) >= before.keys()
    assert last not in found["adopted_files"]
    assert {name: (out / name).stat().st_ino for name in before} == before
    assert tree(out) == expected


@every_operation
def test_a_file_that_does_not_belong_there_is_named_and_stays(
    sample: Sample, tmp_path: Path, whole: Whole, name: str
) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    expected = whole(name)
    [first, *_] = shards(tmp_path / "whole")
    wrong = expected[first][:-1] + bytes([expected[first][-1] ^ 1])
    (out / first).parent.mkdir(parents=True)
    (out / first).write_bytes(wrong)
    result = run(name, source, out, "--adopt")
    assert (result.exit_code, f"{first}: does not belong there" in result.stderr) == (2, True)
    assert (out / first).read_bytes() == wrong


@pytest.mark.slow
@every_operation
def test_recheck_writes_a_finished_shard_again_that_was_damaged(
    sample: Sample, tmp_path: Path, whole: Whole, name: str
) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    done(name, source, out, "--shards", "1/2")
    finished = shards(out)
    with (out / finished[0]).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xee")
    found = report(name, source, out, "--recheck")
    assert found["resumed_shards"] == finished[1:]
    assert tree(out) == whole(name)


@pytest.mark.slow
@every_operation
def test_finished_shards_are_not_written_again(sample: Sample, tmp_path: Path, whole: Whole, name: str) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    done(name, source, out, "--shards", "1/2")
    before = {name: (out / name).stat().st_ino for name in shards(out)}
    found = report(name, source, out)
    assert found["resumed_shards"] == sorted(before)
    assert {name: (out / name).stat().st_ino for name in before} == before
    assert tree(out) == whole(name)


@every_operation
def test_the_source_is_consumed(copied: Copied, tmp_path: Path, whole: Whole, name: str) -> None:
    source, out = copied(OPERATIONS[name][0]), tmp_path / "out"
    removed = shards(source)
    assert sorted(report(name, source, out, *CONSUME)["removed_sources"]) == removed
    assert shards(source) == []
    assert tree(out) == whole(name)


def test_what_needs_the_source_does_not_consume_it(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-csf-container")
    for more in (["--to", "hf", "--link"], ["--to", "serving"]):
        result = CliRunner().invoke(app, ["convert", str(source), str(tmp_path / "out"), *more, *CONSUME])
        assert (result.exit_code, "need the source's shards" in result.stderr) == (2, True)
    assert len(shards(source)) == 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as running:
        yield running.scheduler_address


@pytest.mark.slow
@every_operation
def test_a_cluster_gives_the_same(sample: Sample, tmp_path: Path, whole: Whole, cluster: str, name: str) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    result = done(name, source, out, "--cluster", cluster)
    assert result.stderr == ""
    assert tree(out) == whole(name)


@every_operation
def test_what_is_in_the_way_is_said_before_any_work(sample: Sample, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("mine")
    result = run(name, sample(OPERATIONS[name][0]), tmp_path / "out")
    assert (result.exit_code, "is not empty; give a new or empty folder" in result.stderr) == (2, True)
    assert tree(tmp_path / "out") == {"precious": b"mine"}


# The same command again


def inodes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def forget(folder: Path) -> None:
    """Take away what says whose result a folder holds, as a copy or another file system does."""
    for attribute in os.listxattr(folder):
        os.removexattr(folder, attribute)


@every_operation
@pytest.mark.parametrize("noted", [True, False])
def test_a_complete_result_is_left_as_it_is(sample: Sample, tmp_path: Path, name: str, noted: bool) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    done(name, source, out)
    before, files = tree(out), inodes(out)
    if not noted:
        forget(out)
    for more in ([], ["--shards", "2/2"], ["--recheck"]):
        found = report(name, source, out, *more)
        assert found["was_complete"] is (more != ["--recheck"]), more
        assert found["bytes_written"] == 0
        assert (tree(out), inodes(out)) == (before, files)
    assert "is already complete" in done(name, source, out).stdout
    if noted:
        late = CliRunner().invoke(app, ["finish", str(source), str(out), "--device", "cpu"])
        assert (late.exit_code, "is already complete" in late.stdout) == (0, True)


@every_operation
def test_the_result_of_another_source_is_named_and_left_alone(copied: Copied, tmp_path: Path, name: str) -> None:
    kind = OPERATIONS[name][0]
    source, other, out = copied(kind), copied(kind, "other"), tmp_path / "out"
    done(name, source, out)
    before = tree(out)
    for shard in other.rglob("*.safetensors"):
        os.utime(shard, ns=(1, 1))  # the same names and headers, other files
    result = run(name, other, out)
    assert result.exit_code == 2
    assert f"holds the result of `csf-tool {name.split()[0]} {source}`" in result.stderr
    assert tree(out) == before


def test_the_result_of_other_options_is_named(sample: Sample, tmp_path: Path) -> None:
    source, out = sample("nvfp4-dense"), tmp_path / "out"
    done("compress hf", source, out)
    result = run("compress hf", source, out, "--exclude", "*layers.0.*")
    assert (result.exit_code, "with other options: give another folder" in result.stderr) == (2, True)


@every_operation
@pytest.mark.parametrize("noted", [True, False])
def test_what_is_left_of_a_result_is_not_called_complete(
    sample: Sample, tmp_path: Path, name: str, noted: bool
) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    done(name, source, out)
    if not noted:
        forget(out)
    (out / shards(out)[0]).unlink()
    before = tree(out)
    result = run(name, source, out)
    assert (result.exit_code, "is not empty; give a new or empty folder" in result.stderr) == (2, True)
    assert tree(out) == before


@every_operation
def test_after_the_source_was_consumed_the_same_command_ends_well(
    copied: Copied, sample: Sample, tmp_path: Path, name: str
) -> None:
    kind = OPERATIONS[name][0]
    source, out = copied(kind), tmp_path / "out"
    done(name, source, out, *CONSUME)
    before = tree(out)
    again = done(name, source, out, *CONSUME)
    assert "is already complete" in again.stderr
    other = copied(kind, "other")
    for shard in other.rglob("*.safetensors"):
        os.utime(shard, ns=(1, 1))
    refused = run(name, other, out, *CONSUME)
    assert (refused.exit_code, "holds the result of" in refused.stderr) == (2, True)
    assert tree(out) == before
    assert shards(other) == shards(sample(kind))


def test_a_file_that_took_the_place_of_a_source_shard_is_kept(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody downloads a new revision into the source while it is consumed."""
    from csf_tool.write.consume import Consumer

    source, out = copied("nvfp4-csf-hf"), tmp_path / "out"
    first = source / shards(source)[0]
    read_back = Consumer._read_back

    def downloaded_meanwhile(self: Consumer, shard: object) -> None:
        read_back(self, shard)  # type: ignore[arg-type]
        new = source / "new"
        shutil.copy2(first, new)  # of the same size and time
        new.replace(first)

    monkeypatch.setattr(Consumer, "_read_back", downloaded_meanwhile)
    result = run("expand hf", source, out, *CONSUME)
    assert (result.exit_code, f"{first}: was replaced after csf-tool read it, so it is kept" in result.stderr) == (
        3,
        True,
    )
    assert first.exists()


def test_two_runs_do_not_consume_one_source(copied: Copied, tmp_path: Path) -> None:
    import fcntl

    source = copied("nvfp4-csf-hf")
    held = os.open(source, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = run("expand hf", source, tmp_path / "out", *CONSUME)
    finally:
        os.close(held)
    assert (result.exit_code, "another run is removing its shards" in result.stderr) == (3, True)
    assert len(shards(source)) == 3
    assert not (tmp_path / "out").exists()


@every_operation
def test_what_a_killed_run_left_does_not_count_against_the_room(
    sample: Sample, tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A disk that has room for the result has room for it after any number of kills."""
    source, out, expected = sample(OPERATIONS[name][0]), tmp_path / "out", whole(name)
    done(name, source, out, "--shards", "1/2")
    partial = out / f".x.{socket.gethostname().replace('.', '_')}-99999999-0123abcd.partial"
    partial.write_bytes(bytes(5_000_000))
    real = shutil.disk_usage

    def usage(path: Path) -> Any:
        """A disk that has 16 KiB more than the result takes."""
        used = sum(p.stat().st_size for p in out.rglob("*") if p.is_file() and ".csf-tool" not in p.parts)
        return real(path)._replace(free=sum(map(len, expected.values())) + 65536 - used)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    done(name, source, out)
    assert tree(out) == expected
