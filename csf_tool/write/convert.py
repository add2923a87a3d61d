"""convert: move a CSF checkpoint between its layouts without decoding a plane.

Streams and all other data are copied as they are; only headers, index, recipes and container metadata are
made anew, from the headers.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from csf_tool.checkpoint import container_documents as documents
from csf_tool.checkpoint.config import (
    CONFIG_FILES,
    covering_recipe,
    mark_encoding,
    model_type,
    recipes,
    serving_config,
    strip_encoding,
)
from csf_tool.checkpoint.container import CONTRACT, MANIFEST, METADATA, TENSORS, ShardRow
from csf_tool.checkpoint.container_documents import StatedOrigin
from csf_tool.checkpoint.index import INDEX_NAME, find_index, index_document, read_index
from csf_tool.checkpoint.logical import DenseShard, Range, dense_index, dense_tensors, new_index, own_shards
from csf_tool.checkpoint.model import Checkpoint, Layout, Shard
from csf_tool.checkpoint.names import module_of
from csf_tool.checkpoint.problems import errors
from csf_tool.checkpoint.side_files import SideFile, config_files, model_root, plain_files, rewritten_configs
from csf_tool.checkpoint.streams import Readers
from csf_tool.codec.formats import CsfFormat
from csf_tool.disk.hashing import Hashing, sha256_of
from csf_tool.disk.headers import render_header
from csf_tool.disk.json_files import load_json, render_json
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.progress import Progress
from csf_tool.running.jobs import should_drop_cache
from csf_tool.text import count
from csf_tool.write.destination import Destination
from csf_tool.write.fetch import bytes_to_fetch, fetched, room_to_fetch
from csf_tool.write.fingerprint import fingerprint
from csf_tool.write.journal import Journal, Record, Run
from csf_tool.write.shard_writer import write_parts, write_side_file

HEADERS_UNKNOWN = (
    "unknown: converted from the Hugging Face layout, so the original shards cannot be restored bit for bit; "
    "the dense order is csf-tool's own"
)
"""What a manifest says of originals that nobody recorded."""


class Target(StrEnum):
    """What `convert` writes."""

    HF = "hf"
    CONTAINER = "container"
    SERVING = "serving"


@dataclass
class Converted:
    """What `convert` wrote."""

    source: str
    destination: str
    target: Target
    shards: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_written: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class ConvertOptions:
    """What the user asks for beside the target."""

    link: bool = False
    checkpoint_root: str | None = None
    origin: StatedOrigin = field(default_factory=StatedOrigin)
    ignore_space: bool = False


@dataclass(frozen=True)
class _ShardCopy:
    """A shard under its new name and with its new header; its data are copied as they are."""

    source: Shard
    name: str
    header: bytes
    is_unchanged: bool

    @property
    def size(self) -> int:
        return len(self.header) + self.source.size - self.source.header.data_start

    def parts(self) -> list[memoryview | Range]:
        return [memoryview(self.header), Range(self.source, self.source.header.data_start, self.source.size)]


def convert(
    checkpoint: Checkpoint, destination: Path, target: Target, options: ConvertOptions, progress: Progress
) -> Converted:
    """Write `checkpoint` in another layout into the new or empty folder `destination`.

    Raises:
        UsageError: the layouts do not go together, or the destination cannot be right.
        CheckpointError: the checkpoint is broken.
        EnvironmentFault: not enough room, or the system cannot write.
    """
    return _Conversion(checkpoint, destination, target, options, progress).run()


class _Conversion:
    """One run."""

    def __init__(
        self, checkpoint: Checkpoint, destination: Path, target: Target, options: ConvertOptions, progress: Progress
    ) -> None:
        self._begun = time.monotonic()
        self._fmt = _only_format(checkpoint)
        _refuse(checkpoint, target, self._fmt)
        checkpoint.fetch_side_files()
        self._checkpoint = checkpoint
        self._options = options
        self._progress = progress
        self._folder = Destination(destination, checkpoint.root)
        self._drop_cache = should_drop_cache(checkpoint, None)
        self.result = Converted(checkpoint.label, str(destination), target)

    def run(self) -> Converted:
        """Write everything."""
        target = self.result.target
        if target is Target.HF:
            self._to_hf()
        elif target is Target.CONTAINER:
            self._to_container()
        else:
            self._to_serving()
        self._journal.close()
        self._say_what_is_not_linked()
        self.result.seconds = time.monotonic() - self._begun
        return self.result

    def _say_what_is_not_linked(self) -> None:
        copied = len(self.result.shards) - len(self.result.linked)
        if self._options.link and copied:
            why = "their headers change, they are on the Hub, or the file system does not link"
            self.result.notes.append(f"{count(copied, 'shard')} copied, not linked: {why}")

    def _to_hf(self) -> None:
        slabs = {p.fixed.tensor.name: p.fmt.fixed_shape(p.rows, p.cols) for p in self._checkpoint.planes}
        shards = [_copy(shard, shard.file, {}, slabs) for shard in self._checkpoint.shards]
        configs = self._marked_configs()
        files = plain_files(self._checkpoint) + configs + [self._stored_index(shards)]
        self._start(shards, files)
        for shard in shards:
            self._write_shard(shard)
        self._write_side_files(files)

    def _marked_configs(self) -> list[SideFile]:
        """The configs with a mark on every recipe whose planes are all CSF."""
        configs = {f.name: load_json(f.path, f.name) for f in config_files(self._checkpoint)}
        known = {recipe.module for config in configs.values() for recipe in recipes(config)}
        covering = {module_of(p.name): covering_recipe(module_of(p.name), known) for p in self._checkpoint.planes}
        mixed = {covering_recipe(module_of(p.name), known) for p in self._checkpoint.dense_planes}
        if bare := sorted(module for module, recipe in covering.items() if recipe is None):
            self.result.notes.append(
                f"no recipe covers {bare[0]} (of {len(bare)} modules): readers that go by recipes will not find it"
            )
        marked = {recipe for recipe in covering.values() if recipe} - mixed
        if half := sorted({recipe for recipe in covering.values() if recipe} & mixed):
            raise UsageError(f"--to hf: some scales of {half[0]} are dense, and a mark stands for a whole module")
        return rewritten_configs(self._checkpoint, lambda raw, name: mark_encoding(raw, name, marked))

    def _stored_index(self, shards: list[_ShardCopy]) -> SideFile:
        """The index of the stored names, in the order of the source's index where there is one."""
        placed = {t.name: shard.name for shard in shards for t in shard.source.header}
        streams = {p.name: (p.fixed.tensor.name, p.exceptions.tensor.name) for p in self._checkpoint.planes}
        root = model_root(self._checkpoint)
        name = find_index(root)
        index = read_index(root, name) if name else None
        weight_map: dict[str, str] = {}
        for dense in index.weight_map if index else ():
            for stored in streams.get(dense, (dense,)):
                if stored not in placed:
                    raise CheckpointError(f"{name}: lists {dense}, which no shard holds")
                weight_map[stored] = placed[stored]
        if index is None:
            weight_map = dict(sorted(placed.items()))
        document = index_document(index, weight_map, sum(shard.source.header.nbytes for shard in shards))
        return SideFile(name or INDEX_NAME, root / (name or INDEX_NAME), render_json(document))

    def _to_container(self) -> None:
        fmt = self._fmt
        marks = {"schema": fmt.schema, "codec": fmt.codec}
        shards = [_copy(shard, f"{TENSORS}/{shard.file}", marks, {}) for shard in self._checkpoint.shards]
        dense = own_shards(self._checkpoint, dense_tensors(self._checkpoint).values())
        configs = rewritten_configs(self._checkpoint, strip_encoding)
        files = plain_files(self._checkpoint) + configs + self._dense_index(list(dense.values()))
        self._start(shards, files)
        rows = [ShardRow(shard.source.file, shard.size, self._write_shard(shard)) for shard in shards]
        self._write_side_files(files, f"{METADATA}/")
        hashes = {f.name: sha256_of(self._folder.path / METADATA / f.name, f.name) for f in files}
        origin = self._origin()
        names = {t.name: shard.file for shard in self._checkpoint.shards for t in dense[shard.name].tensors}
        planes = self._checkpoint.planes
        for name in (MANIFEST, CONTRACT):  # of an attempt that was interrupted from here on
            self._journal.forget(name)
        self._folder.write(CONTRACT, render_json(documents.contract(fmt, origin, len(planes), None, names)))
        scales = [(p.dense_bytes, p.csf_bytes) for p in planes]
        manifest = documents.manifest(fmt, origin, rows, hashes, None, scales, HEADERS_UNKNOWN)
        self._folder.write(MANIFEST, render_json(manifest))
        self.result.notes.append(f"source headers: {HEADERS_UNKNOWN}")

    def _origin(self) -> documents.Origin:
        config = next((load_json(f.path, f.name) for f in config_files(self._checkpoint)), None)
        return documents.find_origin(self._checkpoint, self._fmt, model_type(config), self._options.origin)

    def _dense_index(self, dense: list[DenseShard]) -> list[SideFile]:
        """The index that the dense checkpoint will have: a container keeps the source's."""
        index = self._checkpoint.index
        name = index.name if index else INDEX_NAME
        document = dense_index(index, dense) if index else new_index(dense)
        return [SideFile(name, self._checkpoint.root / name, render_json(document))]

    def _to_serving(self) -> None:
        root = self._options.checkpoint_root or str(self._checkpoint.root.resolve())
        files = plain_files(self._checkpoint)
        for f in config_files(self._checkpoint):
            content = None
            if f.name == CONFIG_FILES[0]:
                config = load_json(f.path, f.name)
                if not isinstance(config, dict):
                    raise CheckpointError(f"{f.name}: not a JSON object")
                content = render_json(serving_config(config, self._fmt, root))
            files.append(SideFile(f.name, f.path, content))
        if (name := find_index(model_root(self._checkpoint))) is not None:
            files.append(SideFile(name, model_root(self._checkpoint) / name))
        self._start([], files)
        self._write_side_files(files)

    def _start(self, shards: list[_ShardCopy], files: list[SideFile]) -> None:
        there = Journal(self._folder.path)
        left = [shard for shard in shards if not there.finished(shard.name)]
        sources = [shard.source for shard in left]
        beside = sum(f.size for f in files)
        if not self._options.ignore_space:
            copied = sum(shard.size for shard in left if not self._is_to_link(shard))
            self._folder.require_space(copied + beside + room_to_fetch(sources, 1))
        wanted = {"to": self.result.target.value, "checkpoint_root": self._options.checkpoint_root}
        run = Run("convert", fingerprint(self._checkpoint), wanted | asdict(self._options.origin))
        self._journal = Journal.open(self._folder.path, run, alone=True)
        self.result.bytes_written = beside
        self._progress.start("convert", sum(shard.size for shard in left) + beside + bytes_to_fetch(sources))

    def _is_to_link(self, shard: _ShardCopy) -> bool:
        return self._options.link and shard.is_unchanged and not shard.source.remote

    def _write_shard(self, shard: _ShardCopy) -> str | None:
        """Link or copy a shard, unless an interrupted run has; its SHA-256 where a container needs it."""
        self.result.shards.append(shard.name)
        is_container = self.result.target is Target.CONTAINER
        if done := self._journal.finished(shard.name):
            return done.sha256 or (sha256_of(self._folder.path / shard.name, shard.name) if is_container else None)
        self._journal.forget_damaged(shard.name)
        hashing = Hashing() if is_container else None
        if self._is_to_link(shard):
            record = Record(shard.size, sha256_of(shard.source.path, shard.source.name) if hashing else None)
            self._journal.finish(shard.name, record)
            if self._folder.link(shard.name, shard.source.path):
                self.result.linked.append(shard.name)
                self._progress.advance(shard.size)
                return record.sha256
        with (
            fetched([shard.source], self._journal.fetch_folder(shard.name), self._progress.advance) as copies,
            Readers(copies) as readers,
            self._folder.create(shard.name, shard.size) as file,
        ):
            write_parts(file, shard.parts(), readers, hashing, self._progress.advance, self._drop_cache)
            record = Record(shard.size, hashing.hexdigest() if hashing else None)
            file.on_complete = lambda: self._journal.finish(shard.name, record)
        self.result.bytes_written += shard.size
        return record.sha256

    def _write_side_files(self, files: list[SideFile], prefix: str = "") -> None:
        for file in files:
            write_side_file(file, self._folder, self._progress, self._journal, prefix)
            self.result.other_files.append(prefix + file.name)


