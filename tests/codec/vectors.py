"""The golden and broken streams of tests/data/vectors, as plain objects."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from csf_tool.codec.formats import FORMATS, CsfFormat

FOLDER = Path(__file__).parent.parent / "data" / "vectors"


@dataclass(frozen=True)
class Vector:
    fmt: CsfFormat
    name: str
    rows: int
    cols: int
    fixed: NDArray[np.uint8]
    exceptions: NDArray[np.uint32]
    scales: NDArray[np.uint8] | None
    fault: str = ""
    decodable: bool = True

    def __str__(self) -> str:
        return f"{self.fmt.name}-{self.name}"


def golden() -> list[Vector]:
    """Planes with the streams that an encoder of the format writes for them."""
    return [v for fmt in FORMATS for v in _load(fmt, "")]


def broken() -> list[Vector]:
    """Streams with one fault each."""
    return [v for fmt in FORMATS for v in _load(fmt, "-broken")]


def _load(fmt: CsfFormat, kind: str) -> list[Vector]:
    tensors = load_file(FOLDER / f"{fmt.name}{kind}.safetensors")
    description = json.loads((FOLDER / f"{fmt.name}{kind}.json").read_text())
    cases = description if kind else description["cases"]
    return [
        Vector(
            fmt,
            case["name"],
            case["rows"],
            case["cols"],
            tensors[f"{case['name']}.fixed"],
            tensors.get(f"{case['name']}.exceptions", tensors.get("exceptions", np.empty(0, np.uint32))),
            tensors.get(f"{case['name']}.scales"),
            case.get("fault", ""),
            case.get("decodable", True),
        )
        for case in cases
    ]
