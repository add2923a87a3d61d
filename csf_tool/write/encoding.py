"""Shards whose block scales are encoded while `compress` writes them, their receipts, and their proof."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.container import Receipt, ScaleReceipt, ShardRow, receipt_name
from csf_tool.checkpoint.layout import Layout, SingleFile
from csf_tool.checkpoint.logical import LogicalShard, Range, logical_tensors, merge_ranges, original_shard
from csf_tool.checkpoint.plane_tables import DensePlane
from csf_tool.checkpoint.planes import find_planes
from csf_tool.checkpoint.problems import errors
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.checkpoint.stored import Located, Shard, Stored
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.codec.formats import EXCEPTION_BYTES, CsfFormat
from csf_tool.coders.coded import CodedPlane
from csf_tool.coders.decoder import Decoder
from csf_tool.coders.encoder import Encoder, NumpyEncoder, read_scales
from csf_tool.codes import Code
from csf_tool.disk.headers import read_header, render_header
from csf_tool.disk.json_files import render_json
from csf_tool.disk.reader import RandomReader
from csf_tool.errors import CheckpointError, EnvironmentFault
from csf_tool.progress import OnBytes
from csf_tool.write.copy import pieces
from csf_tool.write.decoding import decode_parts
from csf_tool.write.kept_streams import KeptStreams
from csf_tool.write.output import UNKNOWN_HASH, OutputShard, Renderer, Rendering


def encoded_shard(
    shard: Shard,
    chosen: Mapping[str, DensePlane],
    exceptions: Mapping[str, int],
    layout: type[Layout],
    formats: Sequence[CsfFormat],
) -> OutputShard:
    """The shard to write for a dense one: `chosen` planes, with so many exceptions each, become streams.

    `formats` are those of the whole checkpoint.
    """
    entries: list[tuple[str, str, tuple[int, ...], int]] = []
    sources: list[Located | DensePlane] = []
    for tensor in shard.header:
        if plane := chosen.get(tensor.name):
            entries += _stream_entries(plane, exceptions[plane.name])
            sources.append(plane)
        else:
            entries.append((tensor.name, tensor.dtype, tensor.shape, tensor.nbytes))
            sources.append(Located(shard, tensor))
    header = render_header((shard.header.metadata or {"format": "pt"}) | layout.marks(formats), entries)
    size = len(header) + sum(nbytes for *_, nbytes in entries)
    return OutputShard(layout.stored_name(shard.name), header, tuple(merge_ranges(sources)), size, (shard,))


def _stream_entries(plane: DensePlane, exceptions: int) -> list[tuple[str, str, tuple[int, ...], int]]:
    """The header entries of a plane's streams."""
    fmt = plane.fmt
    nbytes, shape = fmt.fixed_bytes(plane.rows, plane.cols), fmt.fixed_shape(plane.rows, plane.cols)
    return [
        (plane.name + fmt.fixed_suffix, "U8", shape, nbytes),
        (plane.name + fmt.exceptions_suffix, "U32", (exceptions,), exceptions * EXCEPTION_BYTES),
    ]


def _scale_receipt(plane: DensePlane, exceptions: int, sha256: str) -> ScaleReceipt:
    """The receipt of a plane with so many exceptions, whose dense scales have that hash."""
    return ScaleReceipt(
        name=plane.name,
        dtype=plane.scale.tensor.dtype,
        shape=(plane.rows, plane.cols),
        fixed_bytes=plane.fmt.fixed_bytes(plane.rows, plane.cols),
        exception_bytes=exceptions * EXCEPTION_BYTES,
        source_bytes=plane.dense_bytes,
        source_sha256=sha256,
    )


def require_lossless(encoded: CodedPlane, device: str) -> None:
    """Check that streams keep the rules of the format, and give back the scales that the device made them of.

    Raises:
        CheckpointError: they do not, and were made on the CPU.
        EnvironmentFault: they do not, and were made on another device.
    """
    plane, streams = encoded.plane, encoded.streams
    faults = streams.faults()  # a decoder of another maker may read what breaks a rule otherwise
    if not faults and streams.decode().tobytes() == encoded.scales.tobytes():
        return
    problem = "the encoded streams do not decode to the original scales"
    if faults:
        problem = f"the encoded streams break a rule of the format: {faults[0]}"
    where = plane.shard.name, plane.name
    if device != NumpyEncoder.device:
        problem += f": do not trust {device}; --device cpu works without it"
        raise EnvironmentFault(problem, Code.WRITTEN_WRONGLY, *where)
    raise CheckpointError(problem, Code.WRITTEN_WRONGLY, *where)


