"""Writing a destination folder so that a half-written file never looks like a whole one."""

import errno
import json
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from json.encoder import encode_basestring
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from csf_tool.checkpoint.appenders import make_appender
from csf_tool.checkpoint.files import Reader, writing_fault
from csf_tool.errors import CheckpointError, EnvironmentFault, UsageError
from csf_tool.progress import OnBytes
from csf_tool.text import size

if sys.platform != "win32":
    import fcntl

OWN_FOLDER = ".csf-tool"
CLOSING = ".csf-tool.closing"
"""What csf-tool keeps for itself in a destination: its journal, and the journal's description when the run is over."""

_PARTIAL = re.compile(r"\..*\.(?P<host>[^.]*)-(?P<process>\d+)-[0-9a-f]{8}\.partial", re.DOTALL)
"""A name that `_partial_name` makes."""

_ATTEMPTS = 10

_NAME_KEPT = 40
"""How much of a file's name its partial file repeats: systems refuse names of more than 255 bytes."""

_NO_FOLDER_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP}
"""What file systems answer that cannot sync a folder, as some shared folders and FUSE mounts."""


class Destination:
    """A folder to write into. Nothing in it is ever overwritten."""

    def __init__(self, path: Path, source: Path | None = None, *, keep_cache: bool = False) -> None:
        """Check that `path` may be written. With `keep_cache`, large files go through the page cache, too.

        Raises:
            UsageError: it is no folder, or lies inside `source`, or `source` lies inside it.
        """
        self.path = path
        self._keep_cache = keep_cache
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
        free = shutil.disk_usage(self._existing()).free
        if free < nbytes:
            raise EnvironmentFault(
                f"{self.path}: too little room (--ignore-space begins all the same): "
                f"{size(nbytes)} are needed, {size(free)} are free: {size(nbytes - free)} short"
            )

    def _existing(self) -> Path:
        """The folder, or the nearest above it that is there already."""
        return next(p for p in (self.path.absolute(), *self.path.absolute().parents) if p.exists())

    def scratch_file(self) -> BinaryIO:
        """A file without a name on the same disk, read and written without a buffer; it is gone when it is closed.

        Raises:
            OSError: there can be none.
        """
        return cast(BinaryIO, tempfile.TemporaryFile(dir=self._existing(), buffering=0))

    def create(self, name: str, nbytes: int = 0) -> "NewFile":
        """A file of about `nbytes` to be written under the relative path `name`; use as a context manager.

        Raises:
            CheckpointError: the name is one that csf-tool keeps for itself.
            UsageError: a link in the destination leads out of it.
            EnvironmentFault: the system cannot write there.
        """
        if is_own(name):
            raise CheckpointError(f"{name}: csf-tool keeps this name for itself in a destination: rename the file")
        target = self.path / name
        try:
            self._make_folder(target.parent)
            return NewFile(target, name, 0 if self._keep_cache else nbytes)
        except OSError as error:
            raise writing_fault(name, error) from error

    def _make_folder(self, folder: Path) -> None:
        """Make a folder of the destination. One that is there may have been put there by somebody else."""
        if not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(self.path)):
            raise UsageError(f"{folder}: leads out of {self.path} by a link: nothing is written there")
        folder.mkdir(parents=True, exist_ok=True)

    def link(self, name: str, source: Path) -> bool:
        """Make `name` a hard link to a file, or say that the file system does not allow it."""
        target = self.path / name
        try:
            self._make_folder(target.parent)
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
    """A file under a temporary name; it gets its own name, complete and synced, when the block ends well.

    A file that has the name by then stays, unless this one is to `replace` it. It will have about `nbytes`.
    """

    def __init__(self, target: Path, name: str, nbytes: int = 0, *, replace: bool = False) -> None:
        self.name = name
        self._target = target
        self._replace = replace
        self.on_complete: Callable[[], None] = lambda: None
        """Called when the file is complete and synced, just before it gets its name."""
        self.is_there: Callable[[], bool] = lambda: False
        """Asked when something has the name by now: whether it is this file, from another process of the same run."""
        self._fd = -1
        self._open(nbytes)

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
        except BaseException:  # an interrupt, or what on_complete raised
            self._discard()
            raise

    def _open(self, nbytes: int) -> None:
        """Make the partial file, locked until it is closed: so others know that it is not abandoned."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        for _ in range(_ATTEMPTS):
            self._temporary = self._target.with_name(_partial_name(self._target.name))
            self._fd = os.open(self._temporary, flags, 0o666)  # the umask decides, as for any other file
            self._appender = make_appender(self._fd, self.name, nbytes)
            if lock(self._fd, wait=False) is not False and self._temporary.exists():
                return
            self._discard()  # before it was locked, another run took it for abandoned
        raise OSError(errno.EBUSY, "other processes keep removing its partial file")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of `data`.

        Raises:
            EnvironmentFault: the disk is full, or cannot be written.
        """
        self._appender.write(memoryview(data))

    def copy(self, reader: Reader, begin: int, end: int, on_bytes: OnBytes) -> None:
        """Append a range of another file.

        Raises:
            CheckpointError: the other file ends before.
            EnvironmentFault: the disk is full, or cannot be written.
        """
        self._appender.copy(reader, begin, end, on_bytes)

    def forget(self) -> None:
        """Leave nothing of the file in the page cache, neither now nor at the end.

        Raises:
            EnvironmentFault: the disk is full, or cannot be written.
        """
        self._appender.forget()

    def write_all(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Append every piece."""
        for piece in pieces:
            self.write(piece)

    def _commit(self) -> None:
        held = None if sys.platform == "win32" else os.dup(self._fd)  # keeps the lock until the file has its name
        try:
            self._close()
            self._give_name()
        finally:
            if held is not None:
                os.close(held)

    def _close(self) -> None:
        self._appender.sync()
        fd, self._fd = self._fd, -1
        os.close(fd)  # network file systems report a failed write only here

    def _give_name(self) -> None:
        if self._target.exists() and not self._replace:
            if not self.is_there():
                raise FileExistsError(0, "a file of that name appeared meanwhile")
            self._discard()
            return
        self.on_complete()
        if self._replace:
            self._temporary.replace(self._target)
        else:
            self._temporary.rename(self._target)
        _sync_folder(self._target.parent)

    def _discard(self) -> None:
        """Remove what was written so far. A system that cannot has said so before, and a later run tries again."""
        if self._fd >= 0:
            self._appender.abandon()
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)


def _nested(a: Path, b: Path) -> bool:
    """Whether one of two resolved paths is the other or lies inside it, by name or by inode."""
    if a == b or a in b.parents or b in a.parents:
        return True
    existing = [p for p in (a, *a.parents) if p.exists()]
    return b.exists() and any(p.samefile(b) for p in existing)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system and the file system can sync folders (Windows cannot)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


def _partial_name(name: str) -> str:
    """A name for a file until it is complete: it says who writes it, machine and process, and has a random part."""
    return f".{name[:_NAME_KEPT]}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.partial"


def _host() -> str:
    return socket.gethostname().replace(".", "_")


def is_own(name: str) -> bool:
    """Whether a relative path is one that csf-tool keeps for itself; some systems do not tell cases apart."""
    return name.partition("/")[0].casefold() in (OWN_FOLDER, CLOSING) or is_partial(Path(name))


def is_partial(path: Path) -> bool:
    """Whether a file's name is one that `NewFile` writes under."""
    return _PARTIAL.fullmatch(path.name) is not None


def remove_abandoned(path: Path) -> None:
    """Remove a partial file of this machine that nobody writes any more: its writer's lock on it is gone.

    Where there are no locks, the writer's process must be gone. Containers that share a machine's name do not
    see each other's processes, and a new process can have a dead one's number: so locks come first. What another user
    wrote, so that it cannot be opened, stays.
    """
    match = _PARTIAL.fullmatch(path.name)
    if not match or match["host"] != _host():
        return
    with suppress(FileNotFoundError, PermissionError), path.open("r+b") as file:  # NFS locks what can be written alone
        locked = lock(file.fileno(), wait=False)
        if locked or (locked is None and not _is_running(int(match["process"]))):
            path.unlink(missing_ok=True)  # while it is locked: who has just made it notices


def _is_running(process: int) -> bool:
    """Whether a process may be running here."""
    if sys.platform == "win32":
        return True  # the signal 0 is Ctrl-C there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def lock(fd: int, *, wait: bool) -> bool | None:
    """Lock an open file until it is closed; whether that worked, or None where there are no locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # some network file systems
        return None
    return True


def render_json(document: Any) -> bytes:
    """A JSON file as the Hugging Face libraries write it.

    Raises:
        CheckpointError: a string in it, which can only be a file's name, is no UTF-8.
    """
    text = _render(document, "\n") + "\n"
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = text[text.rfind("\n", 0, error.start) + 1 : text.find("\n", error.start)].strip(" ,")
        raise CheckpointError(
            f"a file name that is no UTF-8 cannot stand in JSON, as in {line}: rename the file"
        ) from error


def _render(value: Any, margin: str) -> str:
    """What `json.dumps` gives with an indent of 2, for which it goes through every string in Python.

    `margin` is a line break and the indent of the line that the value begins in.
    """
    inner = margin + "  "
    if isinstance(value, dict) and value:
        if set(map(type, value.values())) == {str}:
            items = [f"{encode_basestring(key)}: {encode_basestring(item)}" for key, item in value.items()]
        else:
            items = [f"{encode_basestring(key)}: {_render(item, inner)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{margin}}}"
    if isinstance(value, list | tuple) and value:
        return f"[{inner}{f',{inner}'.join(_render(item, inner) for item in value)}{margin}]"
    return json.dumps(value, ensure_ascii=False)
