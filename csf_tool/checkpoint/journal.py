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
from csf_tool.checkpoint.model import Shard
from csf_tool.checkpoint.writer import PARTIAL_SUFFIX, Destination, is_abandoned, render_json
from csf_tool.errors import CheckpointError, UsageError

FOLDER = ".csf-tool"
_DESCRIPTION = "journal.json"
_RECORDS = "finished"
_CONSUMED = "consumed"
_KEPT = "kept"
_COMPLETE = "complete"
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

    def path_of(self, name: str) -> Path:
        """Where a file of the destination lies."""
        return self._destination / name

    def consume(self, shard: Shard) -> None:
        """Note that a source shard is about to be removed."""
        entry = {"name": shard.name, "size": shard.size, "mtime_ns": shard.mtime_ns}
        name = f"{_CONSUMED}/{quote(shard.name, safe='')}.json"
        if not (self._destination / FOLDER / name).exists():
            self._folder.write(name, render_json(entry))

    def keep(self, name: str, content: bytes) -> None:
        """Keep what a file is to hold at the end: an index is made from all headers, and some will be gone by then."""
        if self.kept(name) is None:
            self._folder.write(f"{_KEPT}/{quote(name, safe='')}", content)

    def kept(self, name: str) -> bytes | None:
        """What `keep` was given for a file, in this run or an earlier one."""
        path = self._destination / FOLDER / _KEPT / quote(name, safe="")
        return path.read_bytes() if path.is_file() else None

    def complete(self) -> None:
        """Note that every file is there, before the last source shards go."""
        if not is_complete(self._destination):
            self._folder.write(_COMPLETE, b"")

    def close(self) -> None:
        """The run is complete: the journal goes away, and the partial files of workers that died."""
        for path in self._destination.rglob(f".*{PARTIAL_SUFFIX}"):
            path.unlink(missing_ok=True)
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


def consumed_shards(destination: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every source shard that an interrupted run removed, by name."""
    folder = destination / FOLDER / _CONSUMED
    entries = [load_json(path, path.name) for path in sorted(folder.glob("*.json"))]
    return {str(entry["name"]): (int(entry["size"]), int(entry["mtime_ns"])) for entry in entries}


def is_complete(destination: Path) -> bool:
    """Whether all that an interrupted run left undone is to remove the last source shards and its journal."""
    return (destination / FOLDER / _COMPLETE).is_file()


def has_journal(destination: Path) -> bool:
    """Whether an interrupted run left its journal in a folder."""
    return (destination / FOLDER / _DESCRIPTION).is_file()
