"""Writing one shard from parts: new bytes, and ranges of stored files that the kernel may copy."""

from collections.abc import Callable, Iterable

from csf_tool.checkpoint.dense import Range
from csf_tool.checkpoint.streams import Readers
from csf_tool.checkpoint.writer import NewFile
from csf_tool.running.hashing import Hashing

FORGET_BYTES = 64 << 20
"""How much is read and written between two hints to the page cache."""

OnBytes = Callable[[int], None]


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
    pages = _PageCache(file, readers, on_bytes) if drop_cache else None
    with readers.unchanged():
        for part in parts:
            if isinstance(part, Range) and hashing is None:
                file.copy(readers[part.shard], part.begin, part.end, pages.advance if pages else on_bytes)
            else:
                _write_hashed(file, part, readers, hashing, pages.advance if pages else on_bytes)
    if pages:
        pages.forget()


def _write_hashed(
    file: NewFile, part: memoryview | Range, readers: Readers, hashing: Hashing | None, on_bytes: OnBytes
) -> None:
    for piece in readers[part.shard].chunks(part.begin, part.end) if isinstance(part, Range) else (part,):
        file.write(piece)
        if hashing:
            hashing.update(piece)
        on_bytes(len(piece))


class _PageCache:
    """Drops what was read and written from the page cache every now and then."""

    def __init__(self, file: NewFile, readers: Readers, on_bytes: OnBytes) -> None:
        self._file = file
        self._readers = readers
        self._on_bytes = on_bytes
        self._since = 0

    def advance(self, nbytes: int) -> None:
        """Hear that so many bytes were written, and tell it on."""
        self._on_bytes(nbytes)
        self._since += nbytes
        if self._since >= FORGET_BYTES:
            self.forget()

    def forget(self) -> None:
        self._file.forget()
        self._readers.forget()
        self._since = 0
