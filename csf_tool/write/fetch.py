"""Shards that lie on the Hub, as files in the destination for as long as a job needs them.

They are fetched by ranges, so that an interrupted run's bytes are not fetched again, progress moves, and an interrupt
takes effect: huggingface_hub's own downloads begin again from the start.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from csf_tool.checkpoint.repository import RemoteFile
from csf_tool.checkpoint.stored import Shard
from csf_tool.codes import Code
from csf_tool.disk.hashing import new_hasher
from csf_tool.disk.reader import CHUNK_BYTES, writing_fault
from csf_tool.errors import CheckpointError
from csf_tool.progress import OnBytes


@contextmanager
def fetched(shards: Iterable[Shard], folder: Path, on_bytes: OnBytes) -> Iterator[dict[str, Path]]:
    """Fetch those of `shards` that lie on the Hub into `folder`, and give their paths by name; hashes are compared.

    They are removed when the block ends without an error. Otherwise they stay for the next run.

    Raises:
        CheckpointError: one does not have the hash that the Hub lists.
        EnvironmentFault: one cannot be fetched or written.
    """
    copies = {}
    for shard in shards:
        if shard.remote:
            copies[shard.name] = _fetch(shard, shard.remote, folder / shard.name, on_bytes)
    yield copies
    if copies:
        shutil.rmtree(folder)


def bytes_to_fetch(shards: Iterable[Shard]) -> int:
    """Bytes that fetching `shards` takes."""
    return sum(shard.size for shard in shards if shard.remote)


def room_to_fetch(shards: Iterable[Shard], jobs: int) -> int:
    """Most bytes that fetched shards take on the disk while `jobs` of them are worked on together."""
    return sum(sorted(shard.size for shard in shards if shard.remote)[-jobs:])


def _fetch(shard: Shard, remote: RemoteFile, path: Path, on_bytes: OnBytes) -> Path:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found, was_begun = _complete(remote, path, on_bytes)
        except OSError as error:
            raise writing_fault(shard.name, error) from error
        algorithm, digest = remote.published
        if found == digest:
            return path
        path.unlink()
        if not was_begun:
            problem = f"{algorithm} of the fetched file is {found}, but the Hub lists {digest}"
            raise CheckpointError(problem, Code.HASH_DIFFERS, shard.name)
        # A run that was killed can leave bytes that never reached the disk: once more, from the start.


def _complete(remote: RemoteFile, path: Path, on_bytes: OnBytes) -> tuple[str, bool]:
    """Fetch the missing end of a file; return the hash of the whole, and whether a part was there before."""
    size = remote.size
    hasher = new_hasher(remote.published[0], size)
    with path.open("a+b") as file, remote.open() as reader:
        if file.tell() > size:
            file.truncate(0)
        begun = file.seek(0, 2)
        file.seek(0)
        while piece := file.read(CHUNK_BYTES):
            hasher.update(piece)
            on_bytes(len(piece))
        for chunk in reader.chunks(begun, size):
            file.write(chunk)
            hasher.update(chunk)
            on_bytes(len(chunk))
    return hasher.hexdigest(), begun > 0
