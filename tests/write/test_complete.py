"""The same command over what it has written: it is called complete only while all of it is there."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from typer.testing import CliRunner, Result

from csf_tool.cli import app
from csf_tool.disk.own_files import DESCRIPTION, OWN_FOLDER
from csf_tool.disk.paths import names_in
from csf_tool.write import engine
from csf_tool.write.consume import Consumer
from csf_tool.write.journal_run import require_begun_or_empty
from tests.building import tree
from tests.fixture_types import Copied, Sample
from tests.write.test_engine import CONSUME, OPERATIONS, done, every_operation, forget, run, shards

pytestmark = pytest.mark.slow

REFUSED = "is not empty; give a new or empty folder"


def beside(folder: Path) -> list[str]:
    return sorted(tree(folder).keys() - set(shards(folder)))


@every_operation
@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("way", ["missing", "cut", "empty"])
def test_a_result_that_lacks_any_of_its_files(sample: Sample, tmp_path: Path, name: str, noted: bool, way: str) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    done(name, source, out)
    if not noted:
        forget(out)
    for file, content in tree(out).items():
        if way == "missing":
            (out / file).unlink()
        else:
            (out / file).write_bytes(content[:-1] if way == "cut" else b"")
        before = tree(out)
        for more in ([], ["--shards", "1/2"], ["--dry-run"]):
            result = run(name, source, out, *more)
            assert (result.exit_code, REFUSED in result.stderr) == (2, True), (file, result.output)
            assert f": {file} is " in result.stderr or not noted, result.stderr
            assert tree(out) == before
        (out / file).write_bytes(content)
    assert "is already complete" in done(name, source, out).stdout


@every_operation
@pytest.mark.parametrize("noted", [True, False])
def test_a_source_whose_files_beside_the_shards_have_changed(
    copied: Copied, tmp_path: Path, name: str, noted: bool
) -> None:
    source, out = copied(OPERATIONS[name][0]), tmp_path / "out"
    beside_model = source / "metadata" if (source / "metadata").is_dir() else source
    done(name, source, out)
    if not noted:
        forget(out)
    (beside_model / "new.py").write_text("added since")
    result = run(name, source, out)
    assert result.exit_code != 0, result.output
    assert "already complete" not in result.output


@every_operation
def test_files_that_others_have_put_beside_a_complete_result_are_named(
    sample: Sample, tmp_path: Path, name: str
) -> None:
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    done(name, source, out)
    (out / "notes.txt").write_text("mine")
    again = done(name, source, out)
    assert "is already complete" in again.stdout
    assert "it has notes.txt as well, which the command does not write" in again.stdout
    forget(out)
    assert run(name, source, out).exit_code == 2


def test_what_is_said_of_a_complete_result_whose_source_is_to_go(copied: Copied, tmp_path: Path) -> None:
    name = "expand hf"
    source, out = copied(OPERATIONS[name][0]), tmp_path / "out"
    done(name, source, out)
    before = shards(source)
    assert "no source shard was removed: with --recheck" in done(name, source, out, *CONSUME).stdout
    assert shards(source) == before
    done(name, source, out, *CONSUME, "--recheck")
    assert shards(source) == []


@every_operation
def test_a_result_whose_source_is_gone(copied: Copied, tmp_path: Path, name: str) -> None:
    source, out = copied(OPERATIONS[name][0]), tmp_path / "out"
    done(name, source, out, *CONSUME)
    for file, content in tree(out).items():
        for damaged in (None, content[:-1]):
            (out / file).unlink()
            if damaged is not None:
                (out / file).write_bytes(damaged)
            for more in ([], ["--dry-run"]):
                result = run(name, source, out, *CONSUME, *more)
                assert (result.exit_code, "is no longer as that run left it" in result.stderr) == (2, True), file
            (out / file).write_bytes(content)
    assert "is already complete" in done(name, source, out, *CONSUME).stderr
    assert "--recheck" not in done(name, source, out, *CONSUME, "--dry-run").stdout


@every_operation
@pytest.mark.parametrize("way", ["copied", "no attributes", "neither"])
def test_a_source_says_itself_what_its_shards_became(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    """The result's own note is lost by a copy, and is nowhere on file systems without extended attributes."""
    source, out, other = copied(OPERATIONS[name][0]), tmp_path / "out", tmp_path / "other"
    if way != "copied":

        def refuse(*_: object, **__: object) -> NoReturn:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

        monkeypatch.setattr("os.setxattr", refuse)
        monkeypatch.setattr("os.getxattr", refuse)
    if way == "neither":
        monkeypatch.delattr("os.setxattr")
        monkeypatch.delattr("os.getxattr")
    done(name, source, out, *CONSUME)
    if way == "copied":
        forget(out)
    shutil.copytree(out, other)
    finish = ("finish", str(source), str(out), "--device", "cpu")
    for result in (done(name, source, out, *CONSUME), CliRunner().invoke(app, finish)):
        assert (result.exit_code, "is already complete, and the shards of" in result.stderr) == (0, True)
    assert run(name, source, other, *CONSUME).exit_code == 0
    (other / "notes.txt").write_text("mine")
    elsewhere = run(name, source, other, *CONSUME)
    assert (elsewhere.exit_code, f"is not what was made from {source}: that is {out}," in elsewhere.stderr) == (2, True)
    (out / shards(out)[0]).unlink()
    for result in (run(name, source, out, *CONSUME), CliRunner().invoke(app, finish)):
        assert (result.exit_code, "is no longer as that run left it" in result.stderr) == (2, True)


