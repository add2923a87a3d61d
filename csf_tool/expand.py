"""expand: write the ordinary dense checkpoint that a CSF checkpoint stands for."""

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from csf_tool.checkpoint.config import CONFIG_FILES, strip_encoding
from csf_tool.checkpoint.dense import DenseShard, dense_index, dense_shards, new_index, shard_bytes
from csf_tool.checkpoint.index import INDEX_NAME, find_index, read_index
from csf_tool.checkpoint.layouts import SHARD_SUFFIX
from csf_tool.checkpoint.model import Checkpoint, Layout, Plane
from csf_tool.checkpoint.problems import errors
from csf_tool.checkpoint.side_files import SideFile, config_files, model_root, plain_files
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.checkpoint.writer import Destination, render_json
from csf_tool.decoder import Decoder
from csf_tool.errors import CheckpointError, CsfToolError, UsageError
from csf_tool.progress import Progress


@dataclass
class Expanded:
    """What `expand` wrote."""

    source: str
    destination: str
    device: str
    planes: int
    shards: list[str] = field(default_factory=list)
    proved_shards: list[str] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)
    bytes_written: int = 0
    seconds: float = 0.0


def expand(checkpoint: Checkpoint, destination: Path, decoder: Decoder, progress: Progress) -> Expanded:
    """Write the dense checkpoint of `checkpoint` into the new or empty folder `destination`.

    A shard whose original is known appears only after its size and SHA-256 are those of the original.

    Raises:
        UsageError: there is nothing to expand, or the destination cannot be right.
        CheckpointError: the checkpoint is broken; nothing was written, or only whole and good shards.
        EnvironmentFault: not enough room, or the system cannot write.
    """
    begun = time.monotonic()
    _refuse_broken(checkpoint)
    if not checkpoint.planes:
        raise UsageError(f"{checkpoint.path}: holds no CSF planes: nothing to expand ({checkpoint.kind})")
    folder = Destination(destination, checkpoint.root)
    shards = dense_shards(checkpoint)
    others = _side_files(checkpoint, shards)
    total = sum(shard.size for shard in shards) + sum(file.size for file in others)
    folder.require_space(total)
    progress.start("expand", total)
    result = Expanded(str(checkpoint.path), str(destination), decoder.device, len(checkpoint.planes))
    try:
        for shard in shards:
            _write_shard(shard, folder, decoder, progress)
            result.shards.append(shard.name)
            if shard.sha256:
                result.proved_shards.append(shard.name)
        for file in others:
            file.write(folder, progress)
            result.other_files.append(file.name)
    except CsfToolError as error:
        raise type(error)(f"{error}{_left_behind(result, destination)}") from error
    result.bytes_written = total
    result.seconds = time.monotonic() - begun
    return result


def _refuse_broken(checkpoint: Checkpoint) -> None:
    # Recipes say how to read, not what the bytes are, and expand takes the marks out anyway.
    found = [problem for problem in errors(checkpoint.problems) if problem.file not in CONFIG_FILES]
    if found:
        more = f" (and {len(found) - 1} more problems; csf-tool verify lists them)" if len(found) > 1 else ""
        raise CheckpointError(f"{checkpoint.path}: not expanded: {found[0]}{more}")


def _left_behind(result: Expanded, destination: Path) -> str:
    if not result.shards:
        return ""
    return f" [{destination} holds {len(result.shards)} finished shards and no index: remove it before trying again]"


def _write_shard(shard: DenseShard, folder: Destination, decoder: Decoder, progress: Progress) -> None:
    hasher = hashlib.sha256() if shard.sha256 else None
    with Readers() as readers, folder.create(shard.name) as file:
        decoded = decoder.decode(_checked(readers, shard.planes))
        for piece in shard_bytes(shard, readers, (d.scales for d in decoded)):
            file.write(piece)
            if hasher:
                hasher.update(piece)
            progress.advance(len(piece))
        if hasher and hasher.hexdigest() != shard.sha256:
            raise CheckpointError(
                f"{shard.name}: the rebuilt shard's SHA-256 is {hasher.hexdigest()}, the original's is {shard.sha256}: "
                "not written"
            )


def _checked(readers: Readers, planes: Iterable[Plane]) -> Iterator[PlaneStreams]:
    return (readers.streams(plane).require_decodable() for plane in planes)


def _side_files(checkpoint: Checkpoint, shards: list[DenseShard]) -> list[SideFile]:
    """Everything beside the shards in the order of writing: configs and index last."""
    restored = all(shard.sha256 for shard in shards)
    configs = config_files(checkpoint)
    if not restored:  # an original's own config carries no marks, and stays as it is
        configs = [SideFile(f.name, f.path, strip_encoding(f.path.read_bytes(), f.name)) for f in configs]
    return plain_files(checkpoint) + configs + _index(checkpoint, shards, restored)


def _index(checkpoint: Checkpoint, shards: list[DenseShard], restored: bool) -> list[SideFile]:
    """The index: a restored original's own bytes; rewritten, or new where there was none, otherwise."""
    root = model_root(checkpoint)
    name = None if checkpoint.path.is_file() else find_index(root)
    if name and restored:
        return [SideFile(name, root / name)]
    if name:
        return [SideFile(name, root / name, render_json(dense_index(read_index(root, name), shards)))]
    if checkpoint.layout is Layout.FILE or (len(shards) == 1 and shards[0].name == f"model{SHARD_SUFFIX}"):
        return []
    return [SideFile(INDEX_NAME, root / INDEX_NAME, render_json(new_index(shards)))]
