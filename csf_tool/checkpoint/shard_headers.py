"""Reading the headers of shards."""

import os

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.problems import Problem, Problems
from csf_tool.checkpoint.stored import Shard
from csf_tool.codes import Code
from csf_tool.disk.headers import read_header
from csf_tool.disk.reader import RandomReader
from csf_tool.dtypes import DTYPES
from csf_tool.errors import CheckpointError


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
    remote = checkpoint.hub.remote(name) if checkpoint.hub else None
    if remote:
        size, mtime_ns = remote.size, 0
        with remote.open() as reader:
            header = read_header(reader, size)
    else:
        with RandomReader(path, name) as reader:
            status = os.fstat(reader.fileno())
            size, mtime_ns = status.st_size, status.st_mtime_ns
            header = read_header(reader, size)
    problems += [Problem(fault.problem, fault.code, name, fault.tensor) for fault in header.faults]
    if unknown := set(header.dtypes) - DTYPES.keys():
        for tensor, dtype in zip(header.names, header.dtypes, strict=True):
            if dtype in unknown:
                _note_dtype(problems, dtype, name, tensor)
    return Shard(name, path, size, mtime_ns, header, remote)


def _note_dtype(problems: Problems, dtype: str, shard: str, tensor: str) -> None:
    """Note a dtype that nobody knows, or none."""
    if dtype.strip():
        text = f"has dtype {dtype!r}, which csf-tool does not know: it is newer than csf-tool, or damaged"
        problems.warn(text, Code.UNKNOWN_DTYPE, shard, tensor)
    else:
        text = "has no dtype: its writer left a placeholder, and safetensors refuses the file"
        problems.error(text, Code.INVALID_HEADER, shard, tensor)


def read_faultless(checkpoint: Checkpoint, names: list[str]) -> dict[str, Shard]:
    """The shards `names`; none when anything is wrong with one of them."""
    prepare(checkpoint, names)
    problems = Problems()
    try:
        shards = {name: read_shard(checkpoint, name, problems) for name in names}
    except CheckpointError:
        return {}
    return {} if problems else shards
