"""Writing one shard from parts: new bytes, and ranges of stored files that the kernel may copy."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from csf_tool.checkpoint.dense import Range
from csf_tool.checkpoint.streams import Readers
from csf_tool.checkpoint.writer import NewFile
from csf_tool.progress import OnBytes
from csf_tool.running.hashing import Hashing

_FORGET_BYTES = 64 << 20
"""How much is read and written between two hints to the page cache."""


class _Forgets(Protocol):
    def forget(self) -> None:
        """Let the page cache drop what was read or written."""


@contextmanager
def dropping_cache(wanted: bool, on_bytes: OnBytes, *files: _Forgets) -> Iterator[OnBytes]:
    """Whom to tell of bytes that pass, in place of `on_bytes`: where `wanted`, the page cache lets go of them."""
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
            for piece in readers[part.shard].chunks(part.begin, part.end) if isinstance(part, Range) else (part,):
                file.write(piece)
                if hashing:
                    hashing.update(piece)
                advance(len(piece))
