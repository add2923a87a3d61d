"""compress: write a CSF checkpoint of a dense FP4 one, in either layout.

The scales come first: how many exceptions each plane has decides what is worth compressing and how large every
stream is, so that headers and the space needed are known before the first shard is written. The streams are kept
meanwhile: every byte is read once, and encoded once.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from csf_tool.cancel import CancelToken
from csf_tool.checkpoint.config import CONFIG_FILES, covering_recipe, mark_encoding, model_type, recipes
from csf_tool.checkpoint.experts import USUAL
from csf_tool.checkpoint.index import INDEX_NAME, index_document
from csf_tool.checkpoint.model import Checkpoint, DensePlane, Located, Shard
from csf_tool.checkpoint.names import module_of
from csf_tool.checkpoint.page_cache import should_drop_cache
from csf_tool.checkpoint.published import StatedOrigin, find_origin
from csf_tool.checkpoint.side_files import Beside, SideFile, beside, config_files, rewritten_configs
from csf_tool.checkpoint.streams import Readers
from csf_tool.choices import CompressTo
from csf_tool.codec.formats import EXCEPTION_BYTES, CsfFormat, format_by_name
from csf_tool.coders.decoder import Decoder
from csf_tool.coders.encoder import Encoder, read_scales
from csf_tool.codes import Code
from csf_tool.disk.json_files import render_json
from csf_tool.disk.lenient_json import load_lenient
from csf_tool.errors import UsageError
from csf_tool.progress import OnBytes, Progress, SharedProgress
from csf_tool.running.jobs import local_executor, run_jobs
from csf_tool.text import count
from csf_tool.write.carrying import Tensors, keep_what_stays_true, tensors_of
from csf_tool.write.destination import Destination
from csf_tool.write.earlier import Earlier, kept_facts, require_sound
from csf_tool.write.encoding import EncodingRenderer, encoded_shard, require_lossless
from csf_tool.write.engine import write
from csf_tool.write.evidence import require_known_hashes
from csf_tool.write.kept_streams import KeptStreams
from csf_tool.write.output import Output, OutputShard
from csf_tool.write.run import WriteOptions, Written
from csf_tool.write.selection import LeftDense, Rules, formats_meant, left_otherwise, select, stay_dense
from csf_tool.write.targets import TARGETS, Statement, TargetLayout, target_for


@dataclass(frozen=True)
class CompressOptions:
    """Options of what to write; `WriteOptions` has those of how.

    Without a `layout`, that one is written for which readers exist: Hugging Face for NVFP4, container for MXFP4. Both
    together are only held by the first.
    """

    layout: CompressTo | None = None
    rules: Rules = field(default_factory=Rules)
    origin: StatedOrigin = field(default_factory=StatedOrigin)

    def wanted(self, layout: str) -> dict[str, Any]:
        """The options that two runs must share for one to go on from the other, as JSON."""
        options = {"layout": layout, **asdict(self.rules), **asdict(self.origin)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}


@dataclass(frozen=True)
class FormatTotals:
    """The planes of one format that were compressed: how many, and their bytes."""

    format: CsfFormat
    planes: int
    dense_bytes: int
    csf_bytes: int


@dataclass(kw_only=True)
class Compressed(Written):
    """The result of `compress`."""

    target: TargetLayout
    device: str
    by_format: list[FormatTotals]
    left: list[LeftDense]

    @property
    def planes(self) -> int:
        """All planes that were compressed."""
        return sum(totals.planes for totals in self.by_format)

    @property
    def dense_bytes(self) -> int:
        """Bytes of their dense scales."""
        return sum(totals.dense_bytes for totals in self.by_format)

    @property
    def csf_bytes(self) -> int:
        """Bytes of their streams."""
        return sum(totals.csf_bytes for totals in self.by_format)


@dataclass(frozen=True)
class _Choice:
    """The planes to compress, each with format, rows, columns and exceptions, and the source's shards, in order.

    `names` has the shard of every tensor of the source. All of it is JSON, so that a run that goes on without some of
    the source's shards still knows it.
    """

    layout: str
    planes: dict[str, tuple[str, int, int, int]]
    shards: list[str]
    names: dict[str, str]

    @property
    def formats(self) -> list[CsfFormat]:
        """The formats of its planes."""
        return list(map(format_by_name, dict.fromkeys(name for name, *_ in self.planes.values())))

    def planes_of(self, shard: Shard) -> dict[str, DensePlane]:
        """The chosen planes among the tensors of a shard."""
        found = ((tensor, self.planes.get(tensor.name)) for tensor in shard.header)
        return {
            t.name: DensePlane(t.name, format_by_name(has[0]), has[1], has[2], Located(shard, t))
            for t, has in found
            if has
        }

    def scales(self) -> list[tuple[str, int, int]]:
        """The format's name, dense and stored bytes of every plane."""
        formats = {fmt.name: fmt for fmt in self.formats}
        return [
            (name, rows * cols, formats[name].fixed_bytes(rows, cols) + exceptions * EXCEPTION_BYTES)
            for name, rows, cols, exceptions in self.planes.values()
        ]


