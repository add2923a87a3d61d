"""The job of one shard: fetched, written, proved and named, here or on a worker of a cluster."""

from dataclasses import dataclass, field
from pathlib import Path

from csf_tool.checkpoint.side_files import SideFile
from csf_tool.checkpoint.streams import Readers
from csf_tool.codes import Code
from csf_tool.disk.hashing import Hashing, sha256_of
from csf_tool.disk.reader import is_file
from csf_tool.errors import CheckpointError
from csf_tool.progress import OnBytes
from csf_tool.write.copy import dropping_cache, write_parts, write_side_file
from csf_tool.write.evidence import Evidence, hashed_first, require_hash, require_hashes, require_passed
from csf_tool.write.fetch import fetched
from csf_tool.write.journal import Journal, Record
from csf_tool.write.output import OutputShard, Renderer


@dataclass(frozen=True)
class ShardJob:
    """Everything that a job needs to write one shard."""

    shard: OutputShard
    renderer: Renderer
    journal: Journal
    wants_hash: bool
    drop_cache: bool
    link: bool
    evidence: Evidence = field(default_factory=dict)
    """The known hashes of those sources that are hashed before the shard is written."""


def is_in_place(file: SideFile, journal: Journal) -> bool:
    """Whether somebody else has put a file of the same bytes in its place already."""
    path = journal.path_of(file.target)
    return is_file(path) and not path.is_symlink() and file.is_equal_to(path)


@dataclass
class Did:
    """The report of a job: bytes written, bytes not yet reported as progress, and whether it made a hard link."""

    bytes_written: int = 0
    unreported: int = 0
    linked: bool = False

    def count(self, nbytes: int) -> None:
        """Count bytes to report at the end of the job: a cluster's worker cannot report progress."""
        self.unreported += nbytes


def write_shard(job: ShardJob, on_bytes: OnBytes | None = None) -> Did:
    """Write one shard under its name, complete, synced and proved.

    Raises:
        CheckpointError: the source is broken, or what was written is not what it must be.
        EnvironmentFault: the system cannot read or write, or the source changed meanwhile.
    """
    shard, journal, did = job.shard, job.journal, Did()
    report = on_bytes or did.count
    if journal.finished(shard.name):  # by another worker, which was lost before it could say so
        report(shard.size)
        return did
    if job.link and shard.copy_of:
        source = shard.copy_of
        sha256 = sha256_of(source.path, source.name, lambda _: report(0)) if job.wants_hash else None
        if sha256:
            require_hash(source.path, source.name, job.evidence.get(source.name, ()), sha256=sha256)
        if journal.link(shard.name, source.path, Record(shard.size, sha256)):
            report(shard.size)
            did.linked = True
            return did
    first = hashed_first(job.evidence, job.renderer.passes_source)
    require_hashes(shard.sources, first, lambda _: report(0))  # nothing is written yet, but an interrupt is heard
    hashing = Hashing() if job.wants_hash or shard.sha256 else None
    with fetched(shard.sources, journal.fetch_folder(shard.name), report) as copies, Readers(copies) as readers:
        rendering = job.renderer.render(shard, readers)

        def prove(path: Path) -> Record:
            sha256 = hashing.hexdigest() if hashing else None
            if shard.sha256 and sha256 != shard.sha256:
                problem = f"the rebuilt shard's SHA-256 is {sha256}, but the original's is {shard.sha256}: not written"
                raise CheckpointError(problem, Code.SOURCE_DIFFERS, shard.name)
            with Readers() as written, dropping_cache(job.drop_cache, report, written) as advance:
                rendering.prove(path, written, advance)
            if (passed := rendering.source_sha256()) is not None:
                require_passed(shard.sources, job.evidence, passed)
            receipt = rendering.receipt(sha256)
            if receipt and not is_in_place(receipt, journal):
                did.bytes_written += write_side_file(receipt, journal)
            return Record(shard.size, sha256)

        with journal.create(shard.name, shard.size, prove) as file:
            write_parts(file, rendering, readers, hashing, report, job.drop_cache)
    did.bytes_written += shard.size
    return did
