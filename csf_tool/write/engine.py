"""Writing an `Output` into a destination: the one way in which `expand`, `compress` and `convert` write.

Shards are independent: each is one job, on threads here or on the given executor, and a journal in the destination
records which are finished. The files beside them, which make a folder look like a checkpoint, are written when all
shards are there.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from csf_tool.cancel import CancelToken
from csf_tool.checkpoint.causes import incomplete_notes
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.page_cache import should_drop_cache
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.codes import Code
from csf_tool.disk.json_files import render_json
from csf_tool.disk.own_files import has_journal
from csf_tool.disk.paths import relative_files
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.progress import Amount, OnBytes, Progress, SharedProgress
from csf_tool.running.jobs import run_with_progress
from csf_tool.write.adopt import adopt
from csf_tool.write.consume import Consumer, sole_consumer
from csf_tool.write.copy import write_side_file
from csf_tool.write.destination import Destination
from csf_tool.write.dry_run import foresee
from csf_tool.write.earlier import FACTS, Earlier
from csf_tool.write.evidence import Evidence, require_hashes, shard_evidence
from csf_tool.write.fetch import bytes_to_fetch
from csf_tool.write.journal import Journal, Record
from csf_tool.write.journal_run import require_fit
from csf_tool.write.output import Output, OutputShard
from csf_tool.write.room import room_needed
from csf_tool.write.run import Run, Share, WriteOptions, Written
from csf_tool.write.shard_comparison import ShardComparison
from csf_tool.write.shard_job import Did, ShardJob, write_shard
from csf_tool.write.whole import files_made, holds_whole, names_of


def write(
    output: Output,
    checkpoint: Checkpoint,
    destination: Path,
    earlier: Earlier,
    progress: Progress,
    options: WriteOptions,
    begun: float,
) -> Written:
    """Write an output that is made of `checkpoint` into the folder `destination`.

    The folder is new, empty, or left by such a run. Shards that an interrupted run finished are not written again.
    `begun` is the time, by `time.monotonic`, since when the run's seconds count.

    Raises:
        UsageError: the destination cannot be right, or the source's shards cannot be removed.
        CheckpointError: a source is broken, or what was written is not what it must be: only good shards have names.
        EnvironmentFault: not enough room, or the system cannot write.
    """
    is_to_begin = not options.compares and not has_journal(destination)
    if is_to_begin and holds_whole(destination, output, was_finished=earlier.was_finished):
        return _already_complete(output, checkpoint, destination, options)
    with sole_consumer(checkpoint) if options.consume_source else nullcontext():
        mine = [shard for i, shard in enumerate(output.shards) if options.share.takes(i)]
        if earlier.consumed:
            _require_kept(output, destination)
        if options.dry_run:
            return _foreseen(output, mine, checkpoint, destination, earlier, options)
        try:
            _require_room(output, mine, checkpoint, destination, earlier.run, options)
            journal = _open_journal(output, earlier.run, destination, options)
        except UsageError as error:
            if error.code is Code.NOT_EMPTY and holds_whole(destination, output, was_finished=False):
                # another process has finished it meanwhile
                return _already_complete(output, checkpoint, destination, options)
            raise
        try:
            run = _Run(output, checkpoint, journal, progress, options)
            run.write(mine)
        finally:
            journal.release()
        run.written.seconds = time.monotonic() - begun
        return run.written


def _require_kept(output: Output, destination: Path) -> None:
    """Check that what was made of removed shards is still there, before others are removed.

    Raises:
        CheckpointError: it is not.
    """
    if lost := Journal(destination).lost(files_made(output)):
        problem = "was written by an earlier run, which removed its source, but is missing now"
        raise CheckpointError(f"{problem}: nothing was done", Code.LOST_OUTPUT, lost[0])


def _already_complete(output: Output, checkpoint: Checkpoint, destination: Path, options: WriteOptions) -> Written:
    """The report of a run over its own complete result, with notes on what it has left alone."""
    surplus = sorted({*relative_files(destination)} - names_of(output))
    notes = [f"it has {', '.join(surplus)} as well, which the command does not write"] if surplus else []
    if options.consume_source:
        notes.append("no source shard was removed: with --recheck the tensors are compared first, and then they are")
    return Written(source=checkpoint.label, destination=str(destination), notes=notes, was_complete=True)


def _require_room(
    output: Output,
    mine: list[OutputShard],
    checkpoint: Checkpoint,
    destination: Path,
    run: Run,
    options: WriteOptions,
) -> None:
    """Check that there is room for the files still to write, and for the stored shards that are fetched meanwhile.

    Half-written files of a killed run are removed first, or they would count against the room.
    """
    journal = Journal(destination)
    if has_journal(destination):
        require_fit(destination, run, None)
        journal.remove_abandoned()
    if not options.ignore_space:
        Destination(destination, checkpoint.path).require_space(room_needed(output, mine, journal, options))


def _open_journal(output: Output, run: Run, destination: Path, options: WriteOptions) -> Journal:
    """The journal of the run. A whole run on one machine keeps others out of its destination."""
    return Journal.open(
        destination,
        run,
        alone=_is_alone(options),
        beside=_beside(output, options),
        keep_cache=options.drop_cache is False,
    )


def _is_alone(options: WriteOptions) -> bool:
    return options.share == Share() and options.executor is None


def _beside(output: Output, options: WriteOptions) -> set[str] | None:
    """The names of files that may lie in the destination already."""
    return names_of(output) if options.compares else None


def _foreseen(
    output: Output,
    mine: list[OutputShard],
    checkpoint: Checkpoint,
    destination: Path,
    earlier: Earlier,
    options: WriteOptions,
) -> Written:
    """The result of a dry run."""
    journal = Journal(destination)
    journal.require_free(earlier.run, _beside(output, options), alone=_is_alone(options))
    there = Destination(destination, checkpoint.path)
    report = _report(output, checkpoint, destination)
    report.dry_run = foresee(output, mine, checkpoint, journal, there, options)
    return report


def _report(output: Output, checkpoint: Checkpoint, destination: Path) -> Written:
    """The report of a run that has done nothing yet."""
    return Written(
        source=checkpoint.label,
        destination=str(destination),
        left_out=dict(output.left_out),
        notes=output.alike_but_for_case() + incomplete_notes(checkpoint.problems),
    )


class _Run:
    """One run of the engine, from the open journal on."""

    def __init__(
        self, output: Output, checkpoint: Checkpoint, journal: Journal, progress: Progress, options: WriteOptions
    ) -> None:
        self._output = output
        self._journal = journal
        self._progress = SharedProgress(progress)
        self._cancel = CancelToken(checkpoint.stop_fetching)
        self._options = options
        self._drop_cache = should_drop_cache(checkpoint, options.drop_cache)
        self.written = _report(output, checkpoint, journal.path_of(""))
        self._comparison = ShardComparison(output, journal)
        self._evidence = shard_evidence(checkpoint)
        self._consumer = self._start_consuming() if options.consume_source else None

    def _start_consuming(self) -> Consumer:
        """Keep everything that is made from the whole source before any shard of it is removed."""
        self._journal.keep(FACTS, render_json(self._output.facts))
        for file in self._output.side_files:
            if file.content is not None:
                self._journal.keep(file.target, file.content)
        return Consumer(self._output.shards, self._journal, self._comparison.right_record)

    def write(self, mine: list[OutputShard]) -> None:
        """Write the shards of this share, and all other files when every shard is there."""
        if self._options.compares:
            self.written.adopted_files = self._adopt([*mine, *self._output.side_files])
        there = [shard.size for shard in mine if self._options.recheck and self._journal.finished(shard.name)]
        if there:
            self._progress.start("compare", Amount(sum(there), len(there)))
        todo = [shard for shard in mine if not self._is_finished(shard)]
        self._progress.resume(len(self.written.resumed_shards), len(mine))
        left, whole = self._work(todo), self._work(mine)
        beside = sum(file.size for file in self._output.side_files)
        self._progress.start(
            self._output.operation,
            Amount(whole.nbytes + beside, whole.shards),
            Amount(whole.nbytes - left.nbytes, whole.shards - left.shards),
        )
        self._write_shards(todo)
        self._finish_when_all_are_there()
        self.written.bytes_written += self._comparison.bytes_written

    def _work(self, shards: list[OutputShard]) -> Amount:
        """The work that shards take: to fetch what they are made of, to write them and to read them back."""
        to_fetch = sum(bytes_to_fetch(shard.sources) for shard in shards)
        proof = self._output.proof_bytes * len(shards) // max(1, len(self._output.shards))
        return Amount(sum(shard.size for shard in shards) + to_fetch + proof, len(shards))

    def _is_finished(self, shard: OutputShard) -> bool:
        """Whether an earlier run finished the shard; with `--recheck`, whether its bytes are still right."""
        record = self._journal.finished(shard.name)
        if record is None:
            self._journal.forget_damaged(shard.name)
            return False
        if record.size != shard.size or (self._options.recheck and not self._is_right(shard)):
            self._journal.forget(shard.name)
            return False
        if shard.name not in self.written.adopted_files:
            self.written.resumed_shards.append(shard.name)
        self._note(shard)
        return True

    def _is_right(self, shard: OutputShard) -> bool:
        """Whether a finished shard still holds the bytes that this run would write."""
        found = self._comparison.right_record(shard, self._progress.advance)
        self._progress.shard_done()
        return found is not None

    def _adopt(self, files: Sequence[OutputShard | SideFile]) -> list[str]:
        def right_record(shard: OutputShard, on_bytes: OnBytes) -> Record | None:
            require_hashes(shard.sources, self._evidence_for(shard), lambda _: on_bytes(0))
            return self._comparison.right_record(shard, on_bytes)

        return adopt(files, self._journal, right_record, self._progress, self._options.jobs, self._cancel)

    def _evidence_for(self, shard: OutputShard) -> Evidence:
        """The hashes to compare the sources of a shard with: none where the hash of the shard itself is known."""
        if shard.sha256:
            return {}
        return {source.name: self._evidence[source.name] for source in shard.sources if source.name in self._evidence}

    def _note(self, shard: OutputShard) -> None:
        """Note that a shard is complete under its name."""
        if self._consumer:
            self._consumer.shard_done(shard)
        self.written.shards.append(shard.name)
        if shard.sha256:
            self.written.proved_shards.append(shard.name)

    def _write_shards(self, todo: list[OutputShard]) -> None:
        self._output.renderer.expect(todo, self._options.jobs)
        jobs = [
            ShardJob(
                shard,
                self._output.renderer,
                self._journal,
                self._output.wants_hashes,
                self._drop_cache,
                self._options.link and shard.can_be_linked,
                self._evidence_for(shard),
            )
            for shard in todo
        ]
        at_a_time, executor = self._options.jobs, self._options.executor
        run_with_progress(jobs, write_shard, self._shard_done, at_a_time, self._cancel, self._progress, executor)
        order = {shard.name: i for i, shard in enumerate(self._output.shards)}
        for names in (self.written.shards, self.written.proved_shards, self.written.linked):
            names.sort(key=order.__getitem__)

    def _shard_done(self, job: ShardJob, did: Did) -> None:
        self._progress.advance(did.unreported)
        self._progress.shard_done()
        self.written.bytes_written += did.bytes_written
        if did.linked:
            self.written.linked.append(job.shard.name)
        self._note(job.shard)

    def _finish_when_all_are_there(self) -> None:
        """Write the other files and remove the journal, unless other shares have shards yet to write."""
        with self._journal.exclusive() as is_there:
            if not is_there:  # another share has finished everything
                return
            records = {shard.name: self._journal.finished(shard.name) for shard in self._output.shards}
            self.written.missing = [name for name, record in records.items() if record is None]
            if not self.written.missing:
                self._finish({name: record for name, record in records.items() if record})

    def _finish(self, records: Mapping[str, Record]) -> None:
        for file in self._output.side_files:
            self._write_side_file(file)
            self._progress.advance(file.size)
        documents = self._output.documents(records, self._journal.path_of(""))
        if self._options.compares:
            self.written.adopted_files += self._adopt(documents)
        for document in documents:
            self._write_side_file(document)
        if self._consumer:
            self._consumer.finish()
            self.written.removed_sources = self._consumer.removed
        self._journal.close()

    def _write_side_file(self, file: SideFile) -> None:
        self.written.bytes_written += write_side_file(file, self._journal)
        self.written.other_files.append(file.target)
