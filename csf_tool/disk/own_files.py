"""The names that csf-tool keeps for itself in a destination: its journal, and files that are not complete."""

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from csf_tool.codes import Code
from csf_tool.disk.reader import is_file
from csf_tool.errors import UsageError

OWN_FOLDER = ".csf-tool"
CLOSING = ".csf-tool.closing"
"""The journal's folder in a destination, and the journal's description while a run that is over removes it."""

CONSUMED_NOTE = ".csf-tool.consumed"
"""The note in a source whose shards were removed, where its file system has no extended attributes."""

DESCRIPTION = "journal.json"
"""The file in the journal's folder that describes the run."""

LOCK = "lock"
FOLDERS = RECORDS, CONSUMED, KEPT, FETCHED = "finished", "consumed", "kept", "fetched"
"""Names of all else in it: the file that is locked, and a folder for each kind of note."""

PARTIAL = re.compile(r"\..*\.(?P<host>[^.]*)-(?P<process>\d+)-[0-9a-f]{8}\.partial", re.DOTALL)
"""The name of a file that is being written: it says by which process of which machine."""


def is_own(name: str) -> bool:
    """Whether a relative path is one that csf-tool keeps for itself; some systems do not tell cases apart."""
    return name.partition("/")[0].casefold() in (OWN_FOLDER, CLOSING, CONSUMED_NOTE) or is_partial(Path(name))


def is_partial(path: Path) -> bool:
    """Whether a file's name is that of one being written."""
    return PARTIAL.fullmatch(path.name) is not None


def has_journal(folder: Path) -> bool:
    """Whether an interrupted run left its journal in a folder."""
    return is_file(folder / OWN_FOLDER / DESCRIPTION) or is_file(folder / CLOSING)


def require_plain(folder: Path) -> None:
    """Check that what has the journal's names in a folder can be a journal: links would lead writing elsewhere.

    Raises:
        UsageError: something of it is a link, a pipe, or a folder where a file has to be.
    """
    for path, is_right in _own_places(folder):
        try:
            status = path.lstat()
        except OSError:
            continue
        if not is_right(status.st_mode):
            problem = "has the name of csf-tool's journal, but is something else: remove it, or give another folder"
            raise UsageError(problem, Code.JOURNAL_TAKEN, str(path))


def _own_places(folder: Path) -> Iterator[tuple[Path, Callable[[int], bool]]]:
    """Every path that a journal has or may have, and whether its mode is what it must be."""
    yield folder / CLOSING, stat.S_ISREG
    yield folder / OWN_FOLDER, stat.S_ISDIR
    yield folder / OWN_FOLDER / DESCRIPTION, stat.S_ISREG
    yield folder / OWN_FOLDER / LOCK, stat.S_ISREG
    for name in FOLDERS:
        yield folder / OWN_FOLDER / name, stat.S_ISDIR
    for inside, folders, files in os.walk(folder / OWN_FOLDER):
        for name in folders:
            yield Path(inside, name), stat.S_ISDIR
        for name in files:
            yield Path(inside, name), stat.S_ISREG
