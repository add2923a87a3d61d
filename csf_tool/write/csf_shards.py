"""The shards of a CSF checkpoint to be: their headers, and writing one from its dense shard."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from csf_tool.checkpoint import container_documents as documents
from csf_tool.checkpoint.container import RECEIPTS, TENSORS, ScaleReceipt, ShardRow
from csf_tool.checkpoint.logical import Range, merge_ranges
from csf_tool.checkpoint.model import DensePlane, Layout, Located, Shard
from csf_tool.checkpoint.streams import Readers
from csf_tool.codec.formats import CsfFormat
from csf_tool.disk.hashing import Hashing
from csf_tool.disk.headers import render_header
from csf_tool.disk.json_files import render_json
from csf_tool.write.destination import Destination
from csf_tool.write.fetch import fetched
from csf_tool.write.journal import Journal, Record
from csf_tool.write.kept_streams import Kept, KeptStreams
from csf_tool.write.selection import csf_bytes
from csf_tool.write.shard_writer import write_parts


@dataclass(frozen=True)
class CsfShard:
    """A shard to write: complete header, then stored ranges as they are and planes as their streams."""

    source: Shard
    name: str
    header: bytes
    sources: list[Located | DensePlane]
    size: int

    @property
    def planes(self) -> list[DensePlane]:
        """The planes to encode for it, in order."""
        return [source for source in self.sources if isinstance(source, DensePlane)]

    @property
    def payload_bytes(self) -> int:
        """Bytes of its tensors."""
        return self.size - len(self.header)


def csf_shard(
    shard: Shard, chosen: dict[str, DensePlane], exceptions: dict[str, int], layout: Layout, fmt: CsfFormat
) -> CsfShard:
    """What becomes of a dense shard: `chosen` planes, with so many exceptions each, turn into streams."""
    entries: list[tuple[str, str, tuple[int, ...], int]] = []
    sources: list[Located | DensePlane] = []
    for tensor in shard.header:
        if plane := chosen.get(tensor.name):
            entries += _stream_entries(plane, exceptions[plane.name])
            sources.append(plane)
        else:
            entries.append((tensor.name, tensor.dtype, tensor.shape, tensor.nbytes))
            sources.append(Located(shard, tensor))
    metadata = dict(shard.header.metadata) or {"format": "pt"}
    if layout is Layout.CONTAINER:
        metadata |= {"schema": fmt.schema, "codec": fmt.codec}
    header = render_header(metadata, entries)
    name = f"{TENSORS}/{shard.name}" if layout is Layout.CONTAINER else shard.name
    size = len(header) + sum(nbytes for *_, nbytes in entries)
    return CsfShard(shard, name, header, sources, size)


def _stream_entries(plane: DensePlane, exceptions: int) -> list[tuple[str, str, tuple[int, ...], int]]:
    """The header entries of a plane's streams."""
    fmt = plane.fmt
    nbytes, shape = fmt.fixed_bytes(plane.rows, plane.cols), fmt.fixed_shape(plane.rows, plane.cols)
    return [
        (plane.name + fmt.fixed_suffix, "U8", shape, nbytes),
        (plane.name + fmt.exceptions_suffix, "U32", (exceptions,), csf_bytes(plane, exceptions) - nbytes),
    ]


@dataclass(frozen=True)
class CsfShardJob:
    """What a job needs to write one shard. With `with_receipt` its receipt is written, too."""

    shard: CsfShard
    destination: Destination
    journal: Journal
    streams: KeptStreams
    with_receipt: bool
    drop_cache: bool


def write_csf_shard(job: CsfShardJob, on_bytes: Callable[[int], None]) -> None:
    """Write one shard under its name, complete and synced, its receipt first.

    Raises:
        CheckpointError: the source cannot be read, or what was encoded does not give back its scales.
        EnvironmentFault: the system cannot read or write, or the source changed meanwhile.
    """
    shard = job.shard
    with (
        fetched([shard.source], job.journal.fetch_folder(shard.name), on_bytes) as copies,
        Readers(copies) as readers,
        readers.unchanged(),
        job.destination.create(shard.name, shard.size) as file,
    ):
        receipt = _Receipt(shard, readers) if job.with_receipt else None
        hashing = Hashing() if receipt else None
        parts = _parts(shard, readers, job.streams, receipt)
        write_parts(file, parts, readers, hashing, on_bytes, job.drop_cache)
        record = Record(shard.size, hashing.hexdigest() if hashing else None)

        def complete() -> None:
            if receipt and record.sha256:
                name = f"{RECEIPTS}/{shard.source.name}.json"
                job.journal.forget(name)  # of an attempt that was interrupted between receipt and shard
                job.destination.write(name, render_json(receipt.document(record.sha256)))
            job.journal.finish(shard.name, record)

        file.on_complete = complete


def _parts(
    shard: CsfShard, readers: Readers, streams: KeptStreams, receipt: "_Receipt | None"
) -> Iterator[memoryview | Range]:
    """The shard's bytes and ranges in order; `receipt` sees the source's bytes in their own order as they pass."""
    yield memoryview(shard.header)
    for part in merge_ranges(shard.sources):
        if isinstance(part, Range):
            if receipt is None:
                yield part
            else:
                yield from receipt.pass_by(readers[part.shard].chunks(part.begin, part.end))
            continue
        kept = streams.read(part)
        if receipt:
            receipt.pass_scales(kept)
        yield kept.data


class _Receipt:
    """Gathers what a receipt states while the source's bytes pass."""

    def __init__(self, shard: CsfShard, readers: Readers) -> None:
        self._shard = shard
        self._header = bytes(readers[shard.source].read(0, shard.source.header.data_start))
        self._source = hashlib.sha256(self._header)
        self._scales: list[ScaleReceipt] = []

    def pass_by(self, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
        """Give the pieces on, having seen them."""
        for piece in pieces:
            self._source.update(piece)
            yield piece

    def pass_scales(self, kept: Kept) -> None:
        """See the dense scales of a plane."""
        self._source.update(kept.decoded())
        plane, sha256 = kept.plane, kept.source_sha256
        assert sha256 is not None
        fixed = plane.fmt.fixed_bytes(plane.rows, plane.cols)
        receipt = ScaleReceipt(
            name=plane.name,
            dtype=plane.scale.tensor.dtype,
            shape=(plane.rows, plane.cols),
            fixed_bytes=fixed,
            exception_bytes=len(kept.data) - fixed,
            source_bytes=plane.dense_bytes,
            source_sha256=sha256,
        )
        self._scales.append(receipt)

    def document(self, target_sha256: str) -> dict[str, object]:
        """The receipt, once all has passed and the stored shard's hash is known."""
        source = self._shard.source
        row = ShardRow(source.name, self._shard.size, target_sha256, source.size, self._source.hexdigest())
        return documents.receipt(row, self._header, self._scales)
