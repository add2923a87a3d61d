"""Writing a destination folder so that a half-written file never looks like a whole one."""

import json
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from csf_tool.checkpoint.files import CHUNK_BYTES
from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.text import size

PARTIAL_SUFFIX = ".partial"


class Destination:
    """A new or empty folder to write into. Nothing in it is ever overwritten."""

    def __init__(self, path: Path, source: Path | None = None) -> None:
        """Check that `path` may be written.

        Raises:
            UsageError: it holds something, or lies inside `source`, or `source` lies inside it.
        """
        self.path = path
        if source and _nested(path.resolve(), source.resolve()):
            raise UsageError(f"{path}: destination and source ({source}) must not lie inside one another")
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path}: exists and is not a folder")
        if path.is_dir() and any(path.iterdir()):
            raise UsageError(f"{path}: is not empty; give a new or empty folder")

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
        self._temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
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
        try:
            while view:
                view = view[os.write(self._fd, view[:CHUNK_BYTES]) :]
        except OSError as error:
            raise writing_fault(self.name, error) from error

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


def writing_fault(name: str, error: OSError) -> EnvironmentFault:
    """The error to raise when the system cannot write a file."""
    return EnvironmentFault(f"{name}: cannot be written: {error.strerror or error}")


def render_json(document: Any) -> bytes:
    """A JSON file as the Hugging Face libraries write it."""
    return json.dumps(document, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"