@dataclass(frozen=True)
class EncodingRenderer(Renderer):
    """Renderer that encodes the planes of shards, or takes the streams kept when their exceptions were counted.

    With a `prover`, every shard gets a receipt and is proved: it is rebuilt, with that decoder, from what was written.
    """

    encoder: Encoder
    exceptions: Mapping[str, int]
    kept: KeptStreams | None
    prover: Decoder | None

    @property
    def passes_source(self) -> bool:
        """See `csf_tool.write.output.Renderer`: a receipt states the source's hash."""
        return self.prover is not None

    def expect(self, shards: Sequence[OutputShard], jobs: int) -> None:
        """See `csf_tool.write.output.Renderer`."""
        each = [[part for part in shard.parts if isinstance(part, DensePlane)] for shard in shards]
        new = [planes for planes in each if planes and not (self.kept and self.kept.has(planes))]
        self.encoder.expect(sum(plane.dense_bytes for planes in new for plane in planes), min(jobs, len(new)))

    def render(self, shard: OutputShard, readers: Readers) -> "_Encoding":
        """See `csf_tool.write.output.Renderer`."""
        return _Encoding(self, shard, readers)

    def foreseen_receipt(self, shard: OutputShard) -> SideFile | None:
        """See `csf_tool.write.output.Renderer`."""
        if self.prover is None:
            return None
        [source] = shard.sources
        with source.open() as reader:
            header = bytes(reader.read(0, source.header.data_start))
        scales = {
            plane.name: _scale_receipt(plane, self.exceptions[plane.name], UNKNOWN_HASH)
            for plane in shard.parts
            if isinstance(plane, DensePlane)
        }
        row = ShardRow(source.name, shard.size, UNKNOWN_HASH, source.size, UNKNOWN_HASH)
        return SideFile.new(receipt_name(source.name), render_json(Receipt(row, header, scales).render()))

    def streams(self, planes: list[DensePlane], readers: Readers) -> Iterator[PlaneStreams]:
        """The two streams of each plane.

        Raises:
            CheckpointError: a plane has another number of exceptions than when they were counted.
        """
        if self.kept and self.kept.has(planes):
            yield from map(self.kept.read, planes)
            return
        for encoded in self.encoder.encode(read_scales(readers, planes)):
            require_lossless(encoded, self.encoder.device)
            plane = encoded.plane
            if len(encoded.streams.exceptions) != self.exceptions[plane.name]:
                where = plane.shard.name, plane.name
                raise CheckpointError("changed after csf-tool measured it", Code.SOURCE_CHANGED, *where)
            yield encoded.streams


class _Encoding(Rendering):
    """One shard being encoded. Where it gets a receipt, all of its source's bytes pass through here."""

    def __init__(self, renderer: EncodingRenderer, shard: OutputShard, readers: Readers) -> None:
        self._renderer, self._shard, self._readers = renderer, shard, readers
        [self._source] = shard.sources
        self._source_header = b""
        self._source_hash = hashlib.sha256()
        self._scales: dict[str, ScaleReceipt] = {}

    def __iter__(self) -> Iterator[memoryview | Range]:
        gets_receipt = self._renderer.prover is not None
        yield memoryview(self._shard.header)
        if gets_receipt:
            self._source_header = bytes(self._readers[self._source].read(0, self._source.header.data_start))
            self._source_hash.update(self._source_header)
        planes = [part for part in self._shard.parts if isinstance(part, DensePlane)]
        streams = self._renderer.streams(planes, self._readers)
        for part in self._shard.parts:
            if isinstance(part, DensePlane):
                encoded = next(streams)
                if gets_receipt:
                    self._note_scales(part, encoded)
                yield memoryview(encoded.joined())
            elif isinstance(part, Range) and gets_receipt:
                for piece in self._readers[part.shard].chunks(part.begin, part.end):
                    self._source_hash.update(piece)
                    yield piece
            elif isinstance(part, Range):
                yield part

    def _note_scales(self, plane: DensePlane, streams: PlaneStreams) -> None:
        """Add a plane to the receipt, with the hash of its dense scales."""
        scales = streams.decode().data.cast("B")
        self._source_hash.update(scales)
        self._scales[plane.name] = _scale_receipt(plane, len(streams.exceptions), hashlib.sha256(scales).hexdigest())

    def source_sha256(self) -> str | None:
        """The hash of the dense shard, which a receipt states as the original."""
        return self._source_hash.hexdigest() if self._renderer.passes_source else None

    def _receipt(self, sha256: str | None) -> Receipt:
        source = self._source
        row = ShardRow(source.name, self._shard.size, sha256, source.size, self._source_hash.hexdigest())
        return Receipt(row, self._source_header, self._scales)

    def receipt(self, sha256: str | None) -> SideFile | None:
        """The receipt of the shard, once all of its bytes have passed and the stored shard's hash is known."""
        if self._renderer.prover is None:
            return None
        return SideFile.new(receipt_name(self._source.name), render_json(self._receipt(sha256).render()))

    def prove(self, path: Path, readers: Readers, on_bytes: OnBytes) -> None:
        """Rebuild the original shard from the file that was written, and compare its hash.

        Raises:
            CheckpointError: the rebuilt shard is not the original.
        """
        if self._renderer.prover is None:
            return
        receipt = self._receipt(None)
        original = _original(path, self._shard.name, receipt)
        hasher = hashlib.sha256(original.header)
        for piece in pieces(decode_parts(original.parts, readers, self._renderer.prover), readers):
            hasher.update(piece)
            on_bytes(len(piece))
        if hasher.hexdigest() != original.sha256:
            problem = "the written shard does not decode to the original shard"
            raise CheckpointError(problem, Code.WRITTEN_WRONGLY, self._shard.name)


def _original(path: Path, name: str, receipt: Receipt) -> LogicalShard:
    """The original of the shard in a file, as that file and the receipt give it."""
    with RandomReader(path, name) as reader:
        status = os.fstat(reader.fileno())
        shard = Shard(name, path, status.st_size, status.st_mtime_ns, read_header(reader, status.st_size))
    written = Checkpoint(path, SingleFile(path.parent), shards=[shard])
    written.plane_table, problems = find_planes(Stored([shard]), receipt.scales)
    if found := errors(problems):
        raise CheckpointError(f"the shard that was just written is wrong: {found[0]}", Code.WRITTEN_WRONGLY)
    return original_shard(receipt, logical_tensors(written))
