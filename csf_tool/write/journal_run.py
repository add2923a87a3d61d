"""The run that the journal in a destination is of: read, and compared with the run that is to begin there."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from csf_tool.codes import Code
from csf_tool.disk.json_files import load_json
from csf_tool.disk.own_files import CLOSING, DESCRIPTION, OWN_FOLDER, has_journal
from csf_tool.disk.paths import names_in, relative_files
from csf_tool.disk.reader import is_file, is_folder
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.write.destination import Destination
from csf_tool.write.run import MAY_DIFFER, Run


def require_fit(destination: Path, run: Run, beside: Collection[str] | None) -> None:
    """Check that the journal is that of `run`, or that the folder has only `beside` and a journal being made.

    Raises:
        UsageError: the journal is of another run, or the folder has other files.
        CheckpointError: the journal is damaged.
    """
    if require_same(destination, run):
        return
    if beside is not None:
        if foreign := [name for name in relative_files(destination) if name not in beside]:
            raise UsageError(f"{destination}: contains {foreign[0]}, which is not a file of the result")
    else:
        require_begun_or_empty(destination)


def require_begun_or_empty(destination: Path) -> None:
    """Check that a run has begun in the folder, or that it is empty but for a journal being made.

    Raises:
        UsageError: the folder has other files and no journal.
    """
    if not is_folder(destination):
        return
    has_others = any(name != OWN_FOLDER for name in names_in(destination))
    if has_others and not has_journal(destination):  # in this order: another process may begin meanwhile
        Destination(destination).require_empty()


def run_in(destination: Path) -> Run | None:
    """The run that the journal describes; None where there is no journal.

    Raises:
        CheckpointError: the journal is damaged.
    """
    found = description_in(destination)
    if found is None:
        return None
    return Run.parse(found)


def description_in(destination: Path) -> dict[str, Any] | None:
    """The description in the journal; None where there is none. Closing a run moves it, then removes it."""
    name = f"{OWN_FOLDER}/{DESCRIPTION}"
    for path in (destination / name, destination / CLOSING):
        try:
            found = load_json(path, name)
        except CheckpointError:
            if is_file(path):
                raise
            continue
        if not isinstance(found, dict):
            raise CheckpointError("not a JSON object", Code.DAMAGED_JOURNAL, name)
        return found
    return None


def require_same(destination: Path, run: Run) -> bool:
    """Whether there is a journal, which must be that of `run`.

    Raises:
        UsageError: it is of another run.
        CheckpointError: it is damaged.
    """
    found = description_in(destination)
    if found is None:
        return False
    wanted = run.describe()
    differing = [key for key in wanted if key not in MAY_DIFFER and found.get(key) != wanted[key]]
    if differing:
        differing = ["operation"] if "operation" in differing else differing  # which says all of it
        what = "; ".join(f"{k}: {json.dumps(found.get(k))} there, {json.dumps(wanted[k])} now" for k in differing)
        problem = f"holds an unfinished run of something else ({what}); give another folder, or remove this one"
        raise UsageError(problem, Code.OTHER_RUN, str(destination))
    return True
