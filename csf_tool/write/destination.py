"""Folders to write into, whose files are never overwritten."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from csf_tool.codes import Code
from csf_tool.disk.new_file import NewFile, sync_folder
from csf_tool.disk.own_files import is_own, require_plain
from csf_tool.disk.paths import names_in
from csf_tool.disk.reader import exists, is_folder, writing_fault
from csf_tool.errors import CheckpointError, EnvironmentFault, UsageError
from csf_tool.text import size


class Destination:
    """A folder to write into. Nothing in it is ever overwritten."""

    def __init__(self, path: Path, source: Path | None = None, *, keep_cache: bool = False) -> None:
        """Check that `path` may be written. With `keep_cache`, large files go through the page cache, too.

        A `source` may be a file, beside which there may be a destination, but not around it.

        Raises:
            UsageError: it is no folder and cannot become one, or lies inside `source`, or `source` lies inside it, or
                something other than a journal has a journal's name there.
        """
        self.path = path
        self._keep_cache = keep_cache
        if source and _nested(path.resolve(), source.resolve()):
            problem = f"the source ({source}) and the destination must not be inside one another"
            raise UsageError(problem, Code.NESTED_FOLDERS, str(path))
        _require_folder_or_room(path)
        require_plain(path)

    def require_empty(self) -> None:
        """Check that nothing is in the folder yet.

        Raises:
            UsageError: something is.
        """
        if names_in(self.path):
            raise UsageError("is not empty; give a new or empty folder", Code.NOT_EMPTY, str(self.path))

    def require_space(self, nbytes: int) -> None:
        """Check for room before the first byte is written; a file system that states none is taken to have it.

        Raises:
            EnvironmentFault: it has not.
        """
        if (free := self.free_bytes()) is not None:
            self.refuse_too_little(nbytes, free)

    def free_bytes(self) -> int | None:
        """Bytes that are free on its disk; None where the file system states none."""
        try:
            return shutil.disk_usage(self._existing()).free
        except OSError:
            return None

    def refuse_too_little(self, nbytes: int, free: int) -> None:
        """Check that so many bytes, of which so many are free, have room.

        Raises:
            EnvironmentFault: they have not.
        """
        if free < nbytes:
            problem = "not enough disk space: "
            problem += (
                f"{size(nbytes)} needed, {size(free)} free, {size(nbytes - free)} missing (--ignore-space overrides)"
            )
            raise EnvironmentFault(problem, Code.NO_ROOM, str(self.path))

    def _existing(self) -> Path:
        """The folder, or its nearest parent that exists."""
        return next(p for p in (self.path.absolute(), *self.path.absolute().parents) if exists(p))

    def require_writable(self, name: str) -> None:
        """Check that a file or folder of that name can be made, without making it.

        Raises:
            EnvironmentFault: they cannot.
        """
        place = self._existing()
        fault = 0 if os.access(place, os.W_OK | os.X_OK) else errno.EACCES
        if fault := fault if is_folder(place) else errno.ENOTDIR:
            raise writing_fault(str(self.path / name), OSError(fault, os.strerror(fault)))

    def shares_disk(self, path: Path) -> bool:
        """Whether a file lies on the same file system, as hard links must."""
        return path.stat().st_dev == self._existing().stat().st_dev

    def scratch_file(self) -> BinaryIO:
        """A file without a name on the same disk, read and written without a buffer; it is gone when it is closed.

        Raises:
            OSError: there can be none.
        """
        return cast(BinaryIO, tempfile.TemporaryFile(dir=self._existing(), buffering=0))

    def create(
        self,
        name: str,
        nbytes: int = 0,
        on_complete: Callable[[Path], None] = lambda _: None,
        is_there: Callable[[], bool] = lambda: False,
    ) -> NewFile:
        """A file of about `nbytes` to be written under the relative path `name`; use as a context manager.

        `on_complete` and `is_there` are those of `NewFile`.

        Raises:
            CheckpointError: the name is one that csf-tool keeps for itself.
            UsageError: a link in the destination leads out of it.
            EnvironmentFault: the system cannot write there.
        """
        if is_own(name):
            problem = "csf-tool needs this name for its own files in a destination: rename the file"
            raise CheckpointError(problem, Code.UNUSABLE_NAME, name)
        target = self.path / name
        try:
            self._make_folder(target.parent)
            nbytes = 0 if self._keep_cache else nbytes
            return NewFile(target, name, nbytes, on_complete=on_complete, is_there=is_there)
        except OSError as error:
            raise writing_fault(name, error) from error

    def _make_folder(self, folder: Path) -> None:
        """Make a folder of the destination; an existing one may be somebody else's link, and must not lead out."""
        if not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(self.path)):
            raise UsageError(f"{folder}: a link leads out of {self.path}: nothing is written there")
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
        sync_folder(target.parent)
        return True

    def write(self, name: str, data: bytes) -> None:
        """Write a whole small file."""
        with self.create(name) as file:
            file.write(data)


def _require_folder_or_room(path: Path) -> None:
    """Refuse what is no folder, where no folder can be made, and what was meant as an address.

    Raises:
        UsageError: it is one of these.
    """
    there = next((place for place in (path, *path.parents) if exists(place) or place.is_symlink()), None)
    if there and not exists(there):
        raise UsageError(f"{there}: is a link that leads nowhere: give a new or empty folder")
    if there and not is_folder(there):
        raise UsageError(f"{there}: exists, but is not a folder")
    if (address := re.match(r"([A-Za-z][\w+.-]+):/", path.as_posix())) and not exists(Path(path.parts[0])):
        problem = (
            f"is an address ({address[1]}), and csf-tool writes into folders: give one; `hf upload` takes it from there"
        )
        raise UsageError(problem, file=str(path))


def _nested(a: Path, b: Path) -> bool:
    """Whether one of two resolved paths is the other or lies inside it, by name or by inode."""
    if a == b or a in b.parents or b in a.parents:
        return True
    existing = [p for p in (a, *a.parents) if exists(p)]
    return exists(b) and any(p.samefile(b) for p in existing)