def test_a_result_whose_shards_were_consumed_keeps_its_own_note(copied: Copied, tmp_path: Path) -> None:
    source, dense, again = copied(OPERATIONS["expand hf"][0]), tmp_path / "dense", tmp_path / "again"
    done("expand hf", source, dense)
    note = os.getxattr(dense, "user.csf_tool.run")
    done("compress hf", dense, again, *CONSUME)
    assert os.getxattr(dense, "user.csf_tool.run") == note


def other_commands(source: Path, out: Path) -> dict[str, Result]:
    commands = {"expand": [], "compress": ["--to", "hf"], "compress ": ["--to", "container"], "convert": ["--to", "hf"]}
    commands["convert "] = ["--to", "container"]
    commands["compress  "] = ["--exclude", "nothing"]
    return {
        name: CliRunner().invoke(app, [name.strip(), str(source), str(out), *more, *CONSUME])
        for name, more in commands.items()
    }


@every_operation
@pytest.mark.parametrize("finished", [True, False])
def test_another_command_over_a_consumed_source_is_refused(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, finished: bool
) -> None:
    source, out = copied(OPERATIONS[name][0]), tmp_path / "out"
    if finished:
        done(name, source, out, *CONSUME)
    else:
        interrupt(monkeypatch, "_remove")
        assert run(name, source, out, *CONSUME).exit_code == 130
        monkeypatch.undo()
    before, left = tree(out), shards(source)
    others = [result for result in other_commands(source, out).values() if result.exit_code]
    assert len(others) >= 4
    assert all("is the result of `csf-tool" in result.stderr for result in others)
    done(name, source, out, *CONSUME)
    if finished:
        assert tree(out) == before
    assert not left or shards(source) == []


# A run that removes its source is interrupted, and somebody removes what it wrote


def interrupt(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Interrupt a run when all is written and the last source shards are to go, or earlier."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if where == "_remove":
        whole = Consumer.finish

        def finish(self: Consumer) -> None:
            monkeypatch.setattr(Consumer, "_remove", stop)
            whole(self)

        monkeypatch.setattr(Consumer, "finish", finish)
    else:
        monkeypatch.setattr(engine._Run, "_finish_when_all_are_there", stop)


def damages(path: Path) -> list[SimpleNamespace]:
    """A file that is missing, and one that is cut, each to be mended again."""
    content = path.read_bytes()

    def cut() -> None:
        os.truncate(path, len(content) - 1)

    return [SimpleNamespace(do=do, undo=lambda: path.write_bytes(content)) for do in (path.unlink, cut)]


@every_operation
@pytest.mark.parametrize("where", ["_finish_when_all_are_there", "_remove"])
def test_what_was_made_of_removed_shards_and_is_lost(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    source, out, whole = copied(OPERATIONS[name][0]), tmp_path / "out", tmp_path / "whole"
    done(name, source, whole)
    interrupt(monkeypatch, where)
    assert run(name, source, out, *CONSUME).exit_code == 130
    monkeypatch.undo()
    there = {path.rpartition("/")[2] for path in shards(source)}
    before = tree(source)
    for shard in shards(out):
        for damage in damages(out / shard):
            damage.do()
            if where == "_remove" or shard.rpartition("/")[2] not in there:
                for more in ([], ["--dry-run"]):
                    result = run(name, source, out, *CONSUME, *more)
                    assert result.exit_code in (1, 2), result.output
                    lost = "is missing now", "is no longer complete"
                    assert any(words in result.stderr for words in lost), result.output
                    assert tree(source) == before
            damage.undo()
    done(name, source, out, *CONSUME)
    assert tree(out) == tree(whole)
    assert shards(source) == []


@every_operation
def test_a_file_that_changes_between_two_runs_is_carried_as_it_is_now(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source, out = copied(OPERATIONS[name][0]), tmp_path / "out"
    carried = (source / "metadata" if (source / "metadata").is_dir() else source) / "notes.py"
    carried.write_text("old")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("csf_tool.write.journal.Journal.close", stop)
    assert run(name, source, out).exit_code == 130
    monkeypatch.undo()
    carried.write_text("new")
    done(name, source, out)
    [written] = out.rglob("notes.py")
    assert written.read_text() == "new"
    done(name, source, tmp_path / "whole")
    assert tree(out) == tree(tmp_path / "whole")


@every_operation
def test_another_process_that_finishes_the_run_meanwhile(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Between the look whether it is complete and the opening of the journal."""
    source, out = sample(OPERATIONS[name][0]), tmp_path / "out"
    require_room = engine._require_room

    def after_another(*arguments: object) -> None:
        monkeypatch.setattr(engine, "_require_room", require_room)
        done(name, source, out)
        require_room(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_require_room", after_another)
    assert "is already complete" in done(name, source, out).stdout


def test_another_process_that_begins_the_run_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the destination is looked at, which then has files: the journal is there before them."""

    def names_after_another_began(folder: Path) -> list[str]:
        (tmp_path / OWN_FOLDER).mkdir()
        (tmp_path / OWN_FOLDER / DESCRIPTION).write_text("{}")
        (tmp_path / "model.safetensors").write_bytes(b"x")
        return names_in(folder)

    monkeypatch.setattr("csf_tool.write.journal_run.names_in", names_after_another_began)
    require_begun_or_empty(tmp_path)