def _only_format(checkpoint: Checkpoint) -> CsfFormat:
    if not checkpoint.planes:
        raise UsageError(f"{checkpoint.label}: holds no CSF planes ({checkpoint.kind}); csf-tool compress makes some")
    if len(checkpoint.formats) > 1:
        raise UsageError(f"{checkpoint.label}: holds planes of two formats; a container or config states one")
    return checkpoint.formats[0]


def _refuse(checkpoint: Checkpoint, target: Target, fmt: CsfFormat) -> None:
    if found := errors(checkpoint.problems):
        raise CheckpointError(f"{checkpoint.label}: not converted: {found[0]}")
    is_container = checkpoint.layout is Layout.CONTAINER
    if target is Target.HF and not fmt.has_hf_readers:
        raise UsageError(f"--to hf: no reader knows {fmt.title} CSF in the Hugging Face layout")
    if target is Target.SERVING and not is_container:
        raise UsageError(
            "--to serving: the builds that read a serving directory want a container; convert to one first"
        )
    if is_container is (target is Target.CONTAINER):
        raise UsageError(f"{checkpoint.label}: is a {checkpoint.layout.words} already")
    names = [shard.file for shard in checkpoint.shards]
    if len(set(names)) < len(names):
        raise UsageError(f"{checkpoint.label}: two shards of one file name in different folders")


def _copy(shard: Shard, name: str, marks: dict[str, str], shapes: Mapping[str, tuple[int, ...]]) -> _ShardCopy:
    """The shard with `marks` in its metadata and the given shapes; its header stays as it is where it can."""
    metadata = shard.header.metadata | marks
    entries = [(t.name, t.dtype, shapes.get(t.name, t.shape), t.nbytes) for t in shard.header]
    if metadata == shard.header.metadata and all(shapes.get(t.name, t.shape) == t.shape for t in shard.header):
        with shard.open() as reader:
            return _ShardCopy(shard, name, bytes(reader.read(0, shard.header.data_start)), is_unchanged=True)
    return _ShardCopy(shard, name, render_header(metadata, entries), is_unchanged=False)
