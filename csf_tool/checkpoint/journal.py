"""The journal of a run in its destination: what it is a run of, and which files are finished.

It lies in a folder of its own, one small file a finished file, so that several machines can write into one
destination. A file's record is written before the file gets its name: a file with its name has a record.
When the run is complete the journal goes away.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from csf_tool.checkpoint.files import load_json
from csf_tool.checkpoint.writer import PARTIAL_SUFFIX, Destination, is_abandoned, render_json
from csf_tool.errors import CheckpointError, UsageError

FOLDER = ".csf-tool"
_DESCRIPTION = "journal.json"
_RECORDS = "finished"
SCHEMA = "csf-tool.journal/1"


@dataclass(frozen=True)
class Run:
    """What a destination is being filled with: a second run must be the same to go on with it."""

    operation: str
    source: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Record:
    """A finished file: its size, and its SHA-256 where the run knows it."""

    size: int
    sha256: str | None = None


class Journal:
    """The journal of one destination."""

    def __init__(self, destination: Path) -> None:
        self._destination = destination
        self._folder = Destination(destination / FOLDER)

    @classmethod
    def open(cls, destination: Path, run: Run) -> "Journal":
        """The journal of `run`: that of an interrupted one, or a new one in a new or empty folder.

        Raises:
            UsageError: the folder holds something else, or the journal is of another run.
        """
        journal = cls(destination)
        if not has_journal(destination):
            Destination(destination).require_empty()
            journal._folder.write(_DESCRIPTION, render_json({"schema": SCHEMA, **asdict(run)}))
            return journal
        journal._require_same(run)
        journal._remove_abandoned()
        return journal

    def finished(self, name: str) -> Record | None:
        """The record of a finished file that is still there with the size it had."""
        path = self._record_path(name)
        if not path.is_file():
            return None
        entry = load_json(path, path.name)
        record = Record(int(entry["size"]), entry.get("sha256"))
        file = self._destination / name
        return record if file.is_file() and file.stat().st_size == record.size else None

    def finish(self, name: str, record: Record) -> None:
        """Note that a file is complete and synced, and about to get its name."""
        self._record_path(name).unlink(missing_ok=True)
        self._folder.write(f"{_RECORDS}/{self._record_path(name).name}", render_json(asdict(record)))

    def forget(self, name: str) -> None:
        """Take back a file that turned out to be wrong: its record, then the file."""
        self._record_path(name).unlink(missing_ok=True)
        (self._destination / name).unlink(missing_ok=True)

    def close(self) -> None:
        """The run is complete: the journal goes away."""
        shutil.rmtree(self._destination / FOLDER)

    def _record_path(self, name: str) -> Path:
        return self._destination / FOLDER / _RECORDS / f"{quote(name, safe='')}.json"

    def _require_same(self, run: Run) -> None:
        found = load_json(self._destination / FOLDER / _DESCRIPTION, f"{FOLDER}/{_DESCRIPTION}")
        wanted = {"schema": SCHEMA, **asdict(run)}
        if not isinstance(found, dict):
            raise CheckpointError(f"{FOLDER}/{_DESCRIPTION}: not a JSON object")
        differing = [key for key in wanted if found.get(key) != wanted[key]]
        if differing:
            what = "; ".join(f"{k}: {json.dumps(found.get(k))} there, {json.dumps(wanted[k])} now" for k in differing)
            raise UsageError(
                f"{self._destination}: holds an unfinished run of something else ({what}); give another folder, "
                "or remove this one"
            )

    def _remove_abandoned(self) -> None:
        """Remove partial files whose writer is no more."""
        for path in self._destination.rglob(f".*{PARTIAL_SUFFIX}"):
            if is_abandoned(path.name):
                path.unlink(missing_ok=True)


def has_journal(destination: Path) -> bool:
    """Whether an interrupted run left its journal in a folder."""
    return (destination / FOLDER / _DESCRIPTION).is_file()
