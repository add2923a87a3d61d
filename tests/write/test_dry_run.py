"""--dry-run says what the same command then does, refuses what it refuses, and writes nothing."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from csf_tool.cli import app
from tests.documents.definitions import definitions, misfits
from tests.fixture_types import Copied, Sample
from tests.hub_server import Hub
from tests.write.test_engine import CONSUME, OPERATIONS, argv, done, every_operation, report, run, shards


def state(*folders: Path) -> dict[str, Any]:
    """Everything about folders that a run could change: names, bytes, times, links, attributes."""
    found = {}
    for folder in folders:
        for path in [folder, *sorted(folder.rglob("*"))]:
            status = path.lstat()
            attributes = {name: os.getxattr(path, name) for name in os.listxattr(path, follow_symlinks=False)}
            facts = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink, attributes
            found[str(path)] = (*facts, path.read_bytes() if path.is_file() else b"")
    return found


def foreseen(name: str, source: Path | str, out: Path, *more: str) -> dict[str, Any]:
    """The document of a dry run, which left everything as it was."""
    places = [out.parent, *([source] if isinstance(source, Path) else [])]
    before = state(*places)
    result = CliRunner().invoke(app, [*argv(name, source, out, *more), "--dry-run", "--json"])  # type: ignore[arg-type]
    assert result.exit_code == 0, result.stderr
    assert state(*places) == before
    document = dict(json.loads(result.stdout))
    fields = definitions()["DryRunDocument"].fields
    assert document.keys() == fields.keys()
    assert [each for field, (hint, _) in fields.items() for each in misfits(document[field], hint, field)] == []
    return document


def sizes(document: dict[str, Any], *actions: str) -> dict[str, int]:
    return {file["file"]: file["bytes"] for file in document["files"] if not actions or file["action"] in actions}


def sizes_in(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".csf-tool" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


@pytest.mark.slow
@every_operation
def test_it_foresees_every_file_and_every_byte(sample: Sample, tmp_path: Path, name: str) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    plan = foreseen(name, source, out)
    assert plan["operation"] == name.split()[0]
    assert {file["action"] for file in plan["files"]} == {"write"}
    found = report(name, source, out)
    assert sizes(plan) == sizes_in(out)
    assert plan["bytes_to_write"] == found["bytes_written"] == sum(sizes_in(out).values())
    assert plan["room_needed"] >= plan["bytes_to_write"]
    assert (plan["not_carried"], plan["notes"]) == (found["not_carried"], found["notes"])
    assert plan["left_dense"] == found.get("left_dense", [])
    assert [file["file"] for file in plan["files"] if file["is_shard"]] == found["shards"]
    again = foreseen(name, source, out)
    assert (again["was_complete"], again["files"], again["bytes_to_write"]) == (True, [], 0)


@pytest.mark.slow
@every_operation
def test_it_foresees_parts_and_going_on(sample: Sample, tmp_path: Path, name: str) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    plan = foreseen(name, source, out, "--shards", "1/2")
    found = report(name, source, out, "--shards", "1/2")
    assert (plan["bytes_to_write"], sizes(plan, "write")) == (found["bytes_written"], sizes_in(out))
    later = {file["file"] for file in plan["files"] if file["action"] == "later" and file["is_shard"]}
    assert later == set(found["missing_shards"])
    there = sizes_in(out)
    partial = out / f".x.{socket.gethostname().replace('.', '_')}-99999999-0123abcd.partial"
    partial.write_bytes(bytes(5000))
    plan = foreseen(name, source, out)
    assert sizes(plan, "keep") == there
    partial.unlink()
    found = report(name, source, out)
    assert (plan["bytes_to_write"], sizes(plan)) == (found["bytes_written"], sizes_in(out))
    assert {name for name in sizes(plan, "keep") if name.endswith(".safetensors")} == set(found["resumed_shards"])


@pytest.mark.slow
@every_operation
def test_it_foresees_what_is_adopted(sample: Sample, tmp_path: Path, name: str) -> None:
    source, whole, out = sample(OPERATIONS[name][0]), tmp_path / "whole", tmp_path / "into" / "out"
    done(name, source, whole)
    shutil.copytree(whole, out)
    (out / shards(out)[-1]).unlink()
    plan = foreseen(name, source, out, "--adopt")
    found = report(name, source, out, "--adopt")
    compared = [file for file in sizes(plan, "compare") if not file.startswith("receipts/")]  # these go with shards
    assert sorted(compared) == sorted(found["adopted_files"])
    assert plan["bytes_to_write"] == found["bytes_written"]


@pytest.mark.slow
@every_operation
def test_it_foresees_what_goes_with_shards_that_are_adopted(sample: Sample, tmp_path: Path, name: str) -> None:
    """Somebody has copied the shards alone: receipts are written, and counted."""
    source, whole, out = sample(OPERATIONS[name][0]), tmp_path / "whole", tmp_path / "into" / "out"
    done(name, source, whole)
    for shard in shards(whole):
        (out / shard).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(whole / shard, out / shard)
    plan = foreseen(name, source, out, "--adopt")
    found = report(name, source, out, "--adopt")
    written = sum(size for file, size in sizes_in(out).items() if file not in shards(out))
    assert plan["bytes_to_write"] == found["bytes_written"] == written


def test_a_shard_that_was_adopted_is_not_said_to_be_copied(copied: Copied, tmp_path: Path) -> None:
    source, whole, out = copied("nvfp4-csf-container"), tmp_path / "whole", tmp_path / "out"
    done("convert to hf", source, whole)
    out.mkdir()
    for shard in shards(whole):
        shutil.copy(whole / shard, out / shard)
    found = report("convert to hf", source, out, "--link", "--adopt")
    assert not [note for note in found["notes"] if "copied, not linked" in note]


@pytest.mark.slow
@every_operation
def test_it_foresees_what_is_removed_and_asks_nothing(copied: Copied, tmp_path: Path, name: str) -> None:
    source, out = copied(OPERATIONS[name][0]), tmp_path / "into" / "out"
    out.parent.mkdir()
    plan = foreseen(name, source, out, "--consume-source")
    assert sorted(plan["removes"]) == shards(source)
    assert plan["room_needed"] == 0
    found = report(name, source, out, *CONSUME)
    assert sorted(found["removed_sources"]) == sorted(plan["removes"])
    again = foreseen(name, source, out, "--consume-source")
    assert (again["was_complete"], again["removes"]) == (True, [])


def test_the_last_removals_are_foreseen(copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was killed when everything was written, and only sources were left to remove."""
    from csf_tool.write.consume import Consumer

    source, out = copied("nvfp4-csf-hf"), tmp_path / "into" / "out"

    def killed(*_: object) -> None:
        raise OSError(5, "killed")

    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "_remove", killed)
        patch.setattr(Consumer, "shard_done", lambda *_: None)
        assert run("expand hf", source, out, *CONSUME).exit_code == 3
    left = shards(source)
    plan = foreseen("expand hf", source, out, "--consume-source")
    assert (plan["was_complete"], sorted(plan["removes"])) == (True, left)
    assert shards(source) == left != []
    done("expand hf", source, out, *CONSUME)
    assert shards(source) == []


