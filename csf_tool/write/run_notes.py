"""Notes of runs in their result and in their source, by which a later command tells whose result a folder holds.

The note is an extended attribute of the folder: no file is added to what was written. On file systems without such
attributes there is none; then only the files themselves can be compared.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from csf_tool.disk.own_files import CONSUMED_NOTE, is_own
from csf_tool.disk.paths import relative_files
from csf_tool.disk.reader import is_file
from csf_tool.text import escape

_ATTRIBUTE = "user.csf_tool.run"
_OF_SOURCE = "user.csf_tool.consumed"
_FILES = "files"
PLACE = "destination"
"""Keys of a note beside those of the run: the latter is in the note of a source alone."""


def note_finished(folder: Path, run: Mapping[str, Any]) -> None:
    """Note the run whose whole result a folder holds, where the file system has extended attributes."""
    with suppress(OSError):
        _set(folder, _ATTRIBUTE, {**run, _FILES: _sizes(folder)})


def finished_run(folder: Path) -> dict[str, Any]:
    """The run that was noted last; empty where none was, or the note cannot be read."""
    return _get(folder, _ATTRIBUTE)


def note_consumed(source: Path, destination: Path, run: Mapping[str, Any]) -> None:
    """Note in a source which run removes its shards: a copy of the result may lose the note that it has.

    The note is a file where the file system has no extended attributes.
    """
    note = {**run, _FILES: _sizes(destination), PLACE: escape(str(destination.resolve()))}
    with suppress(OSError):
        try:
            _set(source, _OF_SOURCE, note)
        except OSError:
            (source / CONSUMED_NOTE).write_bytes(json.dumps(note).encode())


def consuming_run(source: Path) -> dict[str, Any]:
    """The run that is noted to have removed the shards of a source; empty where none is."""
    found = _get(source, _OF_SOURCE)
    if not found and is_file(source / CONSUMED_NOTE):
        with suppress(OSError):
            found = _parsed((source / CONSUMED_NOTE).read_bytes())
    return found


def is_as_noted(folder: Path, run: Mapping[str, Any]) -> bool:
    """Whether a folder has the files, by name and size, that it had when its run was noted, and no others."""
    return run.get(_FILES) == _sizes(folder)


def _get(folder: Path, attribute: str) -> dict[str, Any]:
    """The note in an attribute; empty where there is none."""
    try:
        return _parsed(os.getxattr(folder, attribute)) if hasattr(os, "getxattr") else {}
    except OSError:
        return {}


def _set(folder: Path, attribute: str, note: Mapping[str, Any]) -> None:
    """Leave a note in an attribute.

    Raises:
        OSError: there are none here.
    """
    if not hasattr(os, "setxattr"):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    os.setxattr(folder, attribute, json.dumps(note).encode())


def _parsed(note: bytes) -> dict[str, Any]:
    try:
        found = json.loads(note)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sizes(folder: Path) -> str:
    """A hash of the names and sizes of all files in a folder but csf-tool's own: an attribute is too small for them."""
    hasher = hashlib.sha256()
    for name in relative_files(folder):
        if not is_own(name):
            hasher.update(os.fsencode(name) + f"\0{(folder / name).lstat().st_size}\0".encode())
    return hasher.hexdigest()
