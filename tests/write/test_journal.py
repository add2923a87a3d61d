"""Runs that meet in one destination: the one that comes late finds a finished folder, and leaves it as it is."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from csf_tool.disk.json_files import load_json
from csf_tool.disk.own_files import CLOSING, OWN_FOLDER
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.write import journal as module
from csf_tool.write import journal_lock, journal_run
from csf_tool.write.journal import Journal, Record
from csf_tool.write.run import Run

RUN = Run("expand", "the source", {})


def finished_run(destination: Path) -> Journal:
    """A run whose only file is there, about to be closed."""
    journal = Journal.open(destination, RUN)
    journal.finish("model.safetensors", Record(4))
    (destination / "model.safetensors").write_bytes(b"done")
    return journal


@pytest.mark.parametrize("moment", ["before the lock is asked for", "while it is waited for"])
def test_a_run_that_is_closed_while_the_same_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    first = finished_run(tmp_path)
    owner, step = (module, "acquire_lock") if moment.startswith("before") else (journal_lock, "lock")
    usual = getattr(owner, step)

    def closed_meanwhile(*args: object, **kwargs: object) -> object:
        monkeypatch.setattr(owner, step, usual)
        first.close()
        return usual(*args, **kwargs)

    monkeypatch.setattr(owner, step, closed_meanwhile)
    with pytest.raises(UsageError, match="not empty"):
        Journal.open(tmp_path, RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_run_that_begins_while_the_same_one_is_nearly_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its journal is gone, what says that it was complete not yet: the second finds all done, and closes again."""
    first = finished_run(tmp_path)
    usual = Path.unlink
    late: list[Journal] = []

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == CLOSING and not late:
            late.append(Journal.open(tmp_path, RUN))
        usual(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    first.close()
    assert not (tmp_path / OWN_FOLDER / "journal.json").exists()
    assert late[0].finished("model.safetensors") == Record(4)
    late[0].close()
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_run_that_begins_while_the_description_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that closes the run moves it just before it is read."""
    finished_run(tmp_path)
    usual = load_json

    def moved(path: Path, name: str) -> Any:
        monkeypatch.setattr(journal_run, "load_json", usual)
        (tmp_path / OWN_FOLDER / "journal.json").replace(tmp_path / CLOSING)
        return usual(path, name)

    monkeypatch.setattr(journal_run, "load_json", moved)
    assert Journal.open(tmp_path, RUN).finished("model.safetensors") == Record(4)


@pytest.mark.parametrize("content", [b"null", b"[]", b"{", b""])
def test_a_damaged_description_is_not_passed_over(tmp_path: Path, content: bytes) -> None:
    Journal.open(tmp_path, RUN)
    (tmp_path / OWN_FOLDER / "journal.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"^\.csf-tool/journal\.json: not"):
        Journal.open(tmp_path, RUN)


def test_a_record_whose_file_is_about_to_come_is_left_alone(tmp_path: Path) -> None:
    """Another process notes that a file is complete before it gives the file its name."""
    journal = Journal.open(tmp_path, RUN)
    journal.finish("model.safetensors", Record(4))
    journal.forget_damaged("model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"done")
    journal.forget_damaged("model.safetensors")
    assert journal.finished("model.safetensors") == Record(4)
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    journal.forget_damaged("model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_a_folder_that_another_process_removes_while_abandoned_files_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fetched for a shard lies in a folder of its own, which goes when that shard is complete."""
    other = Journal.open(tmp_path, RUN)
    fetched = other.fetch_folder("model.safetensors")
    fetched.mkdir(parents=True)
    usual = os.scandir

    def removed_just_before(path: Any = ".") -> Any:
        if str(path) == str(fetched):
            shutil.rmtree(fetched)
        return usual(path)

    monkeypatch.setattr(os, "scandir", removed_just_before)
    Journal.open(tmp_path, RUN)
    assert not fetched.exists()
