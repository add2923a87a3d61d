"""Removing source shards while another checkpoint is made of them, for disks without room for both copies.

A source shard is removed only when every new shard that needs it is written, synced, read back from the disk and
found right. Removals are recorded first, so that the run after a killed one knows what is missing on purpose.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.stored import Shard
from csf_tool.codes import Code
from csf_tool.disk.new_file import lock, sync_folder
from csf_tool.disk.reader import RandomReader, drop_cache
from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.write.journal import Journal, Record
from csf_tool.write.output import OutputShard


def require_consumable(checkpoint: Checkpoint) -> None:
    """Check that every shard is a plain file that is the user's own to remove.

    Raises:
        UsageError: one is a link (as in a Hub cache), has other names, or belongs to somebody else.
    """
    if checkpoint.hub:
        raise UsageError(f"--consume-source: {checkpoint.label} is on the Hub, where csf-tool removes nothing")
    if checkpoint.aside and not checkpoint.index:
        problem = f"--consume-source: no index tells whether {checkpoint.aside[0]} counts: move it away first"
        raise UsageError(problem, Code.SHARED_SOURCE)
    for shard in checkpoint.shards:
        if reason := _why_not(shard):
            problem = f"--consume-source: {shard.name} {reason}: nothing was removed or written"
            raise UsageError(problem, Code.SHARED_SOURCE)


@contextmanager
def sole_consumer(checkpoint: Checkpoint) -> Iterator[None]:
    """Keep other runs from removing the shards of the same source meanwhile, where the system can lock a folder.

    Raises:
        UsageError: a shard is not the user's own to remove.
        EnvironmentFault: another run is removing its shards.
    """
    require_consumable(checkpoint)
    if not hasattr(os, "O_DIRECTORY"):
        yield
        return
    folder = os.open(checkpoint.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if lock(folder, wait=False) is False:
            raise EnvironmentFault("another run is removing its shards: nothing was done", file=checkpoint.label)
        yield
    finally:
        os.close(folder)


def _why_not(shard: Shard) -> str | None:
    parents = [shard.path, *shard.path.parents]
    status = shard.path.lstat()
    if any(parent.is_symlink() for parent in parents[: shard.name.count("/") + 1]):
        return "is a link (into a Hub cache?), not a file of its own"
    if not stat.S_ISREG(status.st_mode):
        return "is not an ordinary file"
    if status.st_nlink > 1:
        return f"has {status.st_nlink} names (hard links)"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return "belongs to another user"
    return None


def status_of(path: Path) -> os.stat_result | None:
    """The status of a file or link itself; None where there is nothing."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


class Consumer:
    """Removes source shards of one run as soon as nothing needs them any more."""

    def __init__(
        self, shards: list[OutputShard], journal: Journal, right_record: Callable[[OutputShard], Record | None]
    ) -> None:
        self._journal = journal
        self._right_record = right_record
        self._needed_by = _needs(shards)
        self._sources = {source.name: source for shard in shards for source in shard.sources}
        self._found = {name: status_of(source.path) for name, source in self._sources.items()}
        self.removed: list[str] = []
        sync_folder(journal.path_of("").parent)  # or a power cut could take the result and leave the removal

    def shard_done(self, shard: OutputShard) -> None:
        """Read back a new shard that has got its name, and remove the sources that only it still needed.

        Raises:
            EnvironmentFault: what the disk gives back is not what was written; nothing is removed.
        """
        self._read_back(shard)
        for needs in self._needed_by.values():
            needs.discard(shard.name)
        free = [name for name, needs in self._needed_by.items() if not needs]
        if len(free) < len(self._needed_by):
            self._record(free)
            self._remove(free)

    def finish(self) -> None:
        """Remove the last sources, which were kept so that an unfinished run could open its checkpoint again."""
        names = list(self._needed_by)
        self._record(names)
        self._journal.complete()
        self._journal.note_consumed()
        self._remove(names)

    def _record(self, names: list[str]) -> None:
        """Record all sources that are about to go: half of a plane's streams must not be left unrecorded."""
        for name in names:
            self._journal.consume(self._sources[name])

    def _remove(self, names: list[str]) -> None:
        for name in names:
            self._require_same(name)
            self._sources[name].path.unlink(missing_ok=True)
            del self._needed_by[name]
            self.removed.append(name)

    def _require_same(self, name: str) -> None:
        """Check that a source is still the file that was read.

        Raises:
            EnvironmentFault: another file has taken its place.
        """
        source, then = self._sources[name], self._found[name]
        now = status_of(source.path)
        if now is None:
            return
        is_same = then is not None and os.path.samestat(now, then)
        if not is_same or (now.st_size, now.st_mtime_ns) != (source.size, source.mtime_ns):
            raise EnvironmentFault("was replaced after csf-tool read it, so it is kept", file=str(source.path))

    def _read_back(self, shard: OutputShard) -> None:
        path = self._journal.path_of(shard.name)
        with RandomReader(path, shard.name) as reader:
            drop_cache(reader.fileno(), 0, 0)  # the whole file: the disk is asked, not the cache
        if self._right_record(shard) is None:
            raise EnvironmentFault(
                f"{shard.name}: the disk returns other bytes than were written: the source is kept; check the disk"
            )


def _needs(shards: list[OutputShard]) -> dict[str, set[str]]:
    """The new shards that each source shard waits for; sources that share a new shard wait for the same ones."""
    needed_by: dict[str, set[str]] = {}
    for shard in shards:
        waiting = {shard.name}
        names = [source.name for source in shard.sources]
        for name in names:
            waiting |= needed_by.get(name, set())
        sharing = [name for name, needs in needed_by.items() if needs & waiting]
        for name in {*names, *sharing}:
            needed_by[name] = waiting
    return {name: set(needs) for name, needs in needed_by.items()}
