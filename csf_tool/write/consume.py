"""Removing source shards while another checkpoint is made of them, for disks without room for both copies.

A source shard goes only when every new shard that needs it is written, synced, read back from the disk and
found right. What is about to go is recorded first, so that a run killed midway knows what is missing on purpose.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from csf_tool.checkpoint.model import Checkpoint, Shard
from csf_tool.codes import Code
from csf_tool.disk.own_files import OWN_FOLDER
from csf_tool.disk.paths import safe_relative
from csf_tool.disk.reader import RandomReader, drop_cache
from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.write.journal import Journal, Record, consumed_shards, is_complete
from csf_tool.write.output import OutputShard


def require_consumable(checkpoint: Checkpoint) -> None:
    """Check that every shard is a plain file that is the user's own to remove.

    Raises:
        UsageError: one is a link (as in a Hub cache), has other names, or belongs to somebody else.
    """
    if checkpoint.hub:
        raise UsageError(f"--consume-source: {checkpoint.label} is on the Hub: csf-tool removes nothing there")
    for shard in checkpoint.shards:
        if reason := _why_not(shard):
            problem = f"--consume-source: {shard.name} {reason}: nothing was removed or written"
            raise UsageError(problem, Code.SHARED_SOURCE)


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


def finish_removal(source: Path, destination: Path) -> bool:
    """Do what a run left undone that was killed while it removed the last source shards; whether there was one.

    Raises:
        UsageError: a shard in `source` is not the one that the run has read.
    """
    if not is_complete(destination):
        return False
    for name, recorded in consumed_shards(destination).items():
        path = source / safe_relative(name, OWN_FOLDER)
        status = path.lstat() if path.exists() else None
        if status and (status.st_size, status.st_mtime_ns) != recorded:
            raise UsageError(f"{path}: is not the shard that {destination} was made from: nothing was removed")
    for name in consumed_shards(destination):
        (source / name).unlink(missing_ok=True)
    Journal(destination).close()
    return True


class Consumer:
    """Removes source shards of one run as soon as nothing needs them any more."""

    def __init__(
        self, shards: list[OutputShard], journal: Journal, right_record: Callable[[OutputShard], Record | None]
    ) -> None:
        self._journal = journal
        self._right_record = right_record
        self._needed_by = _needs(shards)
        self._sources = {source.name: source for shard in shards for source in shard.sources}
        self.removed: list[str] = []

    def shard_done(self, shard: OutputShard) -> None:
        """A new shard has its name: read it back, and remove the sources that only it still needed.

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
        """The checkpoint is complete: the last sources go, which were kept so that it could be opened again."""
        names = list(self._needed_by)
        self._record(names)
        self._journal.complete()
        self._remove(names)

    def _record(self, names: list[str]) -> None:
        """Note what is about to go: all of it first, lest half of a plane's streams be left for the next run."""
        for name in names:
            self._journal.consume(self._sources[name])

    def _remove(self, names: list[str]) -> None:
        for name in names:
            self._sources[name].path.unlink(missing_ok=True)
            del self._needed_by[name]
            self.removed.append(name)

    def _read_back(self, shard: OutputShard) -> None:
        path = self._journal.path_of(shard.name)
        with RandomReader(path, shard.name) as reader:
            drop_cache(reader.fileno(), 0, 0)  # the whole file: the disk is asked, not the cache
        if self._right_record(shard) is None:
            raise EnvironmentFault(
                f"{shard.name}: the disk does not give back what was written: its source is kept; check the disk"
            )


def _needs(shards: list[OutputShard]) -> dict[str, set[str]]:
    """The new shards that each source shard waits for; those with a new shard in common wait for all of theirs."""
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
