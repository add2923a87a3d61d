"""convert: move a CSF checkpoint between its layouts without decoding a plane.

Streams and all other data are copied as they are; only headers, index, recipes and container metadata are
made anew, from the headers.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES, model_type, serving_config
from csf_tool.checkpoint.index import INDEX_NAME, index_document, read_index
from csf_tool.checkpoint.logical import LogicalShard, logical_index, logical_tensors, new_index, own_shards
from csf_tool.checkpoint.marks import mark_encoding, strip_encoding
from csf_tool.checkpoint.names import module_of
from csf_tool.checkpoint.published import StatedOrigin, find_origin
from csf_tool.checkpoint.side_files import SideFile, carried_files, config_files, rewritten_configs
from csf_tool.checkpoint.tied import tied_names
from csf_tool.choices import Target
from csf_tool.codec.formats import CsfFormat, format_by_name, titles
from csf_tool.codes import Code
from csf_tool.disk.json_files import render_json
from csf_tool.disk.reader import read_document
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.progress import Progress
from csf_tool.text import count
from csf_tool.write.carrying import Tensors, keep_what_stays_true, tensors_of
from csf_tool.write.earlier import Earlier, require_sound
from csf_tool.write.engine import write
from csf_tool.write.evidence import require_known_hashes
from csf_tool.write.new_headers import CopyingRenderer, copied_shard
from csf_tool.write.output import Output, OutputShard
from csf_tool.write.recipes import Recipes, read_configs, recipes_to_write
from csf_tool.write.run import WriteOptions, Written
from csf_tool.write.targets import TARGETS, Statement, TargetLayout

HEADERS_UNKNOWN = (
    "unknown, because this was converted from the Hugging Face layout: "
    "the original shards cannot be restored bit for bit; the order of the dense tensors is csf-tool's own"
)
"""Note of a manifest without hashes of the originals."""

_ONE_ALONE = "; to compress the scales of one codec only, use csf-tool expand, then csf-tool compress --exclude"
"""The way to what has room for one codec."""


@dataclass(frozen=True)
class ConvertOptions:
    """Options of what to write, beside the target; `WriteOptions` has those of how."""

    checkpoint_root: str | None = None
    origin: StatedOrigin = field(default_factory=StatedOrigin)

    def wanted(self, target: Target) -> dict[str, Any]:
        """The options that two runs must share for one to go on from the other, as JSON."""
        return {"to": target.value, "checkpoint_root": self.checkpoint_root, **asdict(self.origin)}


@dataclass(kw_only=True)
class Converted(Written):
    """The result of `convert`."""

    target: Target


@dataclass(frozen=True)
class _Facts:
    """Facts about the whole source that the result states, as JSON, for a run that goes on without some of its shards.

    `shards` are their file names; `names`, the shard of every dense tensor; `scales`, the dense and the stored bytes
    of every plane.
    """

    formats: list[str]
    shards: list[str]
    names: dict[str, str]
    scales: list[tuple[int, int]]

    @property
    def fmts(self) -> list[CsfFormat]:
        """The formats of the planes."""
        return list(map(format_by_name, self.formats))


def convert(
    checkpoint: Checkpoint,
    destination: Path,
    target: Target,
    options: ConvertOptions,
    progress: Progress,
    how: WriteOptions | None = None,
) -> Converted:
    """Write `checkpoint` in another layout into the folder `destination`, new, empty, or left by such a run.

    Raises:
        UsageError: the layouts do not go together, or the destination cannot be right.
        CheckpointError: the checkpoint is broken.
        EnvironmentFault: not enough room, or the system cannot write.
    """
    begun, how = time.monotonic(), how or WriteOptions()
    earlier = Earlier.at(destination, checkpoint, how, "convert", options.wanted(target))
    require_sound(checkpoint, earlier.consumed, "not converted")
    facts = _Facts(**earlier.facts) if earlier.facts else _facts(checkpoint)
    _require_convertible(checkpoint, target, facts.fmts, how)
    checkpoint.fetch_side_files()
    require_known_hashes(checkpoint, "not converted")
    notes: list[str] = []
    if layout := TARGETS.get(target.value):
        output = _output(checkpoint, layout, facts, earlier, options, notes)
    else:
        output = _serving_output(checkpoint, facts, options)
    written = write(output, checkpoint, destination, earlier, progress, how, begun)
    if how.link and (copied := len(written.new_shards) - len(written.linked)):
        why = "their headers change, they are on the Hub, or the file system cannot link"
        notes.append(f"{count(copied, 'shard')} copied, not linked: {why}")
    return Converted(**vars(written) | {"notes": written.notes + notes}, target=target)


def _facts(checkpoint: Checkpoint) -> _Facts:
    if not checkpoint.planes:
        raise UsageError(f"{checkpoint.label}: holds no CSF planes ({checkpoint.kind}); csf-tool compress makes some")
    return _Facts(
        [fmt.name for fmt in checkpoint.formats],
        [shard.file for shard in checkpoint.shards],
        {name: tensor.home.file for name, tensor in logical_tensors(checkpoint).items()},
        [(plane.dense_bytes, plane.csf_bytes) for plane in checkpoint.planes],
    )


def _require_convertible(
    checkpoint: Checkpoint, target: Target, formats: Sequence[CsfFormat], how: WriteOptions
) -> None:
    if written := TARGETS.get(target.value):
        # In whatever folders shards lie, they are given by their file names.
        if refusal := written.refusal(formats, ()):
            remedy = _ONE_ALONE if len(formats) > 1 else ""
            raise UsageError(f"--to {target.value}: {refusal}{remedy}")
        if isinstance(checkpoint.layout, written.layout):
            raise UsageError(f"{checkpoint.label}: is already a {checkpoint.layout.words}")
    elif len(formats) > 1:
        raise UsageError(
            f"--to serving: its config names one codec, but these scales are {titles(formats)}{_ONE_ALONE}"
        )
    elif not checkpoint.layout.can_be_served:
        raise UsageError(
            "--to serving: a serving directory needs a container: use csf-tool convert --to container first"
        )
    names = [shard.file for shard in checkpoint.shards]
    if len(set(names)) < len(names):
        raise UsageError(f"{checkpoint.label}: two shards have the same file name in different folders")
    if how.consume_source and (how.link or target is Target.SERVING):
        raise UsageError("--consume-source: the results of --link and --to serving need the source's shards")


def _output(
    checkpoint: Checkpoint,
    target: TargetLayout,
    facts: _Facts,
    earlier: Earlier,
    options: ConvertOptions,
    notes: list[str],
) -> Output:
    """The output in a layout; what the result cannot have is added to `notes`."""
    layout, slabs = target.layout, {}
    if unread := target.unread(facts.fmts):
        notes.append(f"{unread}: csf-tool expand makes such planes dense")
    if not layout.keeps_dense_files:  # readers that go by recipes expect fixed streams in slabs
        slabs = {p.fixed.tensor.name: p.fmt.fixed_shape(p.rows, p.cols) for p in checkpoint.planes}
    shards = [copied_shard(s, layout.stored_name(s.file), layout.marks(facts.fmts), slabs) for s in checkpoint.shards]
    found = carried_files(checkpoint)

    def tensors() -> Tensors:
        if not layout.keeps_dense_files:
            return tensors_of(shards)
        return {shard.name: [tensor.name for tensor in shard.tensors] for shard in _dense_shards(checkpoint)}

    plain = keep_what_stays_true(found, earlier, [shard.name for shard in shards], tensors, target.placed)
    if layout.keeps_dense_files:
        files = [*rewritten_configs(checkpoint, strip_encoding), _dense_index(checkpoint, target, earlier)]
        notes.append(f"source headers: {HEADERS_UNKNOWN}")
    else:
        files = [*_marked_configs(checkpoint, earlier, notes), _stored_index(checkpoint, earlier, shards)]
    side_files = target.placed(plain + files)
    output = Output("convert", shards, side_files, CopyingRenderer(), facts=asdict(facts), left_out=found.left_out)
    return target.converted(output, lambda: _statement(checkpoint, facts, options), earlier.record)


def _statement(checkpoint: Checkpoint, facts: _Facts, options: ConvertOptions) -> Statement:
    [fmt] = facts.fmts
    origin = find_origin(checkpoint, fmt, model_type(read_configs(checkpoint).get(CONFIG_FILES[0])), options.origin)
    return Statement(fmt, origin, facts.shards, facts.names, facts.scales, note=HEADERS_UNKNOWN)


def _marked_configs(checkpoint: Checkpoint, earlier: Earlier, notes: list[str]) -> list[SideFile]:
    """The configs, marked at every recipe whose planes are all CSF; planes without a recipe are added to `notes`."""
    configs = read_configs(checkpoint)
    recipes = Recipes.of(configs, recipes_to_write(configs, checkpoint))
    names = [plane.name for plane in checkpoint.planes]
    if unfound := recipes.unfound(names):
        notes.append(unfound)
    modules = list(map(module_of, names))
    dense = {recipes.whole_of(plane.name) for plane in checkpoint.dense_planes if recipes.cover(plane.name)}
    if half := sorted(dense & {recipes.whole_of(name) for name in names if recipes.cover(name)}):
        raise UsageError(f"--to hf: some scales of {half[0]} are dense, but a mark in the config covers a whole module")

    def mark(raw: bytes, name: str) -> bytes:
        kept = earlier.content(name)
        return mark_encoding(raw, name, modules, recipes.written) if kept is None else kept

    return rewritten_configs(checkpoint, mark)


def _stored_index(checkpoint: Checkpoint, earlier: Earlier, shards: list[OutputShard]) -> SideFile:
    """The index of the stored names, in the order of the source's index where there is one."""
    root = checkpoint.layout.model_root
    found = checkpoint.index_name
    name = found or INDEX_NAME
    if (kept := earlier.content(name)) is not None:
        return SideFile.new(name, kept)
    placed = {tensor.name: shard.file for shard in checkpoint.shards for tensor in shard.header}
    streams = {p.name: (p.fixed.tensor.name, p.exceptions.tensor.name) for p in checkpoint.planes}
    index = read_index(root, name) if found else None
    weight_map: dict[str, str] = {}
    listed = index.weight_map if index else {}
    tied = tied_names(root, [name for name in listed if name not in streams and name not in placed])
    for dense in listed:
        for stored in streams.get(dense, (dense,)):
            if stored in tied:
                placed[stored] = listed[stored]
            if stored not in placed:
                problem = f"lists {dense}, but no shard holds it"
                raise CheckpointError(problem, Code.INDEX_NAMES_MISSING_TENSOR, str(name))
            weight_map[stored] = placed[stored]
    if index is None:
        weight_map = dict(sorted(placed.items()))
    document = index_document(index, weight_map, sum(shard.size - len(shard.header) for shard in shards))
    return SideFile.new(name, render_json(document))


