"""File names from strangers, as paths inside a folder."""

import os
from pathlib import Path, PurePosixPath

from csf_tool.codes import Code
from csf_tool.errors import CheckpointError
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


def relative_files(root: Path) -> list[str]:
    """Every file under `root` by its POSIX path relative to it, sorted; hidden folders (`.cache`, `.git`) left out."""
    paths = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        paths += [(Path(folder) / f).relative_to(root).as_posix() for f in files]
    return sorted(paths)
