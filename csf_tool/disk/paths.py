"""File names from strangers, as paths inside a folder, and what lies in one."""

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from csf_tool.codes import Code
from csf_tool.disk.reader import NO_SUCH_FILE, is_folder, reading_fault
from csf_tool.errors import CheckpointError, EnvironmentFault
from csf_tool.text import brief


def safe_relative(name: str, where: str) -> PurePosixPath:
    """A file name from an index or manifest as a relative path inside the checkpoint.

    Raises:
        CheckpointError: it is absolute, leaves the folder, or would on another system.
    """
    if not is_safe_relative(name):
        problem = f"file name {brief(name)} leaves the checkpoint's folder or is not a plain path"
        raise CheckpointError(problem, Code.UNSAFE_NAME, where)
    return PurePosixPath(name)


def is_safe_relative(name: str) -> bool:
    """Whether a file name stays inside the folder that it is relative to, on every system."""
    return not (
        any(c in name for c in "\\:")  # on Windows a separator; a drive, or a stream beside a file's data
        or any(not part.rstrip(". ") for part in name.split("/"))  # Windows takes ".. " for ".."
        or any(ord(c) < 32 for c in name)
    )


def is_hidden(name: str) -> bool:
    """Whether a file lies in a hidden folder, as `.cache` or `.git`: it is no part of the checkpoint then."""
    return any(folder.startswith(".") for folder in name.split("/")[:-1])


@dataclass(frozen=True)
class Listing:
    """Files under a folder, by POSIX paths relative to it, sorted.

    `hidden` are hidden folders, which are not looked into. `links` are folders that are not looked into either: links
    that lead out of the folder, in circles, or to what another link leads to.
    """

    files: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)


def list_files(root: Path) -> Listing:
    """Everything under `root`. A link to a folder inside is followed; through links each folder is listed once at most.

    Raises:
        EnvironmentFault: a folder cannot be listed.
    """
    found, top = Listing(), Path(os.path.realpath(root))
    todo, through_links = [("", top, False)], set[Path]()
    while todo:
        inside, real, is_linked = todo.pop()
        if is_linked and real in through_links:
            found.links.append(inside.rstrip("/"))
            continue
        through_links |= {real} if is_linked else set()
        for entry in _entries(root / inside):
            name = inside + entry.name
            if not _is_folder(entry):
                found.files.append(name)
            elif entry.name.startswith("."):
                found.hidden.append(name)
            elif not entry.is_symlink():
                todo.append((f"{name}/", real / entry.name, is_linked))
            elif _may_follow(target := Path(os.path.realpath(entry.path)), real, top):
                todo.append((f"{name}/", target, True))
            else:
                found.links.append(name)
    return Listing(sorted(found.files), sorted(found.hidden), sorted(found.links))


def _may_follow(target: Path, folder: Path, top: Path) -> bool:
    """Whether a link in `folder` leads to a folder inside `top`, and not in a circle."""
    return target.is_relative_to(top) and not folder.is_relative_to(target)


def relative_files(root: Path) -> list[str]:
    """Every file under `root` by its POSIX path relative to it, sorted; hidden folders (`.cache`, `.git`) left out.

    Raises:
        EnvironmentFault: a folder cannot be listed.
    """
    return list_files(root).files


def holds_files(root: Path, ending: str) -> bool:
    """Whether there are files under `root` whose names end so. Raises as `relative_files`."""
    return any(name.endswith(ending) for name in relative_files(root))


def names_in(folder: Path) -> list[str]:
    """The names of what lies right in a folder, sorted; none where there is no folder.

    Raises:
        EnvironmentFault: it cannot be listed.
    """
    return [entry.name for entry in _entries(folder)] if is_folder(folder) else []


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder. `os.walk` and `Path.glob` skip folders that they cannot list, and files are lost."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise EnvironmentFault(f"cannot be listed: {error.strerror or error}", file=str(folder)) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or leads to one; links in circles lead nowhere."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno in NO_SUCH_FILE:
            return False
        raise reading_fault(entry.path, error) from error
