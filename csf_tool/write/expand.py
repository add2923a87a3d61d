"""expand: write the ordinary dense checkpoint that a CSF checkpoint stands for.

Shards are independent: each is one job, on threads here or on whatever executor is given, and a journal in
the destination remembers which are finished. Index and configs are written when all shards are there.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path

from csf_tool.checkpoint.config import CONFIG_FILES, strip_encoding
from csf_tool.checkpoint.container import MANIFEST, VERIFICATION
from csf_tool.checkpoint.index import INDEX_NAME, find_index, read_index
from csf_tool.checkpoint.logical import DenseShard, dense_index, dense_shards, new_index, shard_bytes, shard_parts
from csf_tool.checkpoint.model import Checkpoint, Layout
from csf_tool.checkpoint.problems import Problem, Severity, errors, first_of
from csf_tool.checkpoint.published import metadata_hashes
from csf_tool.checkpoint.side_files import (
    SideFile,
    config_files,
    is_licence,
    model_root,
    plain_files,
    rewritten_configs,
)
from csf_tool.checkpoint.streams import Readers
from csf_tool.coders.decoder import Decoder
from csf_tool.disk.hashing import Hashing, hash_file
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.json_files import render_json
from csf_tool.disk.reader import RandomReader
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.progress import Progress
from csf_tool.running.jobs import SharedProgress, default_jobs, local_executor, run_jobs, should_drop_cache
from csf_tool.text import count
from csf_tool.write.adopt import adopt
from csf_tool.write.consume import Consumer, require_consumable
from csf_tool.write.destination import Destination
from csf_tool.write.fetch import bytes_to_fetch, fetched, room_to_fetch
from csf_tool.write.fingerprint import fingerprint
from csf_tool.write.journal import Journal, Record, Run, consumed_shards
from csf_tool.write.shard_writer import write_parts, write_side_file


@dataclass(frozen=True)
class Part:
    """Which shards a run does by itself: the `number`-th of `of` parts, counted from 1."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str | None) -> "Part":
        """The part that "3/8" names; all of it for None.

        Raises:
            UsageError: it is no such text.
        """
        if text is None:
            return cls()
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"--shards {text}: give I/N with I from 1 to N, like 3/8")
        return cls(int(match[1]), int(match[2]))

    def takes(self, i: int) -> bool:
        """Whether the i-th shard, from 0, is in this part."""
        return i % self.of == self.number - 1


NOTHING = Part(0, 1)
"""The part without shards: only index and configs are left to do."""


@dataclass(frozen=True)
class ExpandOptions:
    """How `expand` goes about it."""

    jobs: int = field(default_factory=default_jobs)
    part: Part = Part()
    recheck: bool = False
    drop_cache: bool | None = None
    """Whether files are kept out of the page cache; None: large new ones are, and all when they would fill memory."""
    consume_source: bool = False
    ignore_space: bool = False
    adopt: bool = False


@dataclass
class Expanded:
    """What `expand` wrote, or found finished by an earlier run.

    `missing` are shards that other parts of the work have still to write; without any, the checkpoint is complete.
    `excused` are faults of the source's configs, as warnings: they stop nothing.
    """

    source: str
    destination: str
    device: str
    planes: int
    shards: list[str] = field(default_factory=list)
    resumed_shards: list[str] = field(default_factory=list)
    adopted_files: list[str] = field(default_factory=list)
    proved_shards: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    removed_sources: list[str] = field(default_factory=list)
    excused: list[Problem] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)
    licences: list[str] = field(default_factory=list)
    origin: str = ""
    """The repository and revision of the dense model, as a container's manifest states them."""
    notes: list[str] = field(default_factory=list)
    bytes_written: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class ShardJob:
    """What a job needs to write one shard."""

    shard: DenseShard
    destination: Destination
    journal: Journal
    decoder: Decoder
    drop_cache: bool