def compress(
    checkpoint: Checkpoint,
    destination: Path,
    options: CompressOptions,
    encoder: Encoder,
    decoder: Decoder,
    progress: Progress,
    how: WriteOptions | None = None,
) -> Compressed:
    """Write the CSF checkpoint of `checkpoint` into the folder `destination`, new, empty, or left by such a run.

    Raises:
        UsageError: nothing can be compressed, the layout does not exist for the format, or the destination
            cannot be right.
        CheckpointError: the checkpoint is broken, or a written shard did not give back its original.
        EnvironmentFault: not enough room, or the system cannot write.
    """
    begun, how = time.monotonic(), how or WriteOptions()
    facts = kept_facts(destination)
    if checkpoint.planes:
        raise UsageError(f"{checkpoint.label}: holds CSF planes already; csf-tool expand makes it dense")
    if not checkpoint.dense_planes and not facts:
        raise _nothing_fits(checkpoint)
    target = TARGETS[facts["layout"]] if facts else _target(checkpoint, options)
    earlier = Earlier.at(destination, checkpoint, how, "compress", options.wanted(target.layout.name))
    require_sound(checkpoint, earlier.consumed, "not compressed")
    if earlier.result:
        return _compressed(earlier.written(checkpoint, destination), target, earlier.result, encoder.device)
    checkpoint.fetch_side_files()
    require_known_hashes(checkpoint, "not compressed")
    configs = {file.name: load_lenient(file.path, file.name).value for file in config_files(checkpoint)}
    left: list[LeftDense] = []
    kept = None if how.executor else KeptStreams(Destination(destination))
    with kept or nullcontext():
        if facts:
            choice = _Choice(**facts)
        else:
            measure = partial(_count_exceptions, checkpoint, encoder, kept, progress, how)
            choice, left = _choose(checkpoint, target, options.rules, configs, measure)
        renderer = EncodingRenderer(
            encoder,
            {name: exceptions for name, (*_, exceptions) in choice.planes.items()},
            kept,
            decoder if target.gives_receipts else None,
        )
        formats = choice.formats
        shards = [
            encoded_shard(shard, choice.planes_of(shard), renderer.exceptions, target.layout, formats)
            for shard in checkpoint.shards
        ]
        if target.layout.keeps_dense_files:
            files = _dense_files(checkpoint)
        else:
            files = _marked_files(checkpoint, configs, choice, earlier, shards)
        found = beside(checkpoint, same_shards=target.gives_receipts)
        plain = _kept(checkpoint, found, earlier, target, shards)
        side_files = target.placed(plain + files)
        output = Output("compress", shards, side_files, renderer, facts=asdict(choice), left_out=found.left_out)
        output = target.compressed(output, partial(_statement, checkpoint, options.origin, configs, choice))
        written = write(output, checkpoint, destination, earlier, progress, how, begun)
    if unread := target.unread(formats):
        written.notes.append(f"{unread}: --exclude leaves such planes dense")
    written.notes += [] if target.gives_receipts else _relabelled(checkpoint, choice)
    written.notes += [] if target.layout.keeps_dense_files else _unmarked(configs, choice)
    return _compressed(written, target, choice, encoder.device, left)


def _nothing_fits(checkpoint: Checkpoint) -> UsageError:
    """The error of a checkpoint without planes to compress."""
    left = left_otherwise(checkpoint)
    if left:
        return UsageError(f"0 planes matched: {stay_dense(left)}", Code.NOTHING_MATCHED, checkpoint.label)
    found = dict.fromkeys(other.kind.weights for other in checkpoint.other_scales)
    instead = f": its scales are those of {' and '.join(found)}" if found else ""
    return UsageError(f"{checkpoint.label}: holds no FP4 block scales ({checkpoint.kind}){instead}")


def _target(checkpoint: Checkpoint, options: CompressOptions) -> TargetLayout:
    """The layout to write: the one given, or the one for which readers of the format exist."""
    formats = formats_meant(checkpoint.dense_planes, options.rules, checkpoint.doubtful, checkpoint.experts)
    default = target_for(formats)
    target = TARGETS[options.layout] if options.layout else default
    if refusal := target.refusal(formats, checkpoint.shards):
        instead = f"; use --to {default.layout.name}" if target.refusal(formats, ()) else ""
        instead += ", or --exclude all scales but those of one" if len(formats) > 1 else ""
        raise UsageError(f"--to {target.layout.name}: {refusal}{instead}")
    return target


