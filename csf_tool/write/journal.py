"""The journal of a run in its destination: the run's description, and a record of each finished file.

It lies in a folder of its own and has one small file per finished file, so that several machines can write into one
destination. A file's record is written before the file gets its name, so a file with its name has a record.
The journal is removed when the run is complete.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from csf_tool.checkpoint.stored import Shard
from csf_tool.codes import Code
from csf_tool.disk.json_files import render_json
from csf_tool.disk.new_file import NewFile, remove_abandoned
from csf_tool.disk.own_files import (
    CLOSING,
    CONSUMED,
    DESCRIPTION,
    FETCHED,
    KEPT,
    LOCK,
    OWN_FOLDER,
    RECORDS,
    has_journal,
    is_partial,
)
from csf_tool.disk.paths import names_in
from csf_tool.disk.reader import exists, is_file
from csf_tool.errors import CheckpointError, EnvironmentFault
from csf_tool.write.destination import Destination
from csf_tool.write.journal_lock import acquire_lock, make_lock
from csf_tool.write.journal_run import description_in, require_fit, run_in
from csf_tool.write.run import Run
from csf_tool.write.run_notes import note_consumed, note_finished

_COMPLETE = "complete"
_LONGEST_NAME = 200
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class Record:
    """A finished file: its size, and its SHA-256 where the run knows it."""

    size: int
    sha256: str | None = None


class Journal:
    """The journal of one destination."""

    def __init__(self, destination: Path, *, keep_cache: bool = False) -> None:
        """Take the destination's path; with `keep_cache`, its large files go through the page cache, too."""
        self._destination = destination
        self._files = Destination(destination, keep_cache=keep_cache)
        self._folder = Destination(destination / OWN_FOLDER)
        self._held: BinaryIO | None = None
        self._was_closing = False

    @classmethod
    def open(
        cls,
        destination: Path,
        run: Run,
        *,
        alone: bool = False,
        beside: Collection[str] | None = None,
        keep_cache: bool = False,
    ) -> "Journal":
        """The journal of `run`: that of an interrupted one, or a new one in a new or empty folder.

        With `alone`, only one process at a time can open it, until that process closes it or ends. Files whose names
        are in `beside` may lie in the folder already.

        Raises:
            UsageError: the folder holds something else, or the journal is of another run.
            CheckpointError: the journal is damaged.
            EnvironmentFault: another process has it, or the system cannot write.
        """
        journal = cls(destination, keep_cache=keep_cache)
        held = journal._enter(run, beside, wait=not alone)
        try:
            # Read once: another process that closes the run has released the lock, and removes this file next.
            journal._was_closing = is_file(destination / CLOSING)
            require_fit(destination, run, beside)  # again, now that no other run can change it
            if not journal._was_closing and not has_journal(destination):
                journal._folder.write(DESCRIPTION, render_json(run.describe()))
        except BaseException:
            if not has_journal(destination):  # then its folder was made just now, in vain
                shutil.rmtree(destination / OWN_FOLDER, ignore_errors=True)
            held.close()
            raise
        if alone:
            journal._held = held
        else:
            held.close()
        journal.remove_abandoned()
        return journal

    def _enter(self, run: Run, beside: Collection[str] | None, *, wait: bool) -> BinaryIO:
        """The lock of a folder that fits the run, tried again when another process closes its run meanwhile."""
        for _ in range(_ATTEMPTS):
            require_fit(self._destination, run, beside)
            with suppress(FileNotFoundError):
                make_lock(self._destination)
                try:
                    return acquire_lock(self._destination, wait=wait)
                except EnvironmentFault:
                    if description_in(self._destination) is not None:
                        require_fit(self._destination, run, beside)  # if it is of another run, report that instead
                        raise
                time.sleep(_PAUSE_SECONDS)  # the other process is about to write its description
        raise EnvironmentFault(f"{self._destination}: other processes keep removing {OWN_FOLDER} from it")

    def remove_abandoned(self) -> None:
        """Remove partial files of processes that have ended, which would take room."""
        for path in self._partials():
            remove_abandoned(path)

    def abandoned_bytes(self) -> int:
        """Bytes of the files that `remove_abandoned` would remove."""
        return sum(remove_abandoned(path, spare=True) for path in self._partials())

    def require_free(self, run: Run, beside: Collection[str] | None, *, alone: bool) -> None:
        """Check what `open` checks, and make nothing.

        Raises:
            As `open`.
        """
        require_fit(self._destination, run, beside)
        self._files.require_writable(OWN_FOLDER)
        if alone and exists(self._destination / OWN_FOLDER / LOCK):
            with suppress(FileNotFoundError):
                acquire_lock(self._destination, wait=False).close()

    @contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Hold the lock; yield whether the journal still exists, for another process may have closed it."""
        if self._held:  # this run has held the lock from its beginning
            yield True
            return
        try:
            held = acquire_lock(self._destination, wait=True)
        except FileNotFoundError:
            yield False
            return
        self._held = held
        try:
            yield self._was_closing or is_file(self._destination / OWN_FOLDER / DESCRIPTION)
        finally:
            self.release()

    def finished(self, name: str) -> Record | None:
        """The record of a finished file, if the file still exists in its recorded size."""
        file = self._destination / name
        if not is_file(file):
            return None
        size = file.stat().st_size
        try:
            entry = json.loads(self._record_path(name).read_bytes())
            record = Record(int(entry["size"]), entry.get("sha256"))
        except FileNotFoundError:  # closing a complete run removes records first
            return Record(size) if self.is_closing() else None
        except (ValueError, TypeError, LookupError):  # the record is damaged: the file is written again
            return None
        return record if size == record.size else None

    def is_closing(self) -> bool:
        """Whether all is finished, and the records are being removed, of which documents would be made."""
        return self._was_closing or exists(self._destination / CLOSING)

    def lost(self, again: Collection[str]) -> list[str]:
        """Finished files that are not there any more as they were recorded, but for those that are made `again`."""
        folder = self._destination / OWN_FOLDER / RECORDS
        names = [_name_in(folder / file) for file in names_in(folder) if file.endswith(".json")]
        return sorted(name for name in names if name and name not in again and not self.finished(name))

    def is_unrecorded(self, name: str) -> bool:
        """Whether something has the name of a file that no run has finished."""
        return not is_file(self._record_path(name)) and exists(self._destination / name)

    def bytes_there(self, names: Iterable[str]) -> int:
        """Total size of the named files that an interrupted run finished: they need no room again."""
        return sum(record.size for name in names if (record := self.finished(name)))

    def create(self, name: str, nbytes: int, prove: Callable[[Path], Record]) -> NewFile:
        """A file of about `nbytes` to be written under `name`, recorded before it gets its name.

        `prove` is called with the temporary path when the file is complete and synced; it gives the record, or raises.
        If another process of the same run has finished the file by then, its file stays.
        """
        return self._files.create(
            name,
            nbytes,
            on_complete=lambda path: self.finish(name, prove(path)),
            is_there=lambda: self.finished(name) is not None,
        )

    def link(self, name: str, source: Path, record: Record) -> bool:
        """Make `name` a hard link to a file, recorded first; False if the file system does not allow it."""
        self.finish(name, record)
        return self._files.link(name, source)

    def finish(self, name: str, record: Record) -> None:
        """Note that a file is complete and synced, and about to get its name."""
        path = self._record_path(name)
        with NewFile(path, f"{OWN_FOLDER}/{RECORDS}/{path.name}", replace=True) as file:
            file.write(_as_note({"name": name, **asdict(record)}))

    def forget_damaged(self, name: str) -> None:
        """Remove a file that was finished and has another size now, with its record; files without a record stay.

        A record without its file is left alone: another process may be about to give that file its name.
        """
        is_there = is_file(self._record_path(name)) and is_file(self._destination / name)
        if is_there and not self.finished(name):
            self.forget(name)

    def forget(self, name: str) -> None:
        """Remove a file that turned out to be wrong: its record, then the file."""
        self._record_path(name).unlink(missing_ok=True)
        (self._destination / name).unlink(missing_ok=True)

    def path_of(self, name: str) -> Path:
        """The path of a file of the destination."""
        return self._destination / name

    def fetch_folder(self, name: str) -> Path:
        """The folder of what is fetched for a file of the destination, until that file is complete."""
        return self._destination / OWN_FOLDER / FETCHED / _plain(name)

    def consume(self, shard: Shard) -> None:
        """Note that a source shard is about to be removed."""
        entry = {"name": shard.name, "size": shard.size, "mtime_ns": shard.mtime_ns}
        name = f"{CONSUMED}/{_plain(shard.name)}.json"
        if not exists(self._destination / OWN_FOLDER / name):
            self._folder.write(name, _as_note(entry))

    def keep(self, name: str, content: bytes) -> None:
        """Keep a file's later content: an index is made from all headers, some of which are removed before the end."""
        if self.kept(name) is None:
            self._folder.write(f"{KEPT}/{_plain(name)}", content)

    def kept(self, name: str) -> bytes | None:
        """The content that `keep` saved for a file, in this run or an earlier one."""
        path = self._destination / OWN_FOLDER / KEPT / _plain(name)
        return path.read_bytes() if is_file(path) else None

    def complete(self) -> None:
        """Note that every file is finished, before the last source shards are removed."""
        if not is_complete(self._destination):
            self._folder.write(_COMPLETE, b"")

    def note_consumed(self) -> None:
        """Note in the source, whose last shards are about to go, what was made of it."""
        run = self.run()
        if run and run.root:
            note_consumed(Path(run.root), self._destination, run.describe())

    def close(self) -> None:
        """Remove the journal of the complete run, and partial files of workers that died.

        The description is removed last, so that the same run can be started again whenever this is interrupted.
        """
        folder, closing = self._destination / OWN_FOLDER, self._destination / CLOSING
        with suppress(FileNotFoundError):  # an earlier run may have moved it already
            (folder / DESCRIPTION).replace(closing)
        with suppress(OSError, ValueError):
            note_finished(self._destination, json.loads(closing.read_bytes()))
        for path in self._partials():
            path.unlink(missing_ok=True)
        self._remove(folder)
        closing.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Release the lock on the destination: this run has ended, well or not."""
        if self._held:
            self._held.close()
            self._held = None

    def _remove(self, folder: Path) -> None:
        """Remove the journal's folder, holding the lock in it as long as the system allows."""
        for _ in range(_ATTEMPTS):  # another process may have it open, to see that nothing is left to do
            shutil.rmtree(folder, ignore_errors=True)
            if not exists(folder):
                return
            self.release()  # Windows and NFS keep a folder while a file in it is open
            time.sleep(_PAUSE_SECONDS)
        shutil.rmtree(folder)

    def _record_path(self, name: str) -> Path:
        return self._destination / OWN_FOLDER / RECORDS / f"{_plain(name)}.json"

    def run(self) -> Run | None:
        """The run that the journal describes, as `run_in`."""
        return run_in(self._destination)

    def _partials(self) -> list[Path]:
        """The partial files of all runs. `os.walk` skips folders that other processes remove meanwhile."""
        paths = (Path(folder, name) for folder, _, names in os.walk(self._destination) for name in names)
        return [path for path in paths if is_partial(path)]


