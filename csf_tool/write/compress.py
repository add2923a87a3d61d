"""compress: write a CSF checkpoint of a dense FP4 one, in either layout.

The scales come first: how many exceptions each plane has decides what is worth compressing and how large every
stream is, so that headers and the space needed are known before the first shard is written. The streams are kept
meanwhile: every byte is read once, and encoded once.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES, model_type
from csf_tool.checkpoint.index import INDEX_NAME, index_document
from csf_tool.checkpoint.marks import mark_encoding
from csf_tool.checkpoint.names import module_of
from csf_tool.checkpoint.planes import usual_dtype
from csf_tool.checkpoint.published import StatedOrigin, find_origin
from csf_tool.checkpoint.side_files import CarriedFiles, SideFile, carried_files, config_files, rewritten_configs
from csf_tool.choices import CompressTo
from csf_tool.codec.formats import CsfFormat, format_by_name
from csf_tool.coders.decoder import Decoder
from csf_tool.coders.encoder import Encoder
from csf_tool.codes import Code
from csf_tool.disk.json_files import render_json
from csf_tool.disk.own_files import OWN_FOLDER
from csf_tool.errors import UsageError
from csf_tool.progress import Progress
from csf_tool.text import count, counted
from csf_tool.write.carrying import Tensors, keep_what_stays_true, tensors_of
from csf_tool.write.destination import Destination
from csf_tool.write.earlier import Earlier, kept_facts, require_sound
from csf_tool.write.encoding import EncodingRenderer, encoded_shard
from csf_tool.write.engine import write
from csf_tool.write.evidence import require_known_hashes
from csf_tool.write.kept_streams import KeptStreams
from csf_tool.write.layout_choice import layout_to_write
from csf_tool.write.measuring import count_exceptions
from csf_tool.write.output import Output, OutputShard
from csf_tool.write.plane_choice import PlaneChoice, choose_planes
from csf_tool.write.recipes import Recipes, read_configs, recipes_to_write
from csf_tool.write.run import WriteOptions, Written
from csf_tool.write.selection import LeftDense, Rules, idle_globs, left_otherwise, stay_dense
from csf_tool.write.targets import TARGETS, Statement, TargetLayout


@dataclass(frozen=True)
class CompressOptions:
    """Options of what to write; `WriteOptions` has those of how.

    Without a `layout`, that one is written whose readers find the planes: Hugging Face for NVFP4 where the config has
    recipes, or can get them; container otherwise. Both codecs together are only held by the first.
    """

    layout: CompressTo | None = None
    rules: Rules = field(default_factory=Rules)
    origin: StatedOrigin = field(default_factory=StatedOrigin)

    def wanted(self, layout: str | None) -> dict[str, Any]:
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
        raise UsageError(f"{checkpoint.label}: already holds CSF planes; csf-tool expand makes it dense")
    if not checkpoint.dense_planes and not facts:
        raise _nothing_fits(checkpoint)
    configs = read_configs(checkpoint)
    recipes = Recipes.of(configs, facts["recipes"] if facts else recipes_to_write(configs, checkpoint))
    target = TARGETS[facts["layout"]] if facts else layout_to_write(checkpoint, options.layout, options.rules, recipes)
    earlier = Earlier.at(destination, checkpoint, how, "compress", options.wanted(target.layout.name))
    require_sound(checkpoint, earlier.consumed, "not compressed")
    checkpoint.fetch_side_files()
    require_known_hashes(checkpoint, "not compressed")
    left: list[LeftDense] = []
    there = Destination(destination)
    if not earlier.result:
        there.require_writable(OWN_FOLDER)  # before there is work to lose
    kept = None if how.executor or how.dry_run or earlier.result else KeptStreams(there)
    with kept or nullcontext():
        if facts:
            choice = PlaneChoice(**facts)
        elif earlier.result:
            choice = PlaneChoice.of_result(earlier.result, checkpoint, target, recipes)
        else:
            names = [target.layout.stored_name(shard.name) for shard in checkpoint.shards]
            mine = [name for i, name in enumerate(names) if how.share.takes(i)]
            progress.resume(earlier.count_finished(mine), len(mine))
            measure = partial(count_exceptions, checkpoint, encoder, kept, progress, how)
            choice, left = choose_planes(checkpoint, target, options.rules, recipes, measure)
        renderer = EncodingRenderer(
            encoder,
            {name: exceptions for name, (*_, exceptions) in choice.planes.items()},
            kept,
            decoder if target.gives_receipts else None,
        )
        output = _output(checkpoint, target, choice, earlier, renderer)
        output = target.compressed(output, partial(_statement, checkpoint, options.origin, configs, choice))
        written = write(output, checkpoint, destination, earlier, progress, how, begun)
    if unread := target.unread(choice.formats):
        written.notes.append(f"{unread}: --exclude leaves such planes dense")
    written.notes += [] if target.gives_receipts else _relabelled(checkpoint, choice)
    written.notes[:0] = _notes(target, options, recipes, choice) + _with_all_experts(checkpoint, choice)
    written.notes[:0] = idle_globs(options.rules, [*choice.planes, *(each.plane.name for each in left)])
    return _compressed(written, target, choice, encoder.device, left)


def _output(
    checkpoint: Checkpoint, target: TargetLayout, choice: PlaneChoice, earlier: Earlier, renderer: EncodingRenderer
) -> Output:
    """The shards with the chosen planes as streams, and the files beside them, but for the layout's documents."""
    formats = choice.formats
    shards = [
        encoded_shard(shard, choice.planes_of(shard), renderer.exceptions, target.layout, formats)
        for shard in checkpoint.shards
    ]
    if target.layout.keeps_dense_files:
        files = _dense_files(checkpoint)
    else:
        files = _marked_files(checkpoint, choice, earlier, shards)
    found = carried_files(checkpoint, same_shards=target.gives_receipts)
    side_files = target.placed(_kept(checkpoint, found, earlier, target, shards) + files)
    return Output("compress", shards, side_files, renderer, facts=asdict(choice), left_out=found.left_out)


