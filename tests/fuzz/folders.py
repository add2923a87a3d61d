"""A folder as a value: what a checkpoint is while it is mutated, before any file is written."""

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True)
class Pipe:
    """A named pipe: opening it would wait for ever."""


@dataclass(frozen=True)
class Subfolder:
    """A folder without anything in it."""


Entry = bytes | Link | Pipe | Subfolder

Folder = dict[str, Entry]
"""What lies under each relative path. A path may hold any character and, as surrogates, any byte."""


def write(root: Path, folder: Folder) -> None:
    """Write a folder; entries that the file system does not take are left out."""
    root.mkdir(parents=True)
    for name, entry in folder.items():
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(entry, bytes):
                path.write_bytes(entry)
            elif isinstance(entry, Link):
                path.symlink_to(entry.target)
            elif isinstance(entry, Pipe):
                os.mkfifo(path)
            else:
                path.mkdir()
        except (OSError, ValueError):
            continue


def read(root: Path) -> Folder:
    """What lies under a folder, links not followed."""
    found: Folder = {}
    for where, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(where) / name
            mode = path.lstat().st_mode
            entry: Entry = Subfolder()
            if stat.S_ISLNK(mode):
                entry = Link(str(path.readlink()))
            elif stat.S_ISFIFO(mode):
                entry = Pipe()
            elif stat.S_ISREG(mode):
                entry = path.read_bytes()
            found[path.relative_to(root).as_posix()] = entry
    return found


def remove(root: Path) -> None:
    """Remove a folder, if it is there."""
    shutil.rmtree(root, ignore_errors=True)
