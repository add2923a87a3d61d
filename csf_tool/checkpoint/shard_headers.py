"""Reading the headers of shards, and what each shard tells by itself; of many, a copy of the process reads half."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from csf_tool.checkpoint.background import in_background
from csf_tool.checkpoint.model import Checkpoint, Shard
from csf_tool.checkpoint.planes import PlaneColumns, planes_of_shard
from csf_tool.checkpoint.problems import Problem, Problems
from csf_tool.codes import Code
from csf_tool.disk.headers import DTYPE_BITS, Header, read_header
from csf_tool.disk.reader import RandomReader
from csf_tool.errors import CheckpointError

_MANY_SHARDS = 8
"""How many shards are worth a second process: it takes a few milliseconds to start and to hear of."""


class ReadShard(NamedTuple):
    """A shard whose header has no fault, and its planes where it tells them by itself."""

    shard: Shard
    planes: PlaneColumns | None = None


def prepare(checkpoint: Checkpoint, names: list[str]) -> None:
    """Have the headers of shards on the Hub fetched together."""
    if checkpoint.hub:
        checkpoint.hub.prepare(names)


def read_shard(checkpoint: Checkpoint, name: str, problems: Problems) -> Shard:
    """The shard `name` of a checkpoint, by its header; what is wrong with tensors is added to `problems`.

    Raises:
        CheckpointError: it is not there, or not safetensors.
        EnvironmentFault: the operating system or the network cannot read it.
    """
    path = checkpoint.root / name
    if checkpoint.hub and (remote := checkpoint.hub.remote(name)):
        size = remote.size
        header = read_header(remote.open(), size)
        problems += [Problem(fault.problem, fault.code, name, fault.tensor) for fault in header.faults]
        return Shard(name, path, size, 0, header, remote)
    with RandomReader(path, name) as reader:
        status = os.fstat(reader.fileno())
        header = read_header(reader, status.st_size)
    problems += [Problem(fault.problem, fault.code, name, fault.tensor) for fault in header.faults]
    for dtype in sorted(set(header.dtypes) - DTYPE_BITS.keys()):
        first = header.names[header.dtypes.index(dtype)]
        text = f"has dtype {dtype!r}, which safetensors does not name: newer than csf-tool, or damaged"
        problems.warn(text, Code.UNKNOWN_DTYPE, name, first)
    return Shard(name, path, status.st_size, status.st_mtime_ns, header)


def read_faultless(checkpoint: Checkpoint, names: list[str], *, with_planes: bool) -> dict[str, ReadShard]:
    """The shards `names` in their order; none when anything is wrong with one of them."""
    prepare(checkpoint, names)
    try:
        if checkpoint.hub or len(names) < _MANY_SHARDS:
            found = _read(checkpoint, names, with_planes)
        else:
            sent = [name for i, name in enumerate(names) if i % 9 % 2]  # fewer than half: sending takes time, too
            with in_background(lambda: list(map(_plain, _read(checkpoint, sent, with_planes)))) as others:
                found = _read(checkpoint, sorted({*names} - {*sent}), with_planes)
                found += _from_plain(checkpoint.root, others() or [])
    except CheckpointError:
        return {}
    by_name = {read.shard.name: read for read in found}
    return {name: by_name[name] for name in names} if len(by_name) == len(names) else {}


def _read(checkpoint: Checkpoint, names: list[str], with_planes: bool) -> list[ReadShard]:
    problems = Problems()
    shards = [read_shard(checkpoint, name, problems) for name in names]
    if problems:
        return []
    return [ReadShard(shard, planes_of_shard(shard) if with_planes else None) for shard in shards]


def _plain(read: ReadShard) -> tuple[Any, ...]:
    """A shard here as plain data, for another process."""
    shard, header = read.shard, read.shard.header
    columns = header.names, header.dtypes, header.shapes, header.begins, header.ends
    no_faults: list[Any] = []
    return (
        shard.name,
        shard.size,
        shard.mtime_ns,
        read.planes,
        (header.data_start, header.metadata, *columns, no_faults),
    )


def _from_plain(root: Path, shards: Iterable[tuple[Any, ...]]) -> list[ReadShard]:
    return [
        ReadShard(Shard(name, root / name, size, mtime_ns, Header(*header)), planes)
        for name, size, mtime_ns, planes, header in shards
    ]
