"""Notes of finished runs, by which a later command tells whether a destination holds its own result or another's.

The note is an extended attribute of the folder: no file is added to what was written. On file systems without such
attributes there is none; then only the files themselves can be compared.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from csf_tool.disk.own_files import is_own
from csf_tool.disk.paths import relative_files

_ATTRIBUTE = "user.csf_tool.run"
_FILES = "files"


def note_finished(folder: Path, run: Mapping[str, Any]) -> None:
    """Note the run whose whole result a folder holds, where the file system has extended attributes."""
    if hasattr(os, "setxattr"):
        with suppress(OSError):
            os.setxattr(folder, _ATTRIBUTE, json.dumps({**run, _FILES: _sizes(folder)}).encode())


def finished_run(folder: Path) -> dict[str, Any]:
    """The run that was noted last; empty where none was, or the note cannot be read."""
    if not hasattr(os, "getxattr"):
        return {}
    try:
        found = json.loads(os.getxattr(folder, _ATTRIBUTE))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_as_noted(folder: Path) -> bool:
    """Whether a folder has the files, by name and size, that it had when its run was noted, and no others."""
    return finished_run(folder).get(_FILES) == _sizes(folder)


def _sizes(folder: Path) -> str:
    """A hash of the names and sizes of all files in a folder but csf-tool's own: an attribute is too small for them."""
    hasher = hashlib.sha256()
    for name in relative_files(folder):
        if not is_own(name):
            hasher.update(os.fsencode(name) + f"\0{(folder / name).lstat().st_size}\0".encode())
    return hasher.hexdigest()
