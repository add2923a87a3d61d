"""Bytes into a new file: parts of a shard, some of which the kernel may copy, and files beside the shards."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from csf_tool.checkpoint.logical import Range
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.checkpoint.streams import Readers
from csf_tool.codes import Code
from csf_tool.disk.hashing import Hashing, sha256_of
from csf_tool.disk.new_file import NewFile
from csf_tool.disk.reader import RandomReader
from csf_tool.errors import CheckpointError
from csf_tool.progress import OnBytes
from csf_tool.write.journal import Journal, Record

_FORGET_BYTES = 64 << 20
"""Bytes that are read and written between two hints to the page cache."""


class _Forgets(Protocol):
    def forget(self) -> None:
        """Let the page cache drop what was read or written."""


@contextmanager
def dropping_cache(wanted: bool, on_bytes: OnBytes, *files: _Forgets) -> Iterator[OnBytes]:
    """Wrap `on_bytes` so that, where `wanted`, the page cache drops what `files` have read or written."""
    since = 0

    def forget() -> None:
        nonlocal since
        for file in files if wanted else ():
            file.forget()
        since = 0

    def advance(nbytes: int) -> None:
        nonlocal since
        on_bytes(nbytes)
        since += nbytes
        if since >= _FORGET_BYTES:
            forget()

    yield advance
    forget()


def pieces(parts: Iterable[memoryview | Range], readers: Readers) -> Iterator[memoryview]:
    """The bytes of parts in pieces of bounded size; each is valid until the next but one."""
    for part in parts:
        if isinstance(part, Range):
            yield from readers[part.shard].chunks(part.begin, part.end)
        else:
            yield part


def write_parts(
    file: NewFile,
    parts: Iterable[memoryview | Range],
    readers: Readers,
    hashing: Hashing | None,
    on_bytes: OnBytes,
    drop_cache: bool,
) -> None:
    """Append `parts` to `file`, in pieces of bounded size.

    With `hashing` every byte passes through it; without, stored ranges are copied by the kernel.

    Raises:
        CheckpointError: a stored range cannot be read.
        EnvironmentFault: the system cannot read or write, or a source changed meanwhile.
    """
    with readers.unchanged(), dropping_cache(drop_cache, on_bytes, file, readers) as advance:
        for part in parts:
            if isinstance(part, Range) and hashing is None:
                file.copy(readers[part.shard], part.begin, part.end, advance)
                continue
            for piece in pieces([part], readers):
                file.write(piece)
                if hashing:
                    hashing.update(piece)
                advance(len(piece))


def write_side_file(side_file: SideFile, journal: Journal) -> int:
    """Write a file unless an earlier run has, and return the bytes written. Links become ordinary files.

    One that the source has in other bytes since then is written again.

    Raises:
        CheckpointError: it cannot be read, or does not have the hash that it must have.
        EnvironmentFault: the system cannot read or write.
    """
    name, size = side_file.target, side_file.size
    if journal.finished(name):
        if journal.is_closing() or side_file.is_equal_to(journal.path_of(name)):
            return 0
        journal.forget(name)

    def prove(path: Path) -> Record:
        if side_file.sha256 and (found := sha256_of(path, name)) != side_file.sha256:
            problem = f"its SHA-256 changed to {found} during this run, from {side_file.sha256}: not written"
            raise CheckpointError(problem, Code.SOURCE_CHANGED, side_file.name)
        return Record(size)

    journal.forget_damaged(name)
    with journal.create(name, 0, prove) as new:
        if side_file.content is not None:
            new.write(side_file.content)
        else:
            with RandomReader(side_file.path, side_file.name) as reader:
                new.write_all(reader.chunks(0, size))
    return size
