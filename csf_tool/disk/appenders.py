"""Appending to a new file: through the page cache, or past it.

Through the cache the kernel can copy from other files by itself, and what was written can be read again at once. But
every byte is copied once more, the cache is written out by one thread of the kernel, and a large file pushes out what
others have there. Past it, whole blocks of the program's own memory go to the disk while the next are collected.
"""

import errno
import mmap
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from typing import Protocol

from csf_tool.disk.reader import CHUNK_BYTES, RandomReader, Reader, drop_cache, writing_fault
from csf_tool.progress import OnBytes

if sys.platform != "win32":
    import fcntl

_LEAST_DIRECT_BYTES = 64 << 20
"""The smallest file that is written past the cache: a small one is likely to be read again soon."""

_DIRECT_FILE_SYSTEMS = {"ext4", "xfs"}
"""Local ones, which write directly. Others would buffer it, or could copy by themselves on a server."""

_MOUNTS = "/proc/self/mountinfo"

_PIECE_BYTES = 16 << 20
"""Bytes of one write past the cache."""

_BLOCK_BYTES = 4096
"""Alignment of the addresses, offsets and sizes of such writes, on the disks and file systems of today."""

_KERNEL_COPY_BYTES = 64 << 20
"""Most bytes of one copy_file_range call, so that progress moves and an interrupt is noticed."""

_WRITEBACK_BYTES = 32 << 20
"""Bytes appended before writeback is started: Linux by itself lets a tenth of memory wait."""

_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.ETXTBSY}
"""Errors of systems that cannot copy between these two files; reading and writing still can."""

_EITHER_FILE = errno.EIO
"""The error that one of the two files failed, not which: plain reading and writing tell."""


class Appender(Protocol):
    """Appends to an open file that it has for itself. What the system refuses is raised as `EnvironmentFault`."""

    def write(self, data: memoryview) -> None:
        """Append all of `data`, which may change afterwards."""

    def copy(self, reader: Reader, begin: int, end: int, on_bytes: OnBytes) -> None:
        """Append a range of another file. What its reader raises goes through."""

    def forget(self) -> None:
        """Leave nothing of the file in the page cache, neither now nor at the end."""

    def sync(self) -> None:
        """Wait until all of it is on the disk; nothing can follow."""

    def abandon(self) -> None:
        """Stop: once this returns, nobody writes to the file any more."""


def make_appender(fd: int, name: str, nbytes: int) -> Appender:
    """The appender that suits a file of about `nbytes`, empty and open as `fd`, where it lies."""
    if nbytes >= _LEAST_DIRECT_BYTES and _writes_directly(fd):
        with suppress(OSError):  # refused, as by ext4 that journals data
            return DirectAppender(fd, name)
    return CachedAppender(fd, name)


def _writes_directly(fd: int) -> bool:
    return sys.platform == "linux" and _file_system(os.fstat(fd).st_dev) in _DIRECT_FILE_SYSTEMS


