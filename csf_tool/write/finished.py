"""Notes of finished runs, by which a later command tells whether a destination holds its own result or another's.

The note is an extended attribute of the folder: no file is added to what was written. On file systems without such
attributes there is none; then only the files themselves can be compared.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_ATTRIBUTE = "user.csf_tool.run"


def note_finished(folder: Path, run: Mapping[str, Any]) -> None:
    """Note the run whose whole result a folder holds, where the file system has extended attributes."""
    if hasattr(os, "setxattr"):
        with suppress(OSError):
            os.setxattr(folder, _ATTRIBUTE, json.dumps(run).encode())


def finished_run(folder: Path) -> dict[str, Any]:
    """The run that was noted last; empty where none was, or the note cannot be read."""
    if not hasattr(os, "getxattr"):
        return {}
    try:
        found = json.loads(os.getxattr(folder, _ATTRIBUTE))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
