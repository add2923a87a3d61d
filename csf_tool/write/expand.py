"""expand: write the ordinary dense checkpoint that a CSF checkpoint stands for."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES, mentions_encoding
from csf_tool.checkpoint.index import INDEX_NAME, read_index
from csf_tool.checkpoint.layout import Cause, is_licence
from csf_tool.checkpoint.logical import LogicalShard, logical_index, logical_shards, new_index
from csf_tool.checkpoint.marks import strip_encoding
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.problems import Problem, Severity, errors
from csf_tool.checkpoint.side_files import (
    CarriedFiles,
    SideFile,
    carried_files,
    config_files,
    covered_files,
    rewritten_configs,
)
from csf_tool.coders.decoder import Decoder
from csf_tool.codes import Code
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.json_files import render_json
from csf_tool.disk.reader import is_file
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.progress import Progress
from csf_tool.text import counted
from csf_tool.write.carrying import keep_what_stays_true
from csf_tool.write.decoding import DecodingRenderer, decoded_shard
from csf_tool.write.earlier import Earlier, require_sound
from csf_tool.write.engine import write
from csf_tool.write.evidence import require_known_hashes
from csf_tool.write.output import Output
from csf_tool.write.run import WriteOptions, Written


@dataclass(kw_only=True)
class Expanded(Written):
    """The result of `expand`. `excused` are faults of the source's configs, as warnings: they stop nothing."""

    device: str
    planes: int
    decoded_planes: int = 0
    """The planes of the shards that this run has written."""
    excused: list[Problem] = field(default_factory=list)
    licences: list[str] = field(default_factory=list)
    proved_files: int = 0
    unproved_files: list[str] = field(default_factory=list)
    """The model's files without a known hash; `proved_files` counts those with the one that a manifest gives."""
    origin: str = ""
    """The repository and revision of the dense model, as a container's manifest states them."""

    @property
    def is_restored(self) -> bool:
        """Whether the original folder is there again, every file of it with its own hash."""
        is_whole = len(self.proved_shards) == len(self.shards) and not self.missing
        return is_whole and not self.unproved_files and not self.left_out.keys() - {Cause.BESIDE}


def expand(
    checkpoint: Checkpoint,
    destination: Path,
    decoder: Decoder,
    progress: Progress,
    options: WriteOptions | None = None,
) -> Expanded:
    """Write the dense checkpoint of `checkpoint` into the folder `destination`, new, empty, or left by such a run.

    A shard whose original is known appears only after its size and SHA-256 are those of the original. Shards
    that an interrupted run finished are not written again.

    Raises:
        UsageError: there is nothing to expand, or the destination cannot be right.
        CheckpointError: the checkpoint is broken; nothing was written, or only whole and good shards.
        EnvironmentFault: not enough room, or the system cannot write.
    """
    begun, options = time.monotonic(), options or WriteOptions()
    earlier = Earlier.at(destination, checkpoint, options, "expand")
    # Recipes say how to read the bytes, not what they are, and expand removes the marks anyway.
    require_sound(checkpoint, earlier.consumed, "not expanded", excused=CONFIG_FILES)
    if not checkpoint.planes:
        problem = f"holds no CSF planes, so there is nothing to expand ({checkpoint.kind})"
        raise UsageError(problem, Code.NOTHING_TO_EXPAND, checkpoint.label)
    checkpoint.fetch_side_files()
    require_known_hashes(checkpoint, "not expanded")
    shards = logical_shards(checkpoint)
    found = carried_files(checkpoint, same_shards=all(shard.sha256 for shard in shards))
    notes: list[str] = []
    side_files = _side_files(checkpoint, shards, earlier, found, notes)
    output = Output(
        "expand",
        [decoded_shard(shard) for shard in shards],
        side_files,
        DecodingRenderer(decoder),
        left_out=found.left_out,
    )
    written = write(output, checkpoint, destination, earlier, progress, options, begun)
    new = set(written.new_shards)
    config_faults = [p for p in errors(checkpoint.problems) if p.file in CONFIG_FILES]
    return Expanded(
        **vars(written) | {"notes": written.notes + notes + _never_held(checkpoint, shards)},
        device=decoder.device,
        planes=len(checkpoint.planes),
        decoded_planes=sum(isinstance(t.source, Plane) for s in shards if s.name in new for t in s.tensors),
        excused=[replace(problem, severity=Severity.WARNING) for problem in config_faults],
        proved_files=sum(file.sha256 is not None for file in side_files),
        unproved_files=_unproved(checkpoint, side_files),
        licences=sorted(file.name for file in side_files if is_licence(file.name)),
        origin=checkpoint.layout.origin,
    )