def _as_note(entry: dict[str, Any]) -> bytes:
    """JSON in ASCII: it can hold a name that is no UTF-8, which `render_json` refuses."""
    return json.dumps(entry).encode()


def _name_in(record: Path) -> str:
    """The name of the file that a record is of; empty where the record is damaged, as by a cut in power."""
    try:
        return str(json.loads(record.read_bytes())["name"])
    except (OSError, ValueError, TypeError, LookupError):
        return ""


def _plain(name: str) -> str:
    """A file's path, bytes that are not UTF-8 included, as one file name that every system accepts."""
    plain = quote(os.fsencode(name), safe="")
    return plain if len(plain) <= _LONGEST_NAME else hashlib.sha256(os.fsencode(name)).hexdigest()


def consumed_shards(destination: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every source shard that an interrupted run removed, by name."""
    folder = destination / OWN_FOLDER / CONSUMED
    try:
        entries = [json.loads((folder / name).read_bytes()) for name in names_in(folder) if name.endswith(".json")]
        return {str(entry["name"]): (int(entry["size"]), int(entry["mtime_ns"])) for entry in entries}
    except (ValueError, TypeError, LookupError) as error:
        problem = "holds damaged records: it is unknown which shards were removed"
        raise CheckpointError(problem, Code.DAMAGED_JOURNAL, str(folder)) from error


def is_complete(destination: Path) -> bool:
    """Whether an interrupted run had only to remove the last source shards and its journal."""
    return is_file(destination / OWN_FOLDER / _COMPLETE) or is_file(destination / CLOSING)
