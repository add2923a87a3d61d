"""The names that csf-tool keeps for itself in a destination: its journal, and files that are not complete."""

import re
from pathlib import Path

from csf_tool.disk.reader import is_file

OWN_FOLDER = ".csf-tool"
CLOSING = ".csf-tool.closing"
"""The journal's folder in a destination, and the journal's description while a run that is over removes it."""

DESCRIPTION = "journal.json"
"""The file in the journal's folder that describes the run."""

PARTIAL = re.compile(r"\..*\.(?P<host>[^.]*)-(?P<process>\d+)-[0-9a-f]{8}\.partial", re.DOTALL)
"""The name of a file that is being written: it says by which process of which machine."""


def is_own(name: str) -> bool:
    """Whether a relative path is one that csf-tool keeps for itself; some systems do not tell cases apart."""
    return name.partition("/")[0].casefold() in (OWN_FOLDER, CLOSING) or is_partial(Path(name))


def is_partial(path: Path) -> bool:
    """Whether a file's name is that of one being written."""
    return PARTIAL.fullmatch(path.name) is not None


def has_journal(folder: Path) -> bool:
    """Whether an interrupted run left its journal in a folder."""
    return is_file(folder / OWN_FOLDER / DESCRIPTION) or is_file(folder / CLOSING)
