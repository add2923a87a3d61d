"""compress: write a CSF checkpoint of a dense FP4 one, in either layout.

The scales are read twice: a first time to count exceptions, which decide what is worth compressing and how
large every stream is, so that headers and the space needed are known before the first byte is written.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from csf_tool.checkpoint import container_documents as documents
from csf_tool.checkpoint.config import CONFIG_FILES, covering_recipe, mark_encoding, model_type, recipes
from csf_tool.checkpoint.container import (
    CONTRACT,
    MANIFEST,
    METADATA,
    RECEIPTS,
    TENSORS,
    VERIFICATION,
    ScaleReceipt,
    ShardRow,
    read_container,
)
from csf_tool.checkpoint.container_documents import StatedOrigin
from csf_tool.checkpoint.dense import dense_shards, merge_ranges, shard_bytes
from csf_tool.checkpoint.files import RandomReader, load_json
from csf_tool.checkpoint.hashes import hash_file
from csf_tool.checkpoint.headers import render_header
from csf_tool.checkpoint.index import INDEX_NAME, Index
from csf_tool.checkpoint.layouts import open_container
from csf_tool.checkpoint.model import Checkpoint, DensePlane, Layout, Located, Shard
from csf_tool.checkpoint.names import expert_group_of, module_of
from csf_tool.checkpoint.problems import errors
from csf_tool.checkpoint.side_files import SideFile, config_files, plain_files
from csf_tool.checkpoint.streams import Readers
from csf_tool.checkpoint.writer import Destination, render_json
from csf_tool.codec.formats import MXFP4, SLAB_ROWS, CsfFormat
from csf_tool.decoder import Decoder
from csf_tool.encoder import Encoder, PlaneScales
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.progress import Progress
from csf_tool.selection import LeftDense, Rules, Selection, csf_bytes, select

_RECEIPT_BYTES = 1024
"""Room that a plane takes in receipt and contract, for the space check: names and hashes, generously."""


@dataclass
class Compressed:
    """What `compress` wrote."""

    source: str
    destination: str
    layout: Layout
    format: CsfFormat
    device: str
    planes: int
    dense_bytes: int
    csf_bytes: int
    left: list[LeftDense]
    shards: list[str] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_written: int = 0
    seconds: float = 0.0


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


def compress(
    checkpoint: Checkpoint,
    destination: Path,
    layout: Layout | None,
    rules: Rules,
    origin: StatedOrigin,
    encoder: Encoder,
    decoder: Decoder,
    progress: Progress,
) -> Compressed:
    """Write the CSF checkpoint of `checkpoint` into the new or empty folder `destination`.

    Without a `layout` it is the one that readers exist for: Hugging Face for NVFP4, container for MXFP4.

    Raises:
        UsageError: nothing can be compressed, the layout does not exist for the format, or the destination
            cannot be right.
        CheckpointError: the checkpoint is broken, or a written shard did not give back its original.
        EnvironmentFault: not enough room, or the system cannot write.
    """
    return _Compression(checkpoint, destination, layout, rules, origin, encoder, decoder, progress).run()


class _Compression:
    """One run."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        destination: Path,
        layout: Layout | None,
        rules: Rules,
        origin: StatedOrigin,
        encoder: Encoder,
        decoder: Decoder,
        progress: Progress,
    ) -> None:
        self._begun = time.monotonic()
        self._checkpoint = checkpoint
        self._folder = Destination(destination, checkpoint.root)
        self._encoder, self._decoder, self._progress = encoder, decoder, progress
        self._configs = {f.name: load_json(f.path, f.name) for f in config_files(checkpoint)}
        _refuse(checkpoint)
        self._selection = self._select(layout, rules)
        self._fmt = self._selection.fmt
        self._layout = layout or _default_layout(self._fmt)
        found = model_type(self._configs.get(CONFIG_FILES[0]))
        self._origin = documents.find_origin(checkpoint, self._fmt, found, origin)
        self._shards = [self._csf_shard(shard) for shard in checkpoint.shards]
        self._scale_sha256: dict[str, str] = {}
        chosen = self._selection.chosen
        self.result = Compressed(
            source=str(checkpoint.path),
            destination=str(destination),
            layout=self._layout,
            format=self._fmt,
            device=encoder.device,
            planes=len(chosen),
            dense_bytes=sum(plane.dense_bytes for plane in chosen),
            csf_bytes=sum(csf_bytes(plane, self._selection.exceptions[plane.name]) for plane in chosen),
            left=self._selection.left,
        )

    def run(self) -> Compressed:
        """Write everything."""
        write = self._write_hf if self._layout is Layout.HF else self._write_container
        write()
        self.result.seconds = time.monotonic() - self._begun
        return self.result

    def _select(self, layout: Layout | None, rules: Rules) -> Selection:
        planes = self._checkpoint.dense_planes
        fmt_modules = self._modules() if layout is not Layout.CONTAINER else None
        selection = select(planes, rules, fmt_modules, self._count_exceptions)
        if layout is None and _default_layout(selection.fmt) is Layout.CONTAINER:
            selection = select(planes, rules, None, lambda _: selection.exceptions)
        if layout is Layout.HF and selection.fmt is MXFP4:
            raise UsageError("--to hf: no reader knows MXFP4 CSF in the Hugging Face layout; use --to container")
        if not selection.chosen:
            first = selection.left[0]
            raise UsageError(
                f"{self._checkpoint.path}: 0 planes matched: {len(selection.left)} block scales stay dense, "
                f"as {first.plane.name}: {first.reason}"
            )
        return selection

    def _modules(self) -> dict[str, str]:
        """The module of every plane that a mark would stand for: its recipe's, or its group of experts."""
        known = {recipe.module for config in self._configs.values() for recipe in recipes(config)}
        modules = {}
        for plane in self._checkpoint.dense_planes:
            module = module_of(plane.name)
            modules[plane.name] = covering_recipe(module, known) or expert_group_of(plane.name) or module
        return modules

    def _count_exceptions(self, planes: list[DensePlane]) -> dict[str, int]:
        self._progress.start("measure", sum(plane.dense_bytes for plane in planes))
        counts = {}
        with Readers() as readers:
            for encoded in self._encoder.encode(_scales(readers, planes)):
                counts[encoded.plane.name] = len(encoded.exceptions)
                self._progress.advance(encoded.plane.dense_bytes)
        return counts

    def _csf_shard(self, shard: Shard) -> CsfShard:
        chosen = {plane.name: plane for plane in self._selection.chosen if plane.scale.shard is shard}
        entries: list[tuple[str, str, tuple[int, ...], int]] = []
        sources: list[Located | DensePlane] = []
        for tensor in shard.header:
            if plane := chosen.get(tensor.name):
                entries += _stream_entries(plane, self._selection.exceptions[plane.name])
                sources.append(plane)
            else:
                entries.append((tensor.name, tensor.dtype, tensor.shape, tensor.nbytes))
                sources.append(Located(shard, tensor))
        metadata = dict(shard.header.metadata) or {"format": "pt"}
        if self._layout is Layout.CONTAINER:
            metadata |= {"schema": self._fmt.schema, "codec": self._fmt.codec}
        header = render_header(metadata, entries)
        size = len(header) + sum(nbytes for *_, nbytes in entries)
        name = f"{TENSORS}/{shard.name}" if self._layout is Layout.CONTAINER else shard.name
        return CsfShard(shard, name, header, sources, size)

    def _write_hf(self) -> None:
        marked = {self._modules()[plane.name] for plane in self._selection.chosen}
        configs = [
            SideFile(f.name, f.path, mark_encoding(f.path.read_bytes(), f.name, marked))
            for f in config_files(self._checkpoint)
        ]
        recipe_modules = {recipe.module for config in self._configs.values() for recipe in recipes(config)}
        if unmarked := sorted(marked - recipe_modules):
            self.result.notes.append(
                f"no recipe in {' or '.join(CONFIG_FILES)} for {unmarked[0]} (of {len(unmarked)} modules): "
                "readers that go by recipes will not find its CSF planes"
            )
        files = plain_files(self._checkpoint) + configs + self._hf_index()
        self._start(files, 0)
        for shard in self._shards:
            self._write_shard(shard)
        self._write_side_files(files)

    def _hf_index(self) -> list[SideFile]:
        """The index with stored names: the source's order, or a new one where it has none and needs one."""
        index = self._checkpoint.index
        if index is None and len(self._shards) == 1:
            return []
        chosen = {plane.name: plane.fmt for plane in self._selection.chosen}
        weight_map: dict[str, str] = {}
        for name, shard in _weight_map(self._checkpoint, index).items():
            fmt = chosen.get(name)
            stored = [name + fmt.fixed_suffix, name + fmt.exceptions_suffix] if fmt else [name]
            weight_map |= dict.fromkeys(stored, shard)
        document: dict[str, Any] = dict(index.document) if index else {}
        metadata = document.get("metadata")
        total = sum(shard.size - len(shard.header) for shard in self._shards)
        document["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), "total_size": total}
        document["weight_map"] = weight_map
        name = index.name if index else INDEX_NAME
        return [SideFile(name, self._checkpoint.root / name, render_json(document))]

    def _write_container(self) -> None:
        if nested := [s.source.name for s in self._shards if "/" in s.source.name]:
            raise UsageError(f"--to container: shard {nested[0]} lies in a folder; a container's shard names are plain")
        index = self._checkpoint.index
        files = plain_files(self._checkpoint) + config_files(self._checkpoint)
        files += [SideFile(index.name, self._checkpoint.root / index.name)] if index else []
        records = sum(2 * len(shard.header) + _RECEIPT_BYTES * len(shard.planes) for shard in self._shards)
        self._start(files, records)
        rows = [self._container_shard(shard) for shard in self._shards]
        self._write_side_files(files, f"{METADATA}/")
        hashes = {f.name: hash_file(f.path, f.name, {"sha256"}, lambda _: None)["sha256"] for f in files}
        index_sha256 = hashes[index.name] if index else None
        self._write_receipts(rows)
        source_names = {t.name: shard.source.name for shard in self._shards for t in shard.source.header}
        planes = len(self._selection.chosen)
        contract = documents.contract(self._fmt, self._origin, planes, index_sha256, source_names)
        self._folder.write(CONTRACT, render_json(contract))
        scales = [
            (plane.dense_bytes, csf_bytes(plane, self._selection.exceptions[plane.name]))
            for plane in self._selection.chosen
        ]
        manifest = documents.manifest(self._fmt, self._origin, rows, hashes, index_sha256, scales)
        self._rebuild(manifest)
        record = documents.verification(self._fmt, len(rows), planes)
        self._folder.write(VERIFICATION, render_json(record))
        self._folder.write(MANIFEST, render_json(manifest))

    def _container_shard(self, shard: CsfShard) -> ShardRow:
        source = shard.source
        source_sha256 = hash_file(source.path, source.name, {"sha256"}, lambda _: None)["sha256"]
        return ShardRow(source.name, shard.size, self._write_shard(shard), source.size, source_sha256)

    def _write_receipts(self, rows: list[ShardRow]) -> None:
        for shard, row in zip(self._shards, rows, strict=True):
            with RandomReader(shard.source.path, shard.source.name) as reader:
                source_header = bytes(reader.read(0, shard.source.header.data_start))
            receipt = documents.receipt(row, source_header, map(self._scale_receipt, shard.planes))
            self._folder.write(f"{RECEIPTS}/{row.file}.json", render_json(receipt))

    def _scale_receipt(self, plane: DensePlane) -> ScaleReceipt:
        fixed = plane.fmt.fixed_bytes(plane.rows, plane.cols)
        return ScaleReceipt(
            name=plane.name,
            dtype=plane.scale.tensor.dtype,
            shape=(plane.rows, plane.cols),
            fixed_bytes=fixed,
            exception_bytes=csf_bytes(plane, self._selection.exceptions[plane.name]) - fixed,
            source_bytes=plane.dense_bytes,
            source_sha256=self._scale_sha256[plane.name],
        )

    def _rebuild(self, manifest: dict[str, Any]) -> None:
        """Rebuild every original shard from what was written, and compare its hash.

        Raises:
            CheckpointError: one is not the original.
        """
        written = open_container(self._folder.path, read_container(self._folder.path, manifest))
        found = errors(written.problems)
        if found:
            raise CheckpointError(f"the container just written is not sound: {found[0]}")
        for shard in dense_shards(written):
            hasher = hashlib.sha256()
            with Readers() as readers:
                decoded = self._decoder.decode(readers.streams(p).require_decodable() for p in shard.planes)
                for piece in shard_bytes(shard, readers, (d.scales for d in decoded)):
                    hasher.update(piece)
                    self._progress.advance(len(piece))
            if hasher.hexdigest() != shard.sha256:
                raise CheckpointError(f"{shard.name}: what was written does not give back the original shard")

    def _start(self, files: list[SideFile], records: int) -> None:
        total = sum(shard.size for shard in self._shards) + sum(f.size for f in files)
        self._folder.require_space(total + records)
        self.result.bytes_written = total
        rebuilt = sum(s.source.size for s in self._shards) if self._layout is Layout.CONTAINER else 0
        self._progress.start("compress", total + rebuilt)

    def _write_shard(self, shard: CsfShard) -> str:
        """Write a shard; its SHA-256."""
        hasher = hashlib.sha256()
        with Readers() as readers, self._folder.create(shard.name) as file:
            for piece in self._shard_pieces(shard, readers):
                file.write(piece)
                if self._layout is Layout.CONTAINER:
                    hasher.update(piece)
                self._progress.advance(len(piece))
        self.result.shards.append(shard.name)
        return hasher.hexdigest()

    def _shard_pieces(self, shard: CsfShard, readers: Readers) -> Iterator[memoryview]:
        yield memoryview(shard.header)
        encoded = self._encoder.encode(_scales(readers, shard.planes, self._scale_sha256))
        for part in merge_ranges(shard.sources):
            if isinstance(part, DensePlane):
                streams = next(encoded)
                if len(streams.exceptions) != self._selection.exceptions[part.name]:
                    raise CheckpointError(f"{shard.source.name}: {part.name} changed while it was being compressed")
                yield streams.fixed.data.cast("B")
                yield memoryview(streams.exceptions.tobytes())
            else:
                source, begin, end = part
                yield from readers[source].chunks(begin, end)

    def _write_side_files(self, files: list[SideFile], prefix: str = "") -> None:
        for file in files:
            file.write(self._folder, self._progress, prefix)
            self.result.other_files.append(prefix + file.name)


def _refuse(checkpoint: Checkpoint) -> None:
    if found := errors(checkpoint.problems):
        raise CheckpointError(f"{checkpoint.path}: not compressed: {found[0]}")
    if checkpoint.planes:
        raise UsageError(f"{checkpoint.path}: holds CSF planes already; csf-tool expand makes it dense")
    if not checkpoint.dense_planes:
        raise UsageError(f"{checkpoint.path}: holds no FP4 block scales")


def _default_layout(fmt: CsfFormat) -> Layout:
    return Layout.CONTAINER if fmt is MXFP4 else Layout.HF


def _stream_entries(plane: DensePlane, exceptions: int) -> list[tuple[str, str, tuple[int, ...], int]]:
    """The header entries of a plane's streams: NVFP4 writers store the fixed stream 2-D, MXFP4 writers 1-D."""
    fmt = plane.fmt
    nbytes = fmt.fixed_bytes(plane.rows, plane.cols)
    shape = (nbytes,) if fmt is MXFP4 else (plane.rows // SLAB_ROWS, fmt.slab_bytes(plane.cols))
    return [
        (plane.name + fmt.fixed_suffix, "U8", shape, nbytes),
        (plane.name + fmt.exceptions_suffix, "U32", (exceptions,), csf_bytes(plane, exceptions) - nbytes),
    ]


def _scales(
    readers: Readers, planes: Iterable[DensePlane], sha256: dict[str, str] | None = None
) -> Iterator[PlaneScales]:
    """Read the scales of each plane; note their hashes in `sha256` when given."""
    for plane in planes:
        tensor = plane.scale.tensor
        data = readers[plane.scale.shard].read(tensor.begin, tensor.end)
        if sha256 is not None:
            sha256[plane.name] = hashlib.sha256(data).hexdigest()
        yield PlaneScales(plane, np.frombuffer(data, np.uint8).reshape(plane.rows, plane.cols))


def _weight_map(checkpoint: Checkpoint, index: Index | None) -> dict[str, str]:
    if index:
        return index.weight_map
    return {located.tensor.name: located.shard.name for located in checkpoint.tensors()}