def _compressed(
    written: Written, target: TargetLayout, planes: "_Choice | Checkpoint", device: str, left: Sequence[LeftDense] = ()
) -> Compressed:
    """The result for planes that were chosen in this run, or that a finished destination holds."""
    if isinstance(planes, Checkpoint):
        scales = [(plane.fmt.name, plane.dense_bytes, plane.csf_bytes) for plane in planes.planes]
    else:
        scales = planes.scales()
    by_format = []
    for name in dict.fromkeys(name for name, _, _ in scales):
        own = [(dense, stored) for other, dense, stored in scales if other == name]
        by_format.append(FormatTotals(format_by_name(name), len(own), *map(sum, zip(*own, strict=True))))
    return Compressed(**vars(written), target=target, device=device, by_format=by_format, left=list(left))


def _choose(
    checkpoint: Checkpoint,
    target: TargetLayout,
    rules: Rules,
    configs: Mapping[str, Any],
    measure: Callable[[list[DensePlane]], dict[str, int]],
) -> tuple[_Choice, list[LeftDense]]:
    """Choose the planes to compress, and list those that stay dense, each with the reason."""
    planes = checkpoint.dense_planes
    modules = None if target.layout.keeps_dense_files else _marked_modules(planes, configs)
    selection = select(planes, rules, modules, measure, checkpoint.doubtful, checkpoint.experts)
    if not selection.chosen:
        stay = stay_dense(selection.left + left_otherwise(checkpoint))
        raise UsageError(f"0 planes matched: {stay}", Code.NOTHING_MATCHED, checkpoint.label)
    chosen = {p.name: (p.fmt.name, p.rows, p.cols, selection.exceptions[p.name]) for p in selection.chosen}
    names = {located.tensor.name: located.shard.name for located in checkpoint.tensors()}
    shards = [shard.name for shard in checkpoint.shards]
    left = selection.left + left_otherwise(checkpoint)
    return _Choice(target.layout.name, chosen, shards, names), left


def _recipe_modules(configs: Mapping[str, Any]) -> set[str]:
    return {recipe.module for config in configs.values() for recipe in recipes(config)}


def _marked_modules(planes: Iterable[DensePlane], configs: Mapping[str, Any]) -> dict[str, str]:
    """The module that is marked for each plane: that of its recipe, or its group of experts."""
    known = _recipe_modules(configs)
    return {plane.name: _marked_module(plane.name, known) for plane in planes}


def _marked_module(name: str, known: set[str]) -> str:
    module = module_of(name)
    return covering_recipe(module, known) or USUAL.group_of(name) or module


def _unmarked(configs: Mapping[str, Any], choice: _Choice) -> list[str]:
    """Warnings of planes without a recipe, which readers that go by recipes will not find."""
    known = _recipe_modules(configs)
    unmarked = sorted({_marked_module(name, known) for name in choice.planes} - known)
    if not unmarked:
        return []
    return [
        f"no recipe in {' or '.join(CONFIG_FILES)} for {unmarked[0]} (of {len(unmarked)} modules): "
        "readers that go by recipes will not find its CSF planes"
    ]


def _relabelled(checkpoint: Checkpoint, choice: _Choice) -> list[str]:
    """Notes of scales in a dtype that streams do not tell, and only receipts would keep."""
    kinds = checkpoint.dense_table.kinds
    odd = {i for i, kind in enumerate(kinds) if kind.dtype != kind.fmt.dense_dtype}
    places = zip(checkpoint.dense_table.names, checkpoint.dense_table.kind_of, strict=True) if odd else ()
    found = Counter(
        (kinds[kind].dtype, kinds[kind].fmt.dense_dtype)
        for name, kind in places
        if kind in odd and name in choice.planes
    )
    return [
        f"{count(number, 'block scale')} stored as {dtype} will be {written} when they are expanded, the bytes the same"
        for (dtype, written), number in found.items()
    ]


@dataclass(frozen=True)
class _Measuring:
    """Everything that a job needs to count the exceptions of the planes of one shard."""

    planes: list[DensePlane]
    encoder: Encoder
    kept: KeptStreams | None
    drop_cache: bool


