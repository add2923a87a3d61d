"""The candidates of the benchmarks give the right bytes: what is timed on a GPU must be worth timing."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.stacks import DEVICE

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


class Notes:
    """Keeps what a benchmark notes."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def __call__(self, **result: Any) -> None:
        self.found.append(result)

    def require(self, least: int) -> None:
        """Nothing was wrong, and so much was looked at."""
        assert [each for each in self.found if "error" in each] == []
        assert len(self.found) >= least


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of benchmarks/ can be imported, which find one another beside them."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(144, 16), (48, 40)], ids=str)
@pytest.mark.usefixtures("benchmarks")
def test_ways_to_decode(shape: tuple[int, int]) -> None:
    import decode_candidates

    notes = Notes()
    decode_candidates.check(torch.device(DEVICE), notes, [shape])
    notes.require(30)


@pytest.mark.slow
@pytest.mark.parametrize("which", [(18, 6), (2, 2)], ids=str)
@pytest.mark.usefixtures("benchmarks")
def test_ways_to_multiply(which: tuple[int, int]) -> None:
    import fused

    notes = Notes()
    fused.check(notes, [which])
    notes.require(12)
