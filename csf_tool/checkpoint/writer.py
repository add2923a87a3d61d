"""Writing a destination folder so that a half-written file never looks like a whole one."""

import errno
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from csf_tool.checkpoint.files import CHUNK_BYTES, RandomReader, drop_cache
from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.text import size

PARTIAL_SUFFIX = ".partial"

_KERNEL_COPY_BYTES = 64 << 20
"""Most bytes of one copy_file_range call, so that progress moves and an interrupt is noticed."""

_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.ETXTBSY}
"""What systems answer that cannot copy between these two files; reading and writing still can."""


class Destination:
    """A folder to write into. Nothing in it is ever overwritten."""

    def __init__(self, path: Path, source: Path | None = None) -> None:
        """Check that `path` may be written.

        Raises:
            UsageError: it is no folder, or lies inside `source`, or `source` lies inside it.
        """
        self.path = path
        if source and _nested(path.resolve(), source.resolve()):
            raise UsageError(f"{path}: destination and source ({source}) must not lie inside one another")
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path}: exists and is not a folder")

    def require_empty(self) -> None:
        """Check that nothing is in the folder yet.

        Raises:
            UsageError: something is.
        """
        if self.path.is_dir() and any(self.path.iterdir()):
            raise UsageError(f"{self.path}: is not empty; give a new or empty folder")

    def require_space(self, nbytes: int) -> None:
        """Check that the file system has room before the first byte is written.

        Raises:
            EnvironmentFault: it has not.
        """
        existing = next(p for p in (self.path.absolute(), *self.path.absolute().parents) if p.exists())
        free = shutil.disk_usage(existing).free
        if free < nbytes:
            raise EnvironmentFault(
                f"{self.path}: {size(nbytes)} are needed, {size(free)} are free: {size(nbytes - free)} short"
            )

    def create(self, name: str) -> "NewFile":
        """A file to be written under the relative path `name`; use as a context manager."""
        target = self.path / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            return NewFile(target, name)
        except OSError as error:
            raise writing_fault(name, error) from error

    def link(self, name: str, source: Path) -> bool:
        """Make `name` a hard link to a file, or say that the file system does not allow it."""
        target = self.path / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source.resolve(), target)
        except FileExistsError as error:
            raise writing_fault(name, error) from error
        except OSError:
            return False
        _sync_folder(target.parent)
        return True

    def write(self, name: str, data: bytes) -> None:
        """Write a whole small file."""
        with self.create(name) as file:
            file.write(data)


class NewFile:
    """A file under a temporary name; it gets its own name, complete and synced, when the block ends well."""

    def __init__(self, target: Path, name: str) -> None:
        self.name = name
        self._target = target
        self._temporary = target.with_name(f".{target.name}.{_writer()}{PARTIAL_SUFFIX}")
        self.on_complete: Callable[[], None] = lambda: None
        """Called when the file is complete and synced, just before it gets its name."""
        self._written = 0
        self._kernel_copies = hasattr(os, "copy_file_range")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._fd = os.open(self._temporary, flags, 0o666)  # the umask decides, as for any other file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            self._commit()
        except OSError as error:
            self._discard()
            raise writing_fault(self.name, error) from error

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of `data`.

        Raises:
            EnvironmentFault: the disk is full, or cannot be written.
        """
        view = memoryview(data)
        self._written += len(view)
        try:
            while view:
                view = view[os.write(self._fd, view[:CHUNK_BYTES]) :]
        except OSError as error:
            raise writing_fault(self.name, error) from error

    def copy(self, reader: RandomReader, begin: int, end: int, on_bytes: Callable[[int], None]) -> None:
        """Append a range of another file, copied by the kernel where it can (reflinked where the file system does).

        Raises:
            CheckpointError: the other file ends before.
            EnvironmentFault: the disk is full, or cannot be written.
        """
        while begin < end and self._kernel_copies:
            try:
                done = os.copy_file_range(reader.fileno(), self._fd, min(end - begin, _KERNEL_COPY_BYTES), begin)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise writing_fault(self.name, error) from error
                self._kernel_copies = False
                break
            if not done:  # read_into says how many bytes are missing
                break
            begin += done
            self._written += done
            on_bytes(done)
        for piece in reader.chunks(begin, end):
            self.write(piece)
            on_bytes(len(piece))

    def forget(self) -> None:
        """Let the page cache drop what was written, as far as it has reached the disk; start writing the rest."""
        drop_cache(self._fd, 0, self._written)

    def write_all(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Append every piece."""
        for piece in pieces:
            self.write(piece)

    def _commit(self) -> None:
        fd, self._fd = self._fd, -1
        try:
            os.fsync(fd)
        finally:
            os.close(fd)  # network file systems report a failed write only here
        if self._target.exists():
            raise FileExistsError(0, "a file of that name appeared meanwhile")
        self.on_complete()
        self._temporary.rename(self._target)
        _sync_folder(self._target.parent)

    def _discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._temporary.unlink(missing_ok=True)


def _nested(a: Path, b: Path) -> bool:
    """Whether one of two resolved paths is the other or lies inside it, by name or by inode."""
    if a == b or a in b.parents or b in a.parents:
        return True
    existing = [p for p in (a, *a.parents) if p.exists()]
    return b.exists() and any(p.samefile(b) for p in existing)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system can sync folders (Windows cannot)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _writer() -> str:
    """Who writes a partial file: machine, process, and a random part for its many files."""
    return f"{socket.gethostname().replace('.', '_')}-{os.getpid()}-{secrets.token_hex(4)}"


def is_abandoned(name: str) -> bool:
    """Whether the writer of a partial file is known not to run any more: a process of this machine that is gone."""
    host, _, process = name.removesuffix(PARTIAL_SUFFIX).rpartition(".")[2].rpartition("-")[0].rpartition("-")
    if host != socket.gethostname().replace(".", "_"):
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False


def writing_fault(name: str, error: OSError) -> EnvironmentFault:
    """The error to raise when the system cannot write a file."""
    return EnvironmentFault(f"{name}: cannot be written: {error.strerror or error}")


def render_json(document: Any) -> bytes:
    """A JSON file as the Hugging Face libraries write it."""
    return json.dumps(document, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"