def expand(
    checkpoint: Checkpoint,
    destination: Path,
    decoder: Decoder,
    progress: Progress,
    options: ExpandOptions | None = None,
    executor: Executor | None = None,
) -> Expanded:
    """Write the dense checkpoint of `checkpoint` into the folder `destination`, new, empty, or left by such a run.

    A shard whose original is known appears only after its size and SHA-256 are those of the original. Shards
    that an interrupted run finished are not written again.

    Raises:
        UsageError: there is nothing to expand, or the destination cannot be right.
        CheckpointError: the checkpoint is broken; nothing was written, or only whole and good shards.
        EnvironmentFault: not enough room, or the system cannot write.
    """
    return _Expansion(checkpoint, destination, decoder, progress, options or ExpandOptions()).run(executor)


class _Expansion:
    """One run."""

    def __init__(
        self, checkpoint: Checkpoint, destination: Path, decoder: Decoder, progress: Progress, options: ExpandOptions
    ) -> None:
        self._begun = time.monotonic()
        self._consumed = consumed_shards(destination)
        excused = _refuse_broken(checkpoint, self._consumed)
        checkpoint.fetch_side_files()
        _refuse_other_metadata(checkpoint)
        if options.consume_source:
            require_consumable(checkpoint)
        self._checkpoint = checkpoint
        self._decoder = decoder
        self._progress = SharedProgress(progress, checkpoint)
        self._options = options
        self._folder = Destination(destination, checkpoint.root, keep_cache=options.drop_cache is False)
        self._shards = dense_shards(checkpoint)
        self._side_files = _side_files(checkpoint, self._shards, Journal(destination))
        self.result = Expanded(
            checkpoint.label,
            str(destination),
            decoder.device,
            len(checkpoint.planes),
            excused=excused,
            licences=sorted(file.name for file in self._side_files if is_licence(file.name)),
            origin=checkpoint.container.origin if checkpoint.container else "",
            notes=_never_held(checkpoint, self._shards),
        )

    def run(self, executor: Executor | None) -> Expanded:
        """Write what is to be written, and say what is there."""
        mine = [shard for i, shard in enumerate(self._shards) if self._options.part.takes(i)]
        if not self._options.ignore_space:
            self._require_space(mine)
        self._journal = self._open_journal()
        if self._options.adopt:
            files: list[DenseShard | SideFile] = [*mine, *self._side_files]
            self.result.adopted_files = adopt(files, self._journal, self._is_right, self._progress, self._options.jobs)
        self._consumer = self._start_consuming()
        todo = [shard for shard in mine if not self._is_finished(shard)]
        shards_size, others_size = _total_size(todo), _total_size(self._side_files)
        to_fetch = sum(bytes_to_fetch(shard.sources) for shard in todo)
        self._progress.start("expand", shards_size + others_size + to_fetch)
        self._write_shards(todo, executor)
        self._finish_when_all_are_there()
        self.result.bytes_written = shards_size + (0 if self.result.missing else others_size)
        self.result.seconds = time.monotonic() - self._begun
        return self.result

    def _require_space(self, mine: list[DenseShard]) -> None:
        """Check that there is room for the whole checkpoint, and for the stored shards that are fetched meanwhile."""
        there = Journal(self._folder.path)
        sources = (source for shard in mine if not there.finished(shard.name) for source in shard.sources)
        total = _total_size(self._files()) + room_to_fetch(sources, self._options.jobs)
        # With --consume-source room comes free as the run goes on.
        self._folder.require_space(0 if self._options.consume_source else total - self._bytes_there())

    def _open_journal(self) -> Journal:
        source = fingerprint(self._checkpoint, self._consumed)
        adopting = {file.name for file in self._files()} if self._options.adopt else None
        return Journal.open(self._folder.path, Run("expand", source, {}), beside=adopting)

    def _start_consuming(self) -> Consumer | None:
        if not self._options.consume_source:
            return None
        for file in self._side_files:
            if file.content is not None:
                self._journal.keep(file.name, file.content)
        return Consumer(self._shards, self._journal, self._is_right)

    def _files(self) -> list[DenseShard | SideFile]:
        return [*self._shards, *self._side_files]

    def _bytes_there(self) -> int:
        """Bytes of files that an interrupted run left complete, or that may be adopted."""
        names = [file.name for file in self._files()]
        if not self._options.adopt:
            return Journal(self._folder.path).bytes_there(names)
        paths = [self._folder.path / name for name in names]
        return sum(path.stat().st_size for path in paths if path.is_file())

    def _is_finished(self, shard: DenseShard) -> bool:
        """Whether an earlier run finished the shard; with `--recheck`, whether its bytes are still right."""
        record = self._journal.finished(shard.name)
        if record is None:
            self._journal.forget_damaged(shard.name)
            return False
        if record.size != shard.size or (self._options.recheck and not self._is_right(shard)):
            self._journal.forget(shard.name)
            return False
        if shard.name not in self.result.adopted_files:
            self.result.resumed_shards.append(shard.name)
        self._note(shard)
        return True

    def _is_right(self, shard: DenseShard) -> bool:
        """Whether a finished shard holds the bytes that it would be given again."""
        written_path, folder = self._folder.path / shard.name, self._journal.fetch_folder(shard.name)
        with (
            fetched(shard.sources, folder, lambda _: None) as copies,
            Readers(copies) as readers,
            RandomReader(written_path, shard.name) as written,
        ):
            decoded = self._decoder.decode(readers.streams(plane).require_decodable() for plane in shard.planes)
            at = 0
            for piece in shard_bytes(shard, readers, (d.scales for d in decoded)):
                if written.read(at, at + len(piece)) != piece:
                    return False
                at += len(piece)
        return True

    def _note(self, shard: DenseShard) -> None:
        """A shard is complete under its name."""
        if self._consumer:
            self._consumer.shard_done(shard)
        self.result.shards.append(shard.name)
        if shard.sha256:
            self.result.proved_shards.append(shard.name)

    def _write_shards(self, todo: list[DenseShard], executor: Executor | None) -> None:
        drop_cache = should_drop_cache(self._checkpoint, self._options.drop_cache)
        jobs = [ShardJob(shard, self._folder, self._journal, self._decoder, drop_cache) for shard in todo]
        own = executor is None
        pool = local_executor(self._options.jobs) if executor is None else executor
        work: Callable[[ShardJob], int] = self._write_here if own else write_shard
        try:
            run_jobs(jobs, work, self._shard_done, pool, self._progress.stop)
        finally:
            if own:
                pool.shutdown()
        order = {shard.name: i for i, shard in enumerate(self._shards)}
        self.result.shards.sort(key=order.__getitem__)
        self.result.proved_shards.sort(key=order.__getitem__)

    def _write_here(self, job: ShardJob) -> int:
        return write_shard(job, self._progress.advance)

    def _shard_done(self, job: ShardJob, unreported: int) -> None:
        self._progress.advance(unreported)
        self._note(job.shard)

    def _finish_when_all_are_there(self) -> None:
        """Write the other files and take the journal away, unless other parts have shards yet to write."""
        with self._journal.exclusive() as is_there:
            if not is_there:  # another part has finished everything
                return
            self.result.missing = [s.name for s in self._shards if not self._journal.finished(s.name)]
            if not self.result.missing:
                self._finish()

    def _finish(self) -> None:
        for file in self._side_files:
            write_side_file(file, self._folder, self._progress, self._journal)
            self.result.other_files.append(file.name)
        if self._consumer:
            self._consumer.finish()
            self.result.removed_sources = self._consumer.removed
        self._journal.close()