def _side_files(
    checkpoint: Checkpoint, shards: list[LogicalShard], earlier: Earlier, found: CarriedFiles, notes: list[str]
) -> list[SideFile]:
    """Everything beside the shards in the order of writing: configs and index last.

    A config that no reader takes is carried as it is, and noted, if it speaks of no CSF: no byte of the shards
    depends on it.
    """

    def unmarked(raw: bytes, name: str) -> bytes:
        try:
            return strip_encoding(raw, name)
        except CheckpointError as error:
            if mentions_encoding(raw):
                problem = f"{error.problem}: csf-tool cannot remove the CSF marks in it; download it again"
                raise CheckpointError(problem, error.code, name) from error
            notes.append(f"{error}: copied unchanged")
            return raw

    restored = all(shard.sha256 for shard in shards)
    # An original's own config carries no marks, and stays as it is.
    configs = config_files(checkpoint) if restored else rewritten_configs(checkpoint, unmarked)
    names = {shard.name: [tensor.name for tensor in shard.tensors] for shard in shards}
    plain = keep_what_stays_true(found, earlier, names, lambda: names)
    others = configs + _index(checkpoint, shards, restored, earlier)
    known = covered_files(checkpoint)
    return [replace(file, sha256=known.get(file.name)) for file in plain] + [
        replace(file, sha256=known.get(file.name)) if file.content is None else file for file in others
    ]


def _unproved(checkpoint: Checkpoint, side_files: list[SideFile]) -> list[str]:
    """Files without a known hash. A licence that lies beside a container's folder of the model is none of these."""
    return sorted(
        file.name
        for file in side_files
        if not file.sha256 and not (is_licence(file.name) and file.path == checkpoint.root / file.name)
    )


def _never_held(checkpoint: Checkpoint, shards: list[LogicalShard]) -> list[str]:
    """Tensors that the source's index lists and the container never held: the dense checkpoint lacks them, too."""
    root = checkpoint.layout.model_root
    name = checkpoint.index_name if checkpoint.layout.keeps_dense_files else None
    try:
        lacking = sorted(read_index(root, name).shards - {shard.name for shard in shards}) if name else []
    except CheckpointError as error:
        return [str(error)]
    if not lacking:
        return []
    return [f"{name} lists shards that the container never held: {counted(lacking, 'shard')}"]


def _index(checkpoint: Checkpoint, shards: list[LogicalShard], restored: bool, earlier: Earlier) -> list[SideFile]:
    """The index: a restored original's own bytes; rewritten, or new where there was none, otherwise."""
    root = checkpoint.layout.model_root
    name = None if is_file(checkpoint.path) else checkpoint.index_name
    if name and restored:
        return [SideFile(name, root / name)]
    if (kept := earlier.content(name or INDEX_NAME)) is not None:
        return [SideFile.new(name or INDEX_NAME, kept)]
    if name:
        return [SideFile.new(name, render_json(logical_index(read_index(root, name), shards)))]
    if not checkpoint.layout.expects_index or (len(shards) == 1 and shards[0].name == f"model{SHARD_SUFFIX}"):
        return []
    return [SideFile.new(INDEX_NAME, render_json(new_index(shards)))]