def _dense_shards(checkpoint: Checkpoint) -> list[LogicalShard]:
    return list(own_shards(checkpoint, logical_tensors(checkpoint).values()).values())


def _dense_index(checkpoint: Checkpoint, target: TargetLayout, earlier: Earlier) -> SideFile:
    """The index that the dense checkpoint will have: a container keeps the source's."""
    index = checkpoint.index
    name = index.name if index else INDEX_NAME
    [place] = target.placed([SideFile.new(name, b"")])
    if (kept := earlier.content(place.target)) is not None:
        return SideFile.new(name, kept)
    dense = _dense_shards(checkpoint)
    return SideFile.new(name, render_json(logical_index(index, dense) if index else new_index(dense)))


def _serving_output(checkpoint: Checkpoint, facts: _Facts, options: ConvertOptions) -> Output:
    root = options.checkpoint_root or str(checkpoint.root.resolve())
    found = carried_files(checkpoint)
    files, [fmt] = found.files, facts.fmts
    for file in config_files(checkpoint):
        content = None
        if file.name == CONFIG_FILES[0]:
            raw = read_document(file.path, file.name)
            content = serving_config(raw, file.name, fmt, root)
        files.append(replace(file, content=content))
    if (name := checkpoint.index_name) is not None:
        files.append(SideFile(name, checkpoint.layout.model_root / name))
    return Output("convert", [], files, CopyingRenderer(), left_out=found.left_out)