def _total_size(files: Iterable[DenseShard | SideFile]) -> int:
    return sum(file.size for file in files)


def write_shard(job: ShardJob, on_bytes: Callable[[int], None] | None = None) -> int:
    """Write one dense shard under its name, complete and synced; the bytes that `on_bytes` was not told of.

    Raises:
        CheckpointError: the source is broken, or what was written is not the original.
        EnvironmentFault: the system cannot read or write, or the source changed meanwhile.
    """
    shard = job.shard
    if job.journal.finished(shard.name):  # by another worker, which was lost before it could say so
        return shard.size
    hashing = Hashing() if shard.sha256 else None
    report = on_bytes or (lambda _: None)
    with (
        fetched(shard.sources, job.journal.fetch_folder(shard.name), report) as copies,
        Readers(copies) as readers,
        job.destination.create(shard.name, shard.size) as file,
    ):
        decoded = job.decoder.decode(readers.streams(plane).require_decodable() for plane in shard.planes)
        parts = shard_parts(shard, (d.scales for d in decoded))
        write_parts(file, parts, readers, hashing, report, job.drop_cache)
        sha256 = hashing.hexdigest() if hashing else None
        if sha256 != shard.sha256:
            raise CheckpointError(
                f"{shard.name}: the rebuilt shard's SHA-256 is {sha256}, the original's is {shard.sha256}: not written"
            )
        file.on_complete = lambda: job.journal.finish(shard.name, Record(shard.size, sha256))
        file.is_there = lambda: job.journal.finished(shard.name) is not None
    return 0 if on_bytes else shard.size


