"""Files carried over beside the shards: those that stay true in the result; the others are named."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from csf_tool.checkpoint.index import Index, is_index_name
from csf_tool.checkpoint.layout import Cause
from csf_tool.checkpoint.side_files import CarriedFiles, SideFile
from csf_tool.disk.headers import LENGTH_BYTES, parse_header
from csf_tool.disk.reader import read_document
from csf_tool.errors import CheckpointError
from csf_tool.write.earlier import Earlier
from csf_tool.write.output import OutputShard

Tensors = Mapping[str, Collection[str]]
"""Names of tensors by the name of their shard, for all shards that an index may speak of."""


def keep_what_stays_true(
    found: CarriedFiles,
    earlier: Earlier,
    shards: Iterable[str],
    tensors: Callable[[], Tensors],
    placed: Callable[[Sequence[SideFile]], Sequence[SideFile]] = list,
) -> list[SideFile]:
    """Choose the files that are carried over, and note in `found` those that are not.

    Not carried over are files that, `placed` in the destination, would have the name of one of `shards`, and indexes
    of tensors that are no longer in their shards. Once source shards have been removed, indexes cannot be checked:
    those stay that the run has kept.
    """
    target = {file.name: placed([file])[0].target for file in found.files}
    indexes = {file.name: file for file in found.files if is_index_name(file.name)}
    if earlier.facts is not None:
        untrue = {name for name in indexes if earlier.content(target[name]) is None}
    else:
        gone: Tensors = dict.fromkeys(found.left_out.get(Cause.ASIDE, ()), ())
        known = {**gone, **tensors()} if indexes else {}
        untrue = {name for name, file in indexes.items() if not _is_true(file, known)}
    written = set(shards)
    taken = {name for name in target if target[name] in written}
    found.leave_out(Cause.OTHER_INDEX, untrue)
    found.leave_out(Cause.NAME_TAKEN, taken)
    return [
        replace(file, content=read_document(file.path, file.name)) if file.name in indexes else file
        for file in found.files
        if file.name not in taken | untrue
    ]


def _is_true(file: SideFile, tensors: Tensors) -> bool:
    """Whether every tensor that an index places in one of the shards is there; True for a file that is no index."""
    folder = PurePosixPath(file.name).parent
    try:
        places = Index(file.path.parent, file.path.name).weight_map
    except CheckpointError:
        return True
    shards = {shard: tensors.get((folder / shard).as_posix()) for shard in set(places.values())}
    sets = {shard: set(names) for shard, names in shards.items() if names is not None}
    return all(shard not in sets or name in sets[shard] for name, shard in places.items())


def tensors_of(shards: Iterable[OutputShard]) -> Tensors:
    """The names of the tensors in shards to write."""
    return {shard.name: parse_header(shard.header[LENGTH_BYTES:], shard.name, None).names for shard in shards}
