"""compress: write a CSF checkpoint of a dense FP4 one, in either layout.

The scales come first: how many exceptions each plane has decides what is worth compressing and how large every
stream is, so that headers and the space needed are known before the first shard is written. The streams are kept
meanwhile: every byte is read once, and encoded once.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from csf_tool.checkpoint import container_documents as documents
from csf_tool.checkpoint.config import CONFIG_FILES, covering_recipe, mark_encoding, model_type, recipes
from csf_tool.checkpoint.container import (
    CONTRACT,
    MANIFEST,
    METADATA,
    RECEIPTS,
    VERIFICATION,
    ShardRow,
    read_container,
    read_row,
)
from csf_tool.checkpoint.container_documents import StatedOrigin
from csf_tool.checkpoint.index import INDEX_NAME, index_document
from csf_tool.checkpoint.logical import DenseShard, dense_shards, shard_bytes
from csf_tool.checkpoint.model import Checkpoint, DensePlane, Layout
from csf_tool.checkpoint.names import expert_group_of, module_of
from csf_tool.checkpoint.open import open_container
from csf_tool.checkpoint.problems import errors
from csf_tool.checkpoint.side_files import SideFile, config_files, plain_files, rewritten_configs
from csf_tool.checkpoint.streams import Readers
from csf_tool.codec.formats import CsfFormat
from csf_tool.coders.decoder import Decoder
from csf_tool.coders.encoder import Encoder, read_scales
from csf_tool.disk.hashing import sha256_of
from csf_tool.disk.json_files import load_json, render_json
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.progress import Progress
from csf_tool.running.jobs import SharedProgress, default_jobs, local_executor, run_jobs, should_drop_cache
from csf_tool.write.csf_shards import CsfShard, CsfShardJob, csf_shard, write_csf_shard
from csf_tool.write.destination import Destination
from csf_tool.write.fetch import bytes_to_fetch, room_to_fetch
from csf_tool.write.fingerprint import fingerprint
from csf_tool.write.journal import Journal, Run
from csf_tool.write.kept_streams import KeptStreams
from csf_tool.write.selection import LeftDense, Rules, Selection, csf_bytes, main_format, select
from csf_tool.write.shard_writer import dropping_cache, write_side_file

T = TypeVar("T")

_RECEIPT_BYTES = 1024
"""Room that a plane takes in receipt and contract, for the space check: names and hashes, generously."""


@dataclass(frozen=True)
class CompressOptions:
    """What the user asks for.

    Without a `layout` it is the one that readers exist for: Hugging Face for NVFP4, container for MXFP4.
    """

    layout: Layout | None = None
    rules: Rules = field(default_factory=Rules)
    origin: StatedOrigin = field(default_factory=StatedOrigin)
    jobs: int = field(default_factory=default_jobs)
    drop_cache: bool | None = None
    """Whether files are kept out of the page cache; None: large new ones are, and all when they would fill memory."""
    ignore_space: bool = False


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


def compress(
    checkpoint: Checkpoint,
    destination: Path,
    options: CompressOptions,
    encoder: Encoder,
    decoder: Decoder,
    progress: Progress,
) -> Compressed:
    """Write the CSF checkpoint of `checkpoint` into the folder `destination`, new, empty, or left by such a run.

    Raises:
        UsageError: nothing can be compressed, the layout does not exist for the format, or the destination
            cannot be right.
        CheckpointError: the checkpoint is broken, or a written shard did not give back its original.
        EnvironmentFault: not enough room, or the system cannot write.
    """
    _refuse(checkpoint)
    checkpoint.fetch_side_files()
    return _Compression(checkpoint, destination, options, encoder, decoder, progress).run()


class _Compression:
    """One run."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        destination: Path,
        options: CompressOptions,
        encoder: Encoder,
        decoder: Decoder,
        progress: Progress,
    ) -> None:
        self._begun = time.monotonic()
        self._checkpoint, self._options = checkpoint, options
        self._encoder, self._decoder, self._progress = encoder, decoder, SharedProgress(progress, checkpoint)
        self._drop_cache = should_drop_cache(checkpoint, options.drop_cache)
        self._folder = Destination(destination, checkpoint.root, keep_cache=options.drop_cache is False)
        self._layout = options.layout or _default_layout(main_format(checkpoint.dense_planes))
        self._streams = KeptStreams(self._folder, hashes=self._layout is Layout.CONTAINER)
        self._configs = {f.name: load_json(f.path, f.name) for f in config_files(checkpoint)}

    def run(self) -> Compressed:
        """Encode the scales, and write everything."""
        with self._streams:
            self._selection = self._select()
            self._sizes = {p.name: csf_bytes(p, self._selection.exceptions[p.name]) for p in self._selection.chosen}
            self._shards = self._csf_shards()
            self.result = self._compressed()
            if self._layout is Layout.HF:
                self._write_hf()
            else:
                self._write_container()
            self._journal.close()
        self.result.seconds = time.monotonic() - self._begun
        return self.result

    def _compressed(self) -> Compressed:
        """What is known of the result before anything is written."""
        chosen = self._selection.chosen
        return Compressed(
            source=self._checkpoint.label,
            destination=str(self._folder.path),
            layout=self._layout,
            format=self._selection.fmt,
            device=self._encoder.device,
            planes=len(chosen),
            dense_bytes=sum(plane.dense_bytes for plane in chosen),
            csf_bytes=sum(self._sizes.values()),
            left=self._selection.left,
        )

    def _select(self) -> Selection:
        planes = self._checkpoint.dense_planes
        fmt = main_format(planes)
        if self._layout is Layout.HF and not fmt.has_hf_readers:
            raise UsageError(f"--to hf: no reader knows {fmt.title} CSF in the Hugging Face layout; use --to container")
        modules = self._modules if self._layout is Layout.HF else None
        selection = select(planes, self._options.rules, modules, self._encode_planes, self._checkpoint.doubtful)
        if not selection.chosen:
            first = selection.left[0]
            raise UsageError(
                f"{self._checkpoint.label}: 0 planes matched: {len(selection.left)} block scales stay dense, "
                f"as {first.plane.name}: {first.reason}"
            )
        return selection

    @cached_property
    def _modules(self) -> dict[str, str]:
        """The module of every plane that a mark would stand for: its recipe's, or its group of experts."""
        known = self._recipe_modules()
        modules = {}
        for plane in self._checkpoint.dense_planes:
            module = module_of(plane.name)
            modules[plane.name] = covering_recipe(module, known) or expert_group_of(plane.name) or module
        return modules

    def _recipe_modules(self) -> set[str]:
        return {recipe.module for config in self._configs.values() for recipe in recipes(config)}

    def _encode_planes(self, planes: list[DensePlane]) -> dict[str, int]:
        """Encode planes, shard by shard, and keep their streams; how many exceptions each has."""
        self._progress.start("measure", sum(plane.dense_bytes for plane in planes))
        by_shard: dict[str, list[DensePlane]] = {}
        for plane in planes:
            by_shard.setdefault(plane.scale.shard.name, []).append(plane)
        counts: dict[str, int] = {}
        self._run(list(by_shard.values()), lambda some: counts.update(self._encode_shard(some)))
        return counts

    def _encode_shard(self, planes: list[DensePlane]) -> dict[str, int]:
        counts = {}
        with Readers() as readers, readers.unchanged():
            readers.expect(plane.scale for plane in planes)
            for encoded in self._encoder.encode(read_scales(readers, planes)):
                counts[encoded.plane.name] = len(encoded.exceptions)
                self._streams.keep(encoded)
                self._progress.advance(encoded.plane.dense_bytes)
            if self._drop_cache:
                readers.forget()
                self._streams.forget()
        return counts

    def _run(self, tasks: list[T], work: Callable[[T], None]) -> None:
        with local_executor(self._options.jobs) as pool:
            run_jobs(tasks, work, lambda *_: None, pool, self._progress.stop)

    def _csf_shards(self) -> list[CsfShard]:
        """The shards to write, with the planes that were chosen of each."""
        chosen: dict[str, dict[str, DensePlane]] = {}
        for plane in self._selection.chosen:
            chosen.setdefault(plane.scale.shard.name, {})[plane.name] = plane
        exceptions, fmt = self._selection.exceptions, self._selection.fmt
        return [
            csf_shard(shard, chosen.get(shard.name, {}), exceptions, self._layout, fmt)
            for shard in self._checkpoint.shards
        ]

    def _write_hf(self) -> None:
        marked = {self._modules[plane.name] for plane in self._selection.chosen}
        configs = rewritten_configs(self._checkpoint, lambda raw, name: mark_encoding(raw, name, marked))
        if unmarked := sorted(marked - self._recipe_modules()):
            self.result.notes.append(
                f"no recipe in {' or '.join(CONFIG_FILES)} for {unmarked[0]} (of {len(unmarked)} modules): "
                "readers that go by recipes will not find its CSF planes"
            )
        files = plain_files(self._checkpoint) + configs + self._hf_index()
        self._start(files, 0)
        self._write_shards()
        self._write_side_files(files)

    def _hf_index(self) -> list[SideFile]:
        """The index with stored names: the source's order, or a new one where it has none and needs one."""
        index = self._checkpoint.index
        if index is None and len(self._shards) == 1:
            return []
        placed = {located.tensor.name: located.shard.name for located in self._checkpoint.tensors()}
        chosen = {plane.name: plane.fmt for plane in self._selection.chosen}
        weight_map: dict[str, str] = {}
        for name, shard in (index.weight_map if index else placed).items():
            fmt = chosen.get(name)
            stored = [name + fmt.fixed_suffix, name + fmt.exceptions_suffix] if fmt else [name]
            weight_map |= dict.fromkeys(stored, shard)
        document = index_document(index, weight_map, sum(shard.payload_bytes for shard in self._shards))
        name = index.name if index else INDEX_NAME
        return [SideFile(name, self._checkpoint.root / name, render_json(document))]

    def _write_container(self) -> None:
        if nested := [s.source.name for s in self._shards if "/" in s.source.name]:
            raise UsageError(f"--to container: shard {nested[0]} lies in a folder; a container's shard names are plain")
        index = self._checkpoint.index
        files = plain_files(self._checkpoint) + config_files(self._checkpoint)
        files += [SideFile(index.name, self._checkpoint.root / index.name)] if index else []
        self._start(files, sum(2 * len(s.header) + _RECEIPT_BYTES * len(s.planes) for s in self._shards))
        self._write_shards()
        self._write_side_files(files, f"{METADATA}/")
        hashes = {f.name: sha256_of(f.path, f.name) for f in files}
        for name in (MANIFEST, VERIFICATION, CONTRACT):  # of an attempt that was interrupted from here on
            self._journal.forget(name)
        manifest = self._write_contract(hashes, hashes[index.name] if index else None)
        self._rebuild(manifest)
        record = documents.verification(self._selection.fmt, len(self._shards), len(self._selection.chosen))
        for name, document in ((VERIFICATION, record), (MANIFEST, manifest)):
            self._folder.write(name, render_json(document))

    def _write_contract(self, hashes: dict[str, str], index_sha256: str | None) -> dict[str, Any]:
        """Write the build contract; the manifest that goes with it, which is written last of all."""
        fmt, chosen = self._selection.fmt, self._selection.chosen
        config = self._configs.get(CONFIG_FILES[0])
        origin = documents.find_origin(self._checkpoint, fmt, model_type(config), self._options.origin)
        names = {t.name: shard.source.name for shard in self._shards for t in shard.source.header}
        self._folder.write(CONTRACT, render_json(documents.contract(fmt, origin, len(chosen), index_sha256, names)))
        rows = [self._row(shard.source.name) for shard in self._shards]
        scales = [(plane.dense_bytes, self._sizes[plane.name]) for plane in chosen]
        return documents.manifest(fmt, origin, rows, hashes, index_sha256, scales)

    def _row(self, file: str) -> ShardRow:
        """What the receipt that was written with a shard states of it."""
        name = f"{RECEIPTS}/{file}.json"
        return read_row(load_json(self._folder.path / name, name), name)

    def _rebuild(self, manifest: dict[str, Any]) -> None:
        """Rebuild every original shard from what was written, and compare its hash.

        Raises:
            CheckpointError: one is not the original.
        """
        written = open_container(self._folder.path, read_container(self._folder.path, manifest))
        if found := errors(written.problems):
            raise CheckpointError(f"the container just written is not sound: {found[0]}")
        self._run(dense_shards(written), self._rebuild_shard)

    def _rebuild_shard(self, shard: DenseShard) -> None:
        hasher = hashlib.sha256()
        with (
            Readers() as readers,
            dropping_cache(self._drop_cache, self._progress.advance, readers) as advance,
        ):
            decoded = self._decoder.decode(readers.streams(p).require_decodable() for p in shard.planes)
            for piece in shard_bytes(shard, readers, (d.scales for d in decoded)):
                hasher.update(piece)
                advance(len(piece))
        if hasher.hexdigest() != shard.sha256:
            raise CheckpointError(f"{shard.name}: what was written does not give back the original shard")

    def _start(self, files: list[SideFile], records: int) -> None:
        """Check the room, open the journal, begin."""
        total = sum(shard.size for shard in self._shards) + sum(f.size for f in files)
        done = Journal(self._folder.path).bytes_there(shard.name for shard in self._shards)
        if not self._options.ignore_space:
            self._folder.require_space(
                total + records - done + room_to_fetch(self._checkpoint.shards, self._options.jobs)
            )
        options = {"layout": self._layout.value, **asdict(self._options.rules), **asdict(self._options.origin)}
        options = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
        run = Run("compress", fingerprint(self._checkpoint), options)
        self._journal = Journal.open(self._folder.path, run, alone=True)
        self.result.bytes_written = total - done
        rebuilt = sum(s.source.size for s in self._shards) if self._layout is Layout.CONTAINER else 0
        there = Journal(self._folder.path)
        to_fetch = bytes_to_fetch(s.source for s in self._shards if not there.finished(s.name))
        self._progress.start("compress", total - done + rebuilt + to_fetch)

    def _write_shards(self) -> None:
        left = [shard for shard in self._shards if not self._journal.finished(shard.name)]
        for shard in left:
            self._journal.forget_damaged(shard.name)
        self._run(left, self._write_shard)
        self.result.shards = [shard.name for shard in self._shards]

    def _write_shard(self, shard: CsfShard) -> None:
        with_receipt, drop_cache = self._layout is Layout.CONTAINER, self._drop_cache
        job = CsfShardJob(shard, self._folder, self._journal, self._streams, with_receipt, drop_cache)
        write_csf_shard(job, self._progress.advance)

    def _write_side_files(self, files: list[SideFile], prefix: str = "") -> None:
        for file in files:
            write_side_file(file, self._folder, self._progress, self._journal, prefix)
            self.result.other_files.append(prefix + file.name)


def _refuse(checkpoint: Checkpoint) -> None:
    if found := errors(checkpoint.problems):
        raise CheckpointError(f"{checkpoint.label}: not compressed: {found[0]}")
    if checkpoint.planes:
        raise UsageError(f"{checkpoint.label}: holds CSF planes already; csf-tool expand makes it dense")
    if not checkpoint.dense_planes:
        raise UsageError(f"{checkpoint.label}: holds no FP4 block scales")


def _default_layout(fmt: CsfFormat) -> Layout:
    return Layout.HF if fmt.has_hf_readers else Layout.CONTAINER