def _nothing_fits(checkpoint: Checkpoint) -> UsageError:
    """The error of a checkpoint without planes to compress."""
    left = left_otherwise(checkpoint)
    if left:
        return UsageError(f"0 planes matched: {stay_dense(left)}", Code.NOTHING_MATCHED, checkpoint.label)
    found = dict.fromkeys(other.kind.weights for other in checkpoint.other_scales)
    instead = f": its scales belong to {' and '.join(found)}" if found else ""
    return UsageError(f"{checkpoint.label}: holds no FP4 block scales ({checkpoint.kind}){instead}")


def _notes(target: TargetLayout, options: CompressOptions, recipes: Recipes, choice: PlaneChoice) -> list[str]:
    """Notes on the layout: why it is not the usual one, which planes are not found, and which have grown."""
    readable = [name for name, (fmt, *_) in choice.planes.items() if format_by_name(fmt).has_hf_readers]
    unfound = recipes.unfound(readable)
    if target.layout.keeps_dense_files:
        is_unusual = unfound and not options.layout
        return [f"--to {target.layout.name} was chosen, because in the other layout {unfound}"] if is_unusual else []
    notes = [f"{unfound}; --to container writes what other readers find"] if unfound else []
    grown = [stored - dense for _, dense, stored in choice.scales() if stored > dense]
    if grown and not options.rules.keep_larger:
        more = f"{count(len(grown), 'plane')} took {sum(grown)} bytes more"
        notes.append(f"{more}: csf-tool marks and compresses a module as a whole if the whole module shrinks")
    return notes


def _with_all_experts(checkpoint: Checkpoint, choice: PlaneChoice) -> list[str]:
    """A note on planes that no engine finds which looks for a plane of each expert."""
    experts, rows = checkpoint.experts, {name: rows for name, (_, rows, *_) in choice.planes.items()}
    found = [name for name, n in rows.items() if experts.of_tensor(name) is None and experts.are_all_in(name, n)]
    if not found:
        return []
    are = f"{counted(found, 'plane')}, with the rows of all experts"
    return [f"{are}: csf-tool reads such planes, but engines that need one plane per expert do not (--exclude)"]


def _compressed(
    written: Written, target: TargetLayout, choice: PlaneChoice, device: str, left: Sequence[LeftDense]
) -> Compressed:
    """The result for the planes that were chosen."""
    scales = choice.scales()
    by_format = []
    for name in dict.fromkeys(name for name, _, _ in scales):
        own = [(dense, stored) for other, dense, stored in scales if other == name]
        by_format.append(FormatTotals(format_by_name(name), len(own), *map(sum, zip(*own, strict=True))))
    return Compressed(**vars(written), target=target, device=device, by_format=by_format, left=list(left))


def _relabelled(checkpoint: Checkpoint, choice: PlaneChoice) -> list[str]:
    """Notes of scales in a dtype that streams do not tell, and only receipts would keep."""
    table = checkpoint.dense_table
    several = any(len(kind.fmt.dense_dtypes) > 1 for kind in table.kinds)
    found: Counter[tuple[str, str]] = Counter()
    for name, kind in zip(table.names, table.kind_of, strict=True) if several else ():
        fmt, *_, dtype = table.kinds[kind]
        weight = table.stored.weight_of(name)
        written = usual_dtype(fmt, None if weight is None else table.stored.names[weight])
        if dtype != written and name in choice.planes:
            found[dtype, written] += 1
    return [
        f"{count(number, 'block scale')} stored as {dtype} will be {written} when they are expanded, the bytes the same"
        for (dtype, written), number in found.items()
    ]


def _kept(
    checkpoint: Checkpoint, found: CarriedFiles, earlier: Earlier, target: TargetLayout, shards: list[OutputShard]
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
    checkpoint: Checkpoint, choice: PlaneChoice, earlier: Earlier, shards: list[OutputShard]
) -> list[SideFile]:
    """Configs whose recipes are marked, and the index of the stored names."""
    modules = list(map(module_of, choice.planes))
    files = rewritten_configs(checkpoint, lambda raw, name: mark_encoding(raw, name, modules, choice.recipes))
    return files + _stored_index(checkpoint, choice, earlier, shards)


def _stored_index(
    checkpoint: Checkpoint, choice: PlaneChoice, earlier: Earlier, shards: list[OutputShard]
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


def _statement(
    checkpoint: Checkpoint, stated: StatedOrigin, configs: Mapping[str, Any], choice: PlaneChoice
) -> Statement:
    [fmt] = choice.formats
    origin = find_origin(checkpoint, fmt, model_type(configs.get(CONFIG_FILES[0])), stated)
    source_index = checkpoint.index.name if checkpoint.index else None
    scales = [(dense, stored) for _, dense, stored in choice.scales()]
    return Statement(fmt, origin, choice.shards, choice.names, scales, source_index)