def _file_system(device: int) -> str | None:
    """The type of the mounted file system that has this device number, as proc(5) describes mountinfo."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if before.split()[2] == number:
                return after.split()[0]
    return None


class CachedAppender:
    """Appends through the page cache; see `Appender`."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._written = 0
        self._written_back = 0
        self._drops_cache = False
        self._kernel_copies = hasattr(os, "copy_file_range")

    def write(self, data: memoryview) -> None:
        """See `Appender.write`."""
        self._written += len(data)
        try:
            while data:
                data = data[os.write(self._fd, data[:CHUNK_BYTES]) :]
        except OSError as error:
            raise writing_fault(self._name, error) from error
        self._start_writeback()

    def copy(self, reader: Reader, begin: int, end: int, on_bytes: OnBytes) -> None:
        """See `Appender.copy`; by the kernel where it can (reflinked where the file system does)."""
        while begin < end and self._kernel_copies and isinstance(reader, RandomReader):
            try:
                done = os.copy_file_range(reader.fileno(), self._fd, min(end - begin, _KERNEL_COPY_BYTES), begin)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY and error.errno != _EITHER_FILE:
                    raise writing_fault(self._name, error) from error
                self._kernel_copies = False
                break
            if not done:  # read_into says how many bytes are missing
                break
            begin += done
            self._written += done
            self._start_writeback()
            on_bytes(done)
        for piece in reader.chunks(begin, end):
            self.write(piece)
            on_bytes(len(piece))

    def _start_writeback(self) -> None:
        """Start writing back what was appended since last time, so that little is left to wait for at the end."""
        if self._written - self._written_back >= _WRITEBACK_BYTES:
            drop_cache(self._fd, self._written_back, self._written)  # dirty pages are written, and not dropped
            self._written_back = self._written

    def forget(self) -> None:
        """See `Appender.forget`."""
        self._drops_cache = True
        try:
            os.fdatasync(self._fd) if hasattr(os, "fdatasync") else os.fsync(self._fd)  # only clean pages are dropped
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise writing_fault(self._name, error) from error
        drop_cache(self._fd, 0, self._written)

    def sync(self) -> None:
        """See `Appender.sync`."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise writing_fault(self._name, error) from error
        if self._drops_cache:
            drop_cache(self._fd, 0, self._written)

    def abandon(self) -> None:
        """See `Appender.abandon`."""


class DirectAppender:
    """Appends past the page cache; see `Appender`. A fault is raised by a later call than the one with its bytes."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        # Anonymous maps begin at a page. While one is written, the other is filled.
        self._buffers = cycle([memoryview(mmap.mmap(-1, _PIECE_BYTES)) for _ in range(2)])
        self._buffer = next(self._buffers)
        self._set_direct(True)
        self._filled = 0
        self._begin = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="csf-tool-write")
        self._last: Future[None] = self._thread.submit(lambda: None)

    def write(self, data: memoryview) -> None:
        """See `Appender.write`."""
        while data:
            room = self._room(len(data))
            room[:] = data[: len(room)]
            self._advance(len(room))
            data = data[len(room) :]

    def copy(self, reader: Reader, begin: int, end: int, on_bytes: OnBytes) -> None:
        """See `Appender.copy`."""
        while begin < end:
            room = self._room(min(end - begin, CHUNK_BYTES))
            reader.read_into(room, begin)
            self._advance(len(room))
            begin += len(room)
            on_bytes(len(room))

    def forget(self) -> None:
        """See `Appender.forget`: nothing of it ever is in the cache."""

    def sync(self) -> None:
        """See `Appender.sync`."""
        end = self._begin + self._filled
        self._send()
        self._wait()
        self._thread.shutdown()
        try:
            os.ftruncate(self._fd, end)  # without what fills the last block
            os.fsync(self._fd)
        except OSError as error:
            raise writing_fault(self._name, error) from error

    def abandon(self) -> None:
        """See `Appender.abandon`."""
        self._thread.shutdown(cancel_futures=True)

    def _room(self, nbytes: int) -> memoryview:
        """Memory for the file's next bytes, at most `nbytes` and never none."""
        return self._buffer[self._filled : self._filled + nbytes]

    def _advance(self, nbytes: int) -> None:
        """Count bytes that were put into the buffer, and send it when it is full."""
        self._filled += nbytes
        if self._filled == len(self._buffer):
            self._send()

    def _send(self) -> None:
        """Begin to write the buffer once the piece before is written, and go on in that one's."""
        blocks = -(-self._filled // _BLOCK_BYTES)
        piece = self._buffer[: blocks * _BLOCK_BYTES]
        self._wait()
        self._last = self._thread.submit(self._write_out, piece, self._begin)
        self._buffer = next(self._buffers)
        self._begin += self._filled
        self._filled = 0

    def _wait(self) -> None:
        try:
            self._last.result()
        except OSError as error:
            raise writing_fault(self._name, error) from error

    def _write_out(self, piece: memoryview, begin: int) -> None:
        while piece:
            try:
                done = os.pwrite(self._fd, piece, begin)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct():
                    raise
                self._set_direct(False)  # the disk's blocks are larger, or part of one was written
            else:
                piece, begin = piece[done:], begin + done

    def _is_direct(self) -> bool:
        return bool(fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_DIRECT)

    def _set_direct(self, wanted: bool) -> None:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
