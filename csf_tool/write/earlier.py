"""Remains of an earlier run in the destination, finished or not, as the next one finds them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.causes import first_of
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.model import Checkpoint
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import obstacles
from csf_tool.codes import Code
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.json_files import parse_json
from csf_tool.disk.own_files import has_journal
from csf_tool.disk.paths import holds_files, names_in, relative_files
from csf_tool.disk.reader import RandomReader, is_file, is_folder
from csf_tool.errors import CheckpointError, CsfToolError, UsageError
from csf_tool.text import escape
from csf_tool.write.consume import source_root
from csf_tool.write.destination import Destination
from csf_tool.write.fingerprint import fingerprint
from csf_tool.write.finished import finished_run
from csf_tool.write.journal import Journal, Record, consumed_shards
from csf_tool.write.output import Output, OutputShard
from csf_tool.write.run import Run, WriteOptions, Written

FACTS = "facts"
"""The name that `Output.facts` are kept under while source shards go."""


@dataclass(frozen=True)
class Earlier:
    """Remains of an earlier run in the same destination.

    `consumed` are the source shards that it removed, and `facts` the `Output.facts` that it kept. `result` is the
    checkpoint in the destination, if that run was the same as this one and finished.
    """

    consumed: Mapping[str, tuple[int, int]]
    facts: dict[str, Any] | None
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
        result = None if options.compares else finished_result(destination, run)
        if result is None:
            journal.require_same(run)  # before there is work to lose
        if result is None and not options.compares and not holds_files(destination, SHARD_SUFFIX):
            journal.require_begun_or_empty()  # before there is work to lose; folders with shards are examined later
        return cls(consumed, kept_facts(destination), result, run, journal)

    def written(self, checkpoint: Checkpoint, destination: Path) -> Written:
        """The report on a result that was complete already."""
        return Written(source=checkpoint.label, destination=str(destination), was_complete=True)

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
            raise CheckpointError("was written by an earlier run, and is not there any more", Code.LOST_OUTPUT, name)
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


def finished_result(destination: Path, run: Run) -> Checkpoint | None:
    """The checkpoint in a destination that a run is noted to have finished, if that run is the same as `run`.

    Raises:
        UsageError: it is the result of something else.
    """
    noted = finished_run(destination)
    if not noted or has_journal(destination) or not names_in(destination):
        return None
    try:
        earlier = Run.parse(noted)
        opened = open_checkpoint(destination)
    except CsfToolError:
        return None
    if not earlier.is_same(run):
        what = f"csf-tool {earlier.operation} {earlier.label}"
        why = "with other options" if (earlier.source, earlier.operation) == (run.source, run.operation) else "finished"
        problem = f"holds the result of `{what}`, {why}: give another folder, or remove this one"
        raise UsageError(problem, file=str(destination))
    carried = CONFIG_FILES if run.operation == "expand" else ()  # as they are, whatever is in them
    return None if any(problem.file not in carried for problem in obstacles(opened.problems)) else opened


def holds_whole(destination: Path, output: Output) -> bool:
    """Whether a folder holds the files of an output and no others, as far as names, sizes and headers tell.

    Only for folders without a note of the run that filled them.
    """
    if finished_run(destination) or not is_folder(destination):
        return False
    files = {shard.name: shard for shard in output.shards}
    beside = {file.target: file for file in output.side_files}
    present = set(relative_files(destination))
    if not {*files, *beside} <= present or not present <= {*files, *beside, *output.document_names}:
        return False
    return all(_has_header(destination / name, shard) for name, shard in files.items()) and all(
        file.is_equal_to(destination / name) for name, file in beside.items()
    )


def _has_header(path: Path, shard: OutputShard) -> bool:
    if not is_file(path) or path.stat().st_size != shard.size:
        return False
    with RandomReader(path, shard.name) as reader:
        return reader.read(0, len(shard.header)) == shard.header
