"""Opening a checkpoint: the problems that are found, and the errors that refuse it."""

from pathlib import Path

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import Severity
from csf_tool.errors import CsfToolError


def problems(path: Path, severity: Severity = Severity.ERROR) -> list[str]:
    return [str(p) for p in open_checkpoint(path).problems if p.severity is severity]


def refused(path: Path, kind: type[CsfToolError]) -> str:
    with pytest.raises(kind) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)
