"""Writing files under temporary names, so that a half-written one never looks like a whole one."""

import errno
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from csf_tool.disk.appenders import make_appender
from csf_tool.disk.near_paths import did_you_mean
from csf_tool.disk.own_files import PARTIAL
from csf_tool.disk.reader import Reader, writing_fault
from csf_tool.errors import EnvironmentFault
from csf_tool.progress import OnBytes

if sys.platform != "win32":
    import fcntl


_ATTEMPTS = 10

_LOOK_SECONDS = 0.05
"""Seconds between two tries to lock a file."""


_NAME_KEPT = 40
"""Characters of a file's name that its partial file repeats: systems refuse names of more than 255 bytes."""

_NO_FOLDER_SYNC = {
    *(errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.EISDIR),
    *(errno.EACCES, errno.EPERM),  # a folder that may be written in and not read
}
"""Errors of file systems that cannot sync a folder, such as some shared folders and FUSE mounts."""


class NewFile:
    """A file under a temporary name; it gets its own name, complete and synced, when the block ends well.

    A file that has the name by then stays, unless this one is to `replace` it. It will have about `nbytes`.
    `on_complete` is called with the temporary path when the file is complete and synced, just before it gets its name.
    `is_there` says, when the name is taken by then, whether another process has written this same file.
    """

    def __init__(
        self,
        target: Path,
        name: str,
        nbytes: int = 0,
        *,
        replace: bool = False,
        on_complete: Callable[[Path], None] = lambda _: None,
        is_there: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self._target = target
        self._replace = replace
        self._on_complete = on_complete
        self._is_there = is_there
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
        """Make the partial file, locked until it is closed: a sign for other processes that it is not abandoned."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        for _ in range(_ATTEMPTS):
            self._temporary = self._target.with_name(_partial_name(self._target.name))
            self._fd = os.open(self._temporary, flags, 0o666)  # the umask decides, as for any other file
            self._appender = make_appender(self._fd, self.name, nbytes)
            if lock(self._fd, wait=False) is not False and self._temporary.exists():
                return
            self._discard()  # another run took it for abandoned before it was locked
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
            if not self._is_there():
                raise FileExistsError(0, "another process has made a file of that name")
            self._discard()
            return
        self._on_complete(self._temporary)
        if self._replace:
            self._temporary.replace(self._target)
        else:
            self._temporary.rename(self._target)
        sync_folder(self._target.parent)

    def _discard(self) -> None:
        """Remove the partial file. Where that fails, a later run removes it as abandoned."""
        if self._fd >= 0:
            self._appender.abandon()
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system and the file system can sync folders (Windows cannot)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def _partial_name(name: str) -> str:
    """A name for a file until it is complete: it says who writes it, machine and process, and has a random part."""
    return f".{name[:_NAME_KEPT]}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.partial"


def _host() -> str:
    return socket.gethostname().replace(".", "_")


def remove_abandoned(path: Path, *, spare: bool = False) -> int:
    """Remove a partial file of this machine that nobody writes any more: its writer's lock on it is gone.

    Return its bytes; with `spare`, it stays all the same.

    Where there are no locks, the writer's process must be gone. Locks come first: a new process can have a dead one's
    number, and systems that run under one host name may not see each other's processes. A file that another user
    wrote, and that cannot be opened, stays.
    """
    match = PARTIAL.fullmatch(path.name)
    if not match or match["host"] != _host() or path.is_symlink() or not path.is_file():
        return 0
    with suppress(FileNotFoundError, PermissionError), path.open("r+b") as file:  # NFS locks only what is open to write
        locked = lock(file.fileno(), wait=False)
        if locked or (locked is None and not _is_running(int(match["process"]))):
            nbytes = os.fstat(file.fileno()).st_size
            if not spare:
                path.unlink(missing_ok=True)  # while it is locked: a process that has just made it notices
            return nbytes
    return 0


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
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if not wait:
                return False
        except OSError:  # some network file systems
            return None
        time.sleep(_LOOK_SECONDS)  # not in the call: Ctrl-C that arrives just before it would be lost there


def require_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written before there is work to lose.

    Raises:
        EnvironmentFault: its folder is not there, or cannot be written in.
    """
    folder = Path(os.path.realpath(path)).parent
    try:
        with tempfile.TemporaryFile(dir=folder):  # what permissions, mounts and quotas allow is told by trying alone
            pass
    except OSError as error:
        problem = f"no file can be made in {folder}: {error.strerror}{did_you_mean(folder)}"
        raise EnvironmentFault(f"{option} {path}: {problem}") from error