@pytest.mark.parametrize("more", [[], ["--link"]])
def test_links_are_foreseen(copied: Copied, tmp_path: Path, more: list[str]) -> None:
    source, out = copied("nvfp4-csf-container"), tmp_path / "into" / "out"
    out.parent.mkdir()
    plan = foreseen("convert to hf", source, out, *more)
    found = report("convert to hf", source, out, *more)
    assert list(sizes(plan, "link")) == found["linked"]
    assert plan["bytes_to_write"] == found["bytes_written"]


def test_a_serving_directory_is_foreseen(sample: Sample, tmp_path: Path) -> None:
    words = ["convert", str(sample("nvfp4-csf-container")), str(tmp_path / "out"), "--to", "serving", "--json"]
    plan = json.loads(CliRunner().invoke(app, [*words, "--dry-run"]).stdout)
    assert list(tmp_path.iterdir()) == []
    found = json.loads(CliRunner().invoke(app, words).stdout)
    assert (plan["bytes_to_write"], sizes(plan)) == (found["bytes_written"], sizes_in(tmp_path / "out"))


def in_the_way(out: Path) -> None:
    out.mkdir()
    (out / "precious").write_text("mine")


def no_folder(out: Path) -> None:
    out.write_text("mine")


def below_a_file(out: Path) -> None:
    out.parent.rmdir()
    out.parent.write_text("mine")


