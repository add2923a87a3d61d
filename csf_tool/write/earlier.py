"""Remains of an earlier run in the destination, finished or not, as the next one finds them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.causes import first_of
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.problems import obstacles
from csf_tool.codes import Code
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.json_files import parse_json
from csf_tool.disk.own_files import has_journal
from csf_tool.disk.paths import holds_files, names_in
from csf_tool.errors import CheckpointError, CsfToolError, UsageError
from csf_tool.text import escape
from csf_tool.write.destination import Destination
from csf_tool.write.fingerprint import fingerprint, source_root
from csf_tool.write.journal import Journal, Record, consumed_shards
from csf_tool.write.journal_run import require_begun_or_empty, require_same
from csf_tool.write.run import Run, WriteOptions
from csf_tool.write.run_notes import finished_run
from csf_tool.write.sound import opened, sound_result

FACTS = "facts"
"""The name that `Output.facts` are kept under while source shards go."""


@dataclass(frozen=True)
class Earlier:
    """Remains of an earlier run in the same destination.

    `consumed` are the source shards that it removed, and `facts` the `Output.facts` that it kept. `was_finished` says
    that a run such as this one is noted to have filled the destination; `result` is the checkpoint that is there then,
    if it is sound.
    """

    consumed: Mapping[str, tuple[int, int]]
    facts: dict[str, Any] | None
    was_finished: bool
    result: Checkpoint | None
    run: Run
    _journal: Journal

    @classmethod
    def at(
        cls,
        destination: Path,
        checkpoint: Checkpoint,
        options: WriteOptions,
        operation: str,
        wanted: dict[str, Any] | None = None,
    ) -> "Earlier":
        """Read the destination of a run that is about to begin; `wanted` are the `options` of its `Run`.

        Raises:
            UsageError: the destination cannot be right, or holds the result of something else.
            CheckpointError: what an earlier run kept is damaged.
        """
        Destination(destination, checkpoint.path)
        journal, consumed = Journal(destination), consumed_shards(destination)
        root = "" if checkpoint.hub else source_root(checkpoint.root)
        chosen = {**(wanted or {}), **({"all_shards": True} if checkpoint.all_shards else {})}
        run = Run(operation, fingerprint(checkpoint, consumed), chosen, escape(checkpoint.label), root)
        was_finished = not options.compares and _was_finished(destination, run)
        result = sound_result(destination, run.operation) if was_finished else None
        if not was_finished:
            require_same(destination, run)  # before there is work to lose
        if not was_finished and not options.compares and not holds_files(destination, SHARD_SUFFIX):
            require_begun_or_empty(destination)  # before there is work to lose; folders with shards are examined later
        return cls(consumed, kept_facts(destination), was_finished, result, run, journal)

    def content(self, name: str) -> bytes | None:
        """The kept content of a file beside the shards: headers that it was made from may have been removed."""
        return self._journal.kept(name)

    def count_finished(self, names: Iterable[str]) -> int:
        """The number of the named files that are there, as far as the journal tells."""
        return sum(self._journal.finished(name) is not None for name in names)

    def record(self, name: str, records: Mapping[str, Record]) -> Record:
        """The record of a shard that this run or an earlier one has written.

        Raises:
            CheckpointError: the shard is not there as it was written.
        """
        record = records.get(name) or self._journal.finished(name)
        if record is None:
            raise CheckpointError("was written by an earlier run, but is missing now", Code.LOST_OUTPUT, name)
        return record


def kept_facts(destination: Path) -> dict[str, Any] | None:
    """The `Output.facts` kept by an unfinished run that removes its source.

    Raises:
        CheckpointError: they are damaged.
    """
    raw = Journal(destination).kept(FACTS)
    return parse_json(raw, FACTS) if raw else None


def require_sound(
    checkpoint: Checkpoint, consumed: Mapping[str, object], refusal: str, excused: Iterable[str] = ()
) -> None:
    """Refuse a checkpoint at fault, but not for faults in the files `excused`.

    Shards that an earlier run removed are missing on purpose, and a container's totals no longer fit: that run had
    checked the whole checkpoint.

    Raises:
        CheckpointError: there is a fault.
    """
    known = {*excused, *consumed, *(checkpoint.layout.totals_in if consumed else ())}
    if faults := [problem for problem in obstacles(checkpoint.problems) if problem.file not in known]:
        raise CheckpointError(f"{refusal}: {first_of(faults)}", Code.FAULTY_SOURCE, checkpoint.label)


def _was_finished(destination: Path, run: Run) -> bool:
    """Whether a run such as `run` is noted to have filled the destination, which has files in it still.

    Raises:
        UsageError: it holds the result of something else.
    """
    noted = finished_run(destination)
    if not noted or has_journal(destination) or not names_in(destination):
        return False
    try:
        earlier = Run.parse(noted)
    except CsfToolError:
        return False
    if earlier.is_same(run):
        return True
    if opened(destination) is None:
        return False
    what = f"csf-tool {earlier.operation} {earlier.label}"
    why = "with other options" if (earlier.source, earlier.operation) == (run.source, run.operation) else "finished"
    problem = f"holds the result of `{what}`, {why}: give another folder, or remove this one"
    raise UsageError(problem, file=str(destination))
