"""Plain reading of files from strangers: bounded, no mmap, never a short read taken for a whole one."""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import BinaryIO

from csf_tool.closing import Closing
from csf_tool.codes import Code
from csf_tool.errors import CheckpointError, EnvironmentFault

CHUNK_BYTES = 1 << 20
"""Largest single read or write: its bytes are still in a core's cache when they are processed."""

MAX_JSON_BYTES = 512 << 20
"""Largest index, manifest, contract, receipt or config that is read. The largest real ones are 20 MB."""

_MAX_VIEWS = 1024
"""Most buffers of one scattered read: IOV_MAX of Linux and macOS."""


NO_SUCH_FILE = {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
"""Errors of the system for names that lead to no file: the checkpoint's fault, not the machine's."""


def file_size(path: Path, name: str) -> int:
    """Bytes of an ordinary file. Asked before a file is opened: opening a pipe would wait for ever.

    Raises:
        CheckpointError: there is none.
        EnvironmentFault: the operating system does not say.
    """
    try:
        status = path.stat()
        is_file = stat.S_ISREG(status.st_mode)
        has_more = is_file and not status.st_size and bool(_first_byte(path))
    except OSError as error:
        raise reading_fault(name, error) from error
    if not is_file:
        raise CheckpointError("is not a file, but a folder, a pipe or a device", Code.NOT_A_FILE, name)
    if has_more:
        problem = "has no bytes by its size, but content: the system makes it while it is read, as those in /proc"
        raise CheckpointError(problem, Code.NOT_A_FILE, name)
    return status.st_size


def _first_byte(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(1) or b""


def drop_cache(fd: int, begin: int, end: int) -> None:
    """Tell the system that a range of a file will not be needed again: clean pages go, dirty ones are written out.

    A run over 100 GB must not push a running server's memory out, least of all where CPU and GPU share it.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # a hint: not every system takes it
            os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_DONTNEED)


class Reader(Closing):
    """Reads byte ranges of one shard, wherever its bytes come from: `read_into` says how."""

    name: str

    def read_into(self, view: memoryview, begin: int) -> None:
        """Fill `view` with the bytes from offset `begin`.

        Raises:
            CheckpointError: the file ends before.
            EnvironmentFault: it cannot be read.
        """
        raise NotImplementedError

    def expect(self, ranges: list[tuple[int, int]]) -> None:
        """Announce the ranges that will be read, in about their order: a file on the Hub is fetched ahead."""

    def read_into_each(self, views: Sequence[memoryview], begin: int) -> None:
        """Fill views one after another with the bytes from offset `begin`: one call for many, where the system can.

        Raises:
            CheckpointError: the file ends before.
            EnvironmentFault: the operating system cannot read it.
        """
        for first in range(0, len(views), _MAX_VIEWS):
            part = views[first : first + _MAX_VIEWS]
            got = self._read_scattered(part, begin)
            for view in part:
                have = min(got, len(view))
                if have < len(view):  # the call stopped early, or there is none
                    self.read_into(view[have:], begin + have)
                got -= have
                begin += len(view)

    def _read_scattered(self, views: Sequence[memoryview], begin: int) -> int:  # noqa: ARG002
        """Number of bytes that one call of the system has read: 0 where it has no such call."""
        return 0

    def read(self, begin: int, end: int) -> bytearray:
        """The bytes from offset `begin` up to `end`."""
        data = bytearray(end - begin)
        self.read_into(memoryview(data), begin)
        return data

    def chunks(self, begin: int, end: int) -> Iterator[memoryview]:
        """The same bytes in pieces of at most CHUNK_BYTES; each piece is valid until the next but one is asked for."""
        size = min(CHUNK_BYTES, end - begin)
        buffers = cycle([memoryview(bytearray(size)), memoryview(bytearray(size if size < end - begin else 0))])
        while begin < end:
            piece = next(buffers)[: min(size, end - begin)]
            self.read_into(piece, begin)
            yield piece
            begin += len(piece)

    def forget(self, begin: int, end: int) -> None:
        """Let the page cache drop what was read, where the system can be told so."""


class RandomReader(Reader):
    """Reads byte ranges of one file here. A file that is shorter than it was is an error, never a signal.

    mmap is avoided on purpose: a mapped file that shrinks kills the process, and mapped reads are slow on
    network file systems.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        file_size(path, name)
        try:
            self._file: BinaryIO = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by close())
        except OSError as error:
            raise reading_fault(name, error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _seek(self, begin: int) -> None:
        """Go to an offset that a header gave: it may be past what any file can have, which systems refuse."""
        try:
            self._file.seek(begin)
        except (OverflowError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise CheckpointError(f"has no byte {begin}", Code.FILE_SHRANK, self.name) from error

    def read_into(self, view: memoryview, begin: int) -> None:
        """See `Reader.read_into`."""
        done = 0
        try:
            self._seek(begin)
            while done < len(view):
                got = self._file.readinto(view[done : done + CHUNK_BYTES])  # type: ignore[attr-defined]
                if not got:
                    short = f"ends at byte {begin + done}, {len(view) - done} bytes short"
                    raise CheckpointError(
                        f"{short}: it became shorter while csf-tool read it", Code.FILE_SHRANK, self.name
                    )
                done += got
        except OSError as error:
            raise reading_fault(self.name, error) from error

    def _read_scattered(self, views: Sequence[memoryview], begin: int) -> int:
        """See `Reader._read_scattered`."""
        if not hasattr(os, "preadv"):
            return 0
        try:
            return os.preadv(self.fileno(), views, begin)
        except OSError as error:
            raise reading_fault(self.name, error) from error

    def fileno(self) -> int:
        """The descriptor, for the system's own copying."""
        return self._file.fileno()

    def forget(self, begin: int, end: int) -> None:
        """Let the page cache drop what was read, where the system can be told so."""
        drop_cache(self.fileno(), begin, end)


def reading_fault(name: str, error: OSError) -> CheckpointError | EnvironmentFault:
    """The error to raise when the system cannot open or read a file."""
    if isinstance(error, FileNotFoundError):
        return CheckpointError("is missing, or is a link to a missing file", Code.MISSING_FILE, name)
    if error.errno in NO_SUCH_FILE:
        return CheckpointError(f"is not a file: {error.strerror}", Code.NOT_A_FILE, name)
    return EnvironmentFault(f"cannot be read: {error.strerror or error}", file=name)


def writing_fault(name: str, error: OSError) -> EnvironmentFault:
    """The error to raise when the system cannot write a file."""
    return EnvironmentFault(f"cannot be written: {error.strerror or error}", file=name)


def is_file(path: Path) -> bool:
    """Whether a path leads to an ordinary file; a name that no system takes leads to none. Raises as `exists`."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder; a name that no system takes leads to none. Raises as `exists`."""
    return stat.S_ISDIR(_mode(path))


def exists(path: Path) -> bool:
    """Whether a path leads to anything. pathlib's own question has been answered "no" by systems that cannot tell.

    Raises:
        EnvironmentFault: the operating system does not say.
    """
    return _mode(path) != 0


def _mode(path: Path) -> int:
    """The type of what a path leads to, and its permissions; 0 where there is nothing."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno in NO_SUCH_FILE:
            return 0
        raise reading_fault(str(path), error) from error
    except ValueError:  # a null byte in the name
        return 0


def read_document(path: Path, name: str, limit: int = MAX_JSON_BYTES) -> bytes:
    """All bytes of a file that is read as a whole: JSON, or a list of hashes.

    Raises:
        CheckpointError: it is missing, no ordinary file, or larger than `limit`.
        EnvironmentFault: the operating system cannot read it.
    """
    if (nbytes := file_size(path, name)) > limit:
        raise CheckpointError(f"has {nbytes} bytes of text, but csf-tool reads at most {limit}", Code.TOO_LARGE, name)
    try:
        return path.read_bytes()
    except OSError as error:
        raise reading_fault(name, error) from error
