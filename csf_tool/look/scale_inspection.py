"""inspect: a scale that is no plane, its bytes and its values."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.names import module_of
from csf_tool.checkpoint.other_scales import OtherScale
from csf_tool.checkpoint.streams import Readers
from csf_tool.codec.formats import FORMATS
from csf_tool.codec.values import VALUES

_MX = "UE8M0"


@dataclass
class InspectedScale:
    """A scale that is no plane: what it is, and what is in it as far as its dtype says."""

    of: OtherScale
    byte_counts: NDArray[np.int64] | None
    """Number of scales that have each byte, where a scale is one: `[256]`."""
    number_format: str | None
    """The number format of these bytes."""
    lowest: float | None = None
    highest: float | None = None
    zero: int = 0
    nan: int = 0

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.of.scale.tensor.name


def choose_scales(checkpoint: Checkpoint, pattern: str | None) -> list[OtherScale]:
    """The scales that are no planes and that a name or glob means: scales, weights, or modules; all without one."""
    if pattern is None:
        return checkpoint.other_scales
    named = [other for other in checkpoint.other_scales if pattern in _names(other)]
    chosen = named or [other for other in checkpoint.other_scales if matches(other.scale.tensor.name, pattern)]
    ending = [] if chosen else [other for other in checkpoint.other_scales if ends_with(pattern, *_names(other))]
    return chosen or (ending if len(ending) == 1 else [])


def matches(scale: str, pattern: str) -> bool:
    """Whether a glob matches the name of a scale, or of its module."""
    return fnmatchcase(scale, pattern) or fnmatchcase(module_of(scale), pattern)


def ends_with(part: str, scale: str, *weights: str) -> bool:
    """Whether a part of a name, from a dot to the end, is that of a scale, its weight or its module."""
    return any(name.endswith(f".{part}") for name in (scale, module_of(scale), *weights))


def _names(other: OtherScale) -> list[str]:
    return [located.tensor.name for located in (other.scale, other.weight) if located]


def inspect_scale(other: OtherScale) -> InspectedScale:
    """Read a scale once and count its values.

    Raises:
        CheckpointError: its file is shorter than its header says.
    """
    tensor = other.scale.tensor
    number_format = _number_format(other)
    is_bytes = number_format is not None or tensor.dtype == "U8"
    found = InspectedScale(other, np.zeros(256, np.int64) if is_bytes else None, number_format)
    with Readers() as readers, readers.unchanged():
        for piece in readers[other.scale.shard].chunks(tensor.begin, tensor.end):
            if found.byte_counts is not None:
                found.byte_counts += np.bincount(np.frombuffer(piece, np.uint8), minlength=256)
            elif (values := _floats(tensor.dtype, piece)) is not None:
                _add(found, values, np.ones(len(values), np.int64))
    if found.byte_counts is not None and number_format:
        _add(found, VALUES[number_format](), found.byte_counts)
    return found


def _number_format(other: OtherScale) -> str | None:
    """The number format of the bytes of a scale, by its dtype, or by its weights where these are bare bytes."""
    dtype = other.scale.tensor.dtype
    for fmt in FORMATS:
        if dtype == fmt.dense_dtype or (dtype == "U8" and other.kind.weights == fmt.title):
            return fmt.scale_type
    return _MX if dtype == "U8" and other.kind.weights == "MXFP8" else None


def _floats(dtype: str, piece: memoryview) -> NDArray[np.float64] | None:
    """The numbers in whole elements of a piece; None for a dtype that holds none."""
    if dtype == "BF16":
        return (np.frombuffer(piece, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
    return np.frombuffer(piece, kinds[dtype]).astype(np.float64) if dtype in kinds else None


def _add(found: InspectedScale, values: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
    """Count values, each so often."""
    there = values[(counts > 0) & np.isfinite(values)]
    if len(there):
        low, high = float(there.min()), float(there.max())
        found.lowest = low if found.lowest is None else min(found.lowest, low)
        found.highest = high if found.highest is None else max(found.highest, high)
    found.zero += int(counts[values == 0].sum())
    found.nan += int(counts[np.isnan(values)].sum())