def _refuse_broken(checkpoint: Checkpoint, consumed: Mapping[str, object]) -> list[Problem]:
    """Refuse a checkpoint that cannot be expanded; the faults in its configs, which stop nothing, as warnings."""
    # Recipes say how to read, not what the bytes are, and expand takes the marks out anyway. Shards that an earlier
    # run removed are missing on purpose, and totals no longer fit; that run had seen everything whole.
    excused = {*CONFIG_FILES, *consumed, *((MANIFEST, VERIFICATION) if consumed else ())}
    found = [problem for problem in errors(checkpoint.problems) if problem.file not in excused]
    if found:
        raise CheckpointError(f"{checkpoint.label}: not expanded: {first_of(found)}")
    if not checkpoint.planes:
        raise UsageError(f"{checkpoint.label}: holds no CSF planes: nothing to expand ({checkpoint.kind})")
    return [replace(p, severity=Severity.WARNING) for p in errors(checkpoint.problems) if p.file in CONFIG_FILES]


def _refuse_other_metadata(checkpoint: Checkpoint) -> None:
    """A container promises the original folder: its config, tokenizer and index must be the source's, too."""
    for entry in metadata_hashes(checkpoint.container) if checkpoint.container else ():
        path = checkpoint.root / entry.file
        found = hash_file(path, entry.file, {entry.algorithm}, lambda _: None)[entry.algorithm]
        if found != entry.digest:
            raise CheckpointError(
                f"{entry.file}: not expanded: its SHA-256 is {found}, {MANIFEST} says {entry.digest} "
                f"({entry.evidence}): download that file again"
            )


def _side_files(checkpoint: Checkpoint, shards: list[DenseShard], journal: Journal) -> list[SideFile]:
    """Everything beside the shards in the order of writing: configs and index last.

    What `journal` kept from an earlier run stands: by now headers may be gone that an index is made from.
    """
    restored = all(shard.sha256 for shard in shards)
    # An original's own config carries no marks, and stays as it is.
    configs = config_files(checkpoint) if restored else rewritten_configs(checkpoint, strip_encoding)
    return plain_files(checkpoint) + configs + _index(checkpoint, shards, restored, journal)


def _never_held(checkpoint: Checkpoint, shards: list[DenseShard]) -> list[str]:
    """What the source's index lists and the container never held: the dense checkpoint lacks it, too."""
    root = model_root(checkpoint)
    name = find_index(root) if checkpoint.container else None
    try:
        lacking = sorted(read_index(root, name).shards - {shard.name for shard in shards}) if name else []
    except CheckpointError as error:
        return [str(error)]
    if not lacking:
        return []
    return [f"{name} lists {count(len(lacking), 'shard')} that the container never held, as {lacking[0]}"]


def _index(checkpoint: Checkpoint, shards: list[DenseShard], restored: bool, journal: Journal) -> list[SideFile]:
    """The index: a restored original's own bytes; rewritten, or new where there was none, otherwise."""
    root = model_root(checkpoint)
    name = None if checkpoint.path.is_file() else find_index(root)
    if name and restored:
        return [SideFile(name, root / name)]
    if (kept := journal.kept(name or INDEX_NAME)) is not None:
        return [SideFile(name or INDEX_NAME, root / (name or INDEX_NAME), kept)]
    if name:
        return [SideFile(name, root / name, render_json(dense_index(read_index(root, name), shards)))]
    if checkpoint.layout is Layout.FILE or (len(shards) == 1 and shards[0].name == f"model{SHARD_SUFFIX}"):
        return []
    return [SideFile(INDEX_NAME, root / INDEX_NAME, render_json(new_index(shards)))]
