"""Results of earlier runs as checkpoints: whether anything is wrong with one, by its headers, names and sizes."""

from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import obstacles
from csf_tool.codes import Code
from csf_tool.errors import CsfToolError


def sound_result(destination: Path, operation: str, *, excused: Code | None = None) -> Checkpoint | None:
    """The checkpoint that an operation has written; None where something is wrong with it that is not `excused`."""
    carried = CONFIG_FILES if operation == "expand" else ()  # as they are, whatever is in them
    found = opened(destination)
    if found is None:
        return None
    faults = [problem for problem in obstacles(found.problems) if problem.code is not excused]
    return found if all(problem.file in carried for problem in faults) else None


def opened(destination: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None where there is none."""
    try:
        return open_checkpoint(destination)
    except CsfToolError:
        return None