def other_run(out: Path) -> None:
    source = Path(__file__).parents[1] / "data" / "samples" / "nvfp4-csf-container"
    assert CliRunner().invoke(app, ["expand", str(source), str(out), "--shards", "1/2"]).exit_code == 0


def nothing(out: Path) -> None:
    assert not out.exists()


@pytest.mark.parametrize(
    ("prepare", "more"),
    [
        (in_the_way, []),
        (no_folder, []),
        (below_a_file, []),
        (other_run, []),
        (in_the_way, ["--adopt"]),
        (nothing, ["--shards", "3/2"]),
        (nothing, ["--consume-source", "--shards", "1/2"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else " ".join(value),
)
@every_operation
def test_it_refuses_what_the_command_refuses(
    copied: Copied, tmp_path: Path, name: str, prepare: Callable[[Path], None], more: list[str]
) -> None:
    source, out = copied(OPERATIONS[name][0]), tmp_path / "into" / "out"
    out.parent.mkdir()
    prepare(out)
    before = state(tmp_path)
    tried = run(name, source, out, *more, "--dry-run")
    assert state(tmp_path) == before
    real = run(name, source, out, *more, *(["--yes"] if "--consume-source" in more else []))
    assert (tried.exit_code, tried.stderr) == (real.exit_code, real.stderr)
    assert tried.exit_code


@every_operation
def test_too_little_room_is_refused(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=1000))
    tried, then = run(name, source, out, "--dry-run"), run(name, source, out)
    assert (tried.exit_code, "not enough disk space" in tried.stderr) == (3, True)
    assert (tried.exit_code, tried.stderr) == (then.exit_code, then.stderr)
    assert foreseen(name, source, out, "--ignore-space")["room_free"] == 1000


def test_a_damaged_source_is_refused(copied: Copied, tmp_path: Path) -> None:
    source, out = copied("nvfp4-csf-hf"), tmp_path / "into" / "out"
    shard = source / shards(source)[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    tried = run("expand hf", source, out, "--dry-run")
    real = run("expand hf", source, out)
    assert (tried.exit_code, tried.stderr) == (real.exit_code, real.stderr)
    assert tried.exit_code == 1


@every_operation
def test_people_are_told(sample: Sample, tmp_path: Path, name: str) -> None:
    said = done(name, sample(OPERATIONS[name][0]), tmp_path / "out", "-n").stdout
    assert "Dry run: nothing was written." in said
    assert "would be written" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_source_on_the_hub_is_not_fetched(hub: Hub, tmp_path: Path) -> None:
    out = tmp_path / "into" / "out"
    out.parent.mkdir()
    plan = foreseen("expand hf", "org/nvfp4-csf-hf", out)
    assert plan["bytes_to_fetch"] > plan["bytes_to_read"] > 0
    assert hub.sent() < plan["bytes_to_fetch"] / 3
    found = report("expand hf", Path("org/nvfp4-csf-hf"), out)
    assert (plan["bytes_to_write"], sizes(plan)) == (found["bytes_written"], sizes_in(out))
