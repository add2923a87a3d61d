"""--dry-run: what a run would write, read and remove, by the `Output` that the run would write. Nothing is written.

Whatever is found before the first byte is written is found here, too. What shows only when all bytes are read does not:
damaged streams, hashes, and the comparisons of --adopt and --recheck, of which sizes alone are looked at.
"""

import errno
import os
from dataclasses import dataclass, field
from enum import StrEnum

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.logical import Range
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.disk.reader import is_file, writing_fault
from csf_tool.write.adopt import File, name_of, refuse_wrong
from csf_tool.write.destination import Destination
from csf_tool.write.fetch import bytes_to_fetch
from csf_tool.write.journal import Journal, Record
from csf_tool.write.output import UNKNOWN_HASH, Output, OutputShard, Part
from csf_tool.write.room import room_needed
from csf_tool.write.run import WriteOptions


class Action(StrEnum):
    """Fate of a file of the result."""

    WRITE = "write"
    LINK = "link"
    KEEP = "keep"
    """Finished by an earlier run."""
    COMPARE = "compare"
    """Kept if it is right: it is in its place already."""
    LATER = "later"
    """Left to other parts of the run: shards to theirs, all else to the last."""


@dataclass(frozen=True)
class PlannedFile:
    """A file of the result, its size, and what the run does about it."""

    name: str
    size: int
    action: Action
    is_shard: bool = False


@dataclass(frozen=True)
class DryRun:
    """Forecast of a run. `bytes_to_read` are those of the source that go into what it writes.

    Room is what the run asks for before it begins; `room_free` is None where the file system does not say.
    """

    files: list[PlannedFile] = field(default_factory=list)
    bytes_to_read: int = 0
    bytes_to_fetch: int = 0
    room_needed: int = 0
    room_free: int | None = None
    removes: list[str] = field(default_factory=list)
    """Source shards that --consume-source would remove."""

    def of(self, action: Action) -> list[PlannedFile]:
        """The files that the run does this about."""
        return [file for file in self.files if file.action is action]

    @property
    def bytes_to_write(self) -> int:
        """Bytes of the files that are written."""
        return sum(file.size for file in self.of(Action.WRITE))


def foresee(
    output: Output,
    mine: list[OutputShard],
    checkpoint: Checkpoint,
    journal: Journal,
    destination: Destination,
    options: WriteOptions,
) -> DryRun:
    """Foresee a run that writes the shards `mine` of an output.

    Raises:
        As `csf_tool.write.engine.write`, if that would before its first byte.
    """
    needed, free = room_needed(output, mine, journal, options), destination.free_bytes()
    if free is not None:
        free += journal.abandoned_bytes()
        if not options.ignore_space:
            destination.refuse_too_little(needed, free)
    planner = _Planner(journal, destination, options)
    ours = {shard.name for shard in mine}
    shards = [planner.shard(shard, shard.name in ours) for shard in output.shards]
    is_last = all(file.action is not Action.LATER for file in shards)
    others = [planner.other(file, is_last) for file in output.side_files]
    others += [
        planner.other(receipt, is_needed=shard.name in ours)
        for shard in output.shards
        if (receipt := output.renderer.foreseen_receipt(shard))
    ]
    records = {shard.name: Record(shard.size, UNKNOWN_HASH) for shard in output.shards}
    others += [planner.other(file, is_last) for file in output.foreseen_documents(records)]
    planner.require_right()
    todo = [shard for shard, file in zip(output.shards, shards, strict=True) if file.action is Action.WRITE]
    copied = [file for file, plan in zip(output.side_files, others, strict=False) if plan.action is Action.WRITE]
    return DryRun(
        shards + others,
        sum(_bytes_of(part) for shard in todo for part in shard.parts)
        + sum(file.size for file in copied if file.content is None),
        sum(bytes_to_fetch(shard.sources) for shard in todo),
        needed,
        free,
        _removed(output, checkpoint) if options.consume_source else [],
    )


def _bytes_of(part: Part) -> int:
    """Bytes of the source that a part is made of."""
    if isinstance(part, Range):
        return part.end - part.begin
    return part.csf_bytes if isinstance(part, Plane) else part.dense_bytes


def _removed(output: Output, checkpoint: Checkpoint) -> list[str]:
    needed = {source.name for shard in output.shards for source in shard.sources}
    return [shard.name for shard in checkpoint.shards if shard.name in needed]


class _Planner:
    """Decision on each file; those of wrong sizes that lie there are collected."""

    def __init__(self, journal: Journal, destination: Destination, options: WriteOptions) -> None:
        self._journal, self._destination, self._options = journal, destination, options
        self._wrong: list[File] = []

    def shard(self, shard: OutputShard, is_mine: bool) -> PlannedFile:
        """The plan of a shard, of this run's share or of another's."""
        record = self._journal.finished(shard.name)
        if record and record.size == shard.size:
            action = Action.COMPARE if is_mine and self._options.recheck else Action.KEEP
        elif not is_mine:
            action = Action.LATER
        else:
            action = self._new(shard)
            if action is Action.WRITE and self._options.link and self._links(shard):
                action = Action.LINK
        return PlannedFile(shard.name, shard.size, action, is_shard=True)

    def other(self, file: SideFile, is_needed: bool) -> PlannedFile:
        """The plan of a file beside the shards, which this run needs or a later one."""
        if self._journal.finished(file.target):
            action = Action.KEEP
        else:
            action = self._new(file) if is_needed else Action.LATER
        return PlannedFile(file.target, file.size, action)

    def _new(self, file: File) -> Action:
        """Fate of a file that no run has finished."""
        name = name_of(file)
        if not self._journal.is_unrecorded(name):
            return Action.WRITE
        path = self._journal.path_of(name)
        if not self._options.compares:
            raise writing_fault(name, FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)))
        if path.is_symlink() or not is_file(path) or path.stat().st_size != file.size:
            self._wrong.append(file)
        return Action.COMPARE

    def _links(self, shard: OutputShard) -> bool:
        return shard.copy_of is not None and shard.can_be_linked and self._destination.shares_disk(shard.copy_of.path)

    def require_right(self) -> None:
        """Refuse files that lie there and are not of the size of those to write."""
        refuse_wrong([self._journal.path_of(name_of(file)) for file in self._wrong])
