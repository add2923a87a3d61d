"""Fixtures that all tests share."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent / "data" / "samples"


@pytest.fixture
def sample() -> Callable[[str], Path]:
    """The folder of a sample checkpoint, made from real weights by other software; read-only by convention."""
    return SAMPLES.joinpath


@pytest.fixture
def copied(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a sample that a test may damage."""

    def copy(name: str, to: str = "") -> Path:
        return Path(shutil.copytree(SAMPLES / name, tmp_path / (to or name)))

    return copy