def _count_exceptions(
    checkpoint: Checkpoint,
    encoder: Encoder,
    kept: KeptStreams | None,
    progress: Progress,
    how: WriteOptions,
    planes: list[DensePlane],
) -> dict[str, int]:
    """Encode planes, shard by shard, to count the exceptions of each; streams that this run will write are kept."""
    shared, cancel = SharedProgress(progress), CancelToken(checkpoint.stop_fetching)
    shared.start("measure", sum(plane.dense_bytes for plane in planes))
    mine = {shard.name for i, shard in enumerate(checkpoint.shards) if how.share.takes(i)}
    by_shard: dict[str, list[DensePlane]] = {}
    for plane in planes:
        by_shard.setdefault(plane.scale.shard.name, []).append(plane)
    drop_cache = should_drop_cache(checkpoint, how.drop_cache)
    tasks = [_Measuring(some, encoder, kept if name in mine else None, drop_cache) for name, some in by_shard.items()]
    counts: dict[str, int] = {}

    def done(task: _Measuring, found: dict[str, int]) -> None:
        counts.update(found)
        if how.executor:  # its workers cannot report progress
            shared.advance(sum(plane.dense_bytes for plane in task.planes))

    if how.executor:
        run_jobs(tasks, _measure, done, how.executor, cancel)
    else:
        with local_executor(how.jobs) as pool:
            run_jobs(tasks, partial(_measure, on_bytes=cancel.checked(shared.advance)), done, pool, cancel)
    return counts


def _measure(task: _Measuring, on_bytes: OnBytes = lambda _: None) -> dict[str, int]:
    counts = {}
    with Readers() as readers, readers.unchanged():
        readers.expect(plane.scale for plane in task.planes)
        for encoded in task.encoder.encode(read_scales(readers, task.planes)):
            require_lossless(encoded)
            counts[encoded.plane.name] = len(encoded.streams.exceptions)
            if task.kept:
                task.kept.keep(encoded.streams)
            on_bytes(encoded.plane.dense_bytes)
        if task.drop_cache:
            readers.forget()
            if task.kept:
                task.kept.forget()
    return counts


def _kept(
    checkpoint: Checkpoint, found: Beside, earlier: Earlier, target: TargetLayout, shards: list[OutputShard]
) -> list[SideFile]:
    """The files in `found` that are carried over as they are."""

    def tensors() -> Tensors:
        dense = {shard.name: shard.header.names for shard in checkpoint.shards}
        return dense if target.layout.keeps_dense_files else tensors_of(shards)

    return keep_what_stays_true(found, earlier, [shard.name for shard in shards], tensors, target.placed)


def _dense_files(checkpoint: Checkpoint) -> list[SideFile]:
    """Configs and index as they are."""
    index = checkpoint.index
    return config_files(checkpoint) + ([SideFile(index.name, checkpoint.root / index.name)] if index else [])


def _marked_files(
    checkpoint: Checkpoint,
    configs: Mapping[str, Any],
    choice: _Choice,
    earlier: Earlier,
    shards: list[OutputShard],
) -> list[SideFile]:
    """Configs whose recipes are marked, and the index of the stored names."""
    known = _recipe_modules(configs)
    marked = {_marked_module(name, known) for name in choice.planes}
    files = rewritten_configs(checkpoint, lambda raw, name: mark_encoding(raw, name, marked))
    return files + _stored_index(checkpoint, choice, earlier, shards)


def _stored_index(
    checkpoint: Checkpoint, choice: _Choice, earlier: Earlier, shards: list[OutputShard]
) -> list[SideFile]:
    """The index with stored names: the source's order, or a new one where it has none and needs one."""
    index = checkpoint.index
    if index is None and len(choice.shards) == 1:
        return []
    name = index.name if index else INDEX_NAME
    if (kept := earlier.content(name)) is not None:
        return [SideFile.new(name, kept)]
    weight_map: dict[str, str] = {}
    for tensor, shard in (index.weight_map if index else choice.names).items():
        if tensor in choice.planes:
            fmt = format_by_name(choice.planes[tensor][0])
            weight_map |= dict.fromkeys([tensor + fmt.fixed_suffix, tensor + fmt.exceptions_suffix], shard)
        else:
            weight_map[tensor] = shard
    document = index_document(index, weight_map, sum(shard.size - len(shard.header) for shard in shards))
    return [SideFile.new(name, render_json(document))]


def _statement(checkpoint: Checkpoint, stated: StatedOrigin, configs: Mapping[str, Any], choice: _Choice) -> Statement:
    [fmt] = choice.formats
    origin = find_origin(checkpoint, fmt, model_type(configs.get(CONFIG_FILES[0])), stated)
    source_index = checkpoint.index.name if checkpoint.index else None
    scales = [(dense, stored) for _, dense, stored in choice.scales()]
    return Statement(fmt, origin, choice.shards, choice.names, scales, source_index)
