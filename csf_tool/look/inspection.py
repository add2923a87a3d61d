"""inspect: one plane to look at closely, or all planes ranked by what the headers say of them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.names import module_of, parse_stream_name, weight_names
from csf_tool.checkpoint.plane_tables import DensePlane, Plane
from csf_tool.checkpoint.stored import Located
from csf_tool.checkpoint.streams import Readers
from csf_tool.codec import reference
from csf_tool.codec.formats import POSITION_MASK, SLAB_ROWS, CsfFormat
from csf_tool.codec.reference import StreamFault
from csf_tool.codec.values import scale_values
from csf_tool.coders.encoder import read_scales
from csf_tool.errors import UsageError
from csf_tool.look.scale_inspection import choose_scales, ends_with, matches
from csf_tool.nearest import nearest


@dataclass(frozen=True)
class Inspected:
    """A plane with everything in it, decoded. Arrays have a place for each row, column or byte value."""

    name: str
    format: CsfFormat
    rows: int
    cols: int
    dtype: str
    stored: list[Located]
    """The tensors that hold it: fixed stream and exception list, or the dense scale."""
    fixed_bytes: int
    words: NDArray[np.uint32]
    """Exception words, `value << 24 | position`."""
    bases: NDArray[np.uint8]
    """Row bases, `[rows]`."""
    scales: NDArray[np.uint8]
    """Dense scales, `[rows, cols]`."""
    faults: list[StreamFault]

    @property
    def is_dense(self) -> bool:
        """Whether it is stored dense, and the streams are what `compress` would write."""
        return len(self.stored) == 1

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense scales."""
        return self.scales.size

    @property
    def csf_bytes(self) -> int:
        """Bytes of both streams."""
        return self.fixed_bytes + self.words.nbytes

    @cached_property
    def positions(self) -> NDArray[np.intp]:
        """Positions of the exceptions: row * cols + col."""
        return (self.words & POSITION_MASK).astype(np.intp)

    @cached_property
    def is_exception(self) -> NDArray[np.bool_]:
        """Whether each scale is an exception: `[rows, cols]`."""
        mask = np.zeros(self.scales.size, np.bool_)
        mask[self.positions] = True
        return mask.reshape(self.scales.shape)

    @property
    def base_counts(self) -> NDArray[np.intp]:
        """Number of rows that have each byte as their base: `[256]`."""
        return np.bincount(self.bases, minlength=256)

    @property
    def byte_counts(self) -> NDArray[np.intp]:
        """Number of scales that have each byte: `[256]`."""
        return np.bincount(self.scales.reshape(-1), minlength=256)

    @property
    def code_counts(self) -> NDArray[np.intp]:
        """Number of scales, exceptions left out, that have each code: `[window]`."""
        codes = self.scales - self.bases[:, None]
        return np.bincount(codes[~self.is_exception], minlength=self.format.window)

    @property
    def distances(self) -> NDArray[np.intp]:
        """Distance of each exception from its row's window: negative below it, positive above."""
        value = self.scales.reshape(-1)[self.positions].astype(np.intp)
        low = self.bases[self.positions // self.cols].astype(np.intp)
        high = low + self.format.window - 1
        return np.where(value < low, value - low, np.maximum(value - high, 0))

    @property
    def row_exceptions(self) -> NDArray[np.intp]:
        """Exceptions of each row: `[rows]`."""
        return np.bincount(self.positions // self.cols, minlength=self.rows)

    @property
    def col_exceptions(self) -> NDArray[np.intp]:
        """Exceptions of each column: `[cols]`."""
        return np.bincount(self.positions % self.cols, minlength=self.cols)

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """Values of the scales: `[rows, cols]`."""
        return scale_values(self.format)[self.scales]

    @property
    def corner(self) -> tuple[slice, slice]:
        """The first rows and columns, whose values are shown."""
        return slice(16), slice(8)

    @property
    def zero(self) -> int:
        """Scales that are zero."""
        return int(np.count_nonzero(self.values == 0))

    @property
    def negative(self) -> int:
        """Scales below zero."""
        return int(np.count_nonzero(self.values < 0))

    @property
    def nan(self) -> int:
        """Scales that are not a number."""
        return int(np.count_nonzero(np.isnan(self.values)))

    @property
    def entropy_bytes(self) -> float:
        """Bytes that an ideal entropy coder of single scales would take."""
        share = self.byte_counts[self.byte_counts > 0] / self.scales.size
        return float(-(share * np.log2(share)).sum() * self.scales.size / 8)


def choose_planes(checkpoint: Checkpoint, pattern: str | None) -> list[Plane | DensePlane]:
    """The planes that a name or glob means: scale, stream or weight names, or modules; all planes without one.

    None where it means scales that are no planes.

    Raises:
        UsageError: it means nothing.
    """
    planes: list[Plane | DensePlane] = [*checkpoint.planes, *checkpoint.dense_planes]
    others = choose_scales(checkpoint, pattern)
    if not planes and not checkpoint.other_scales:
        raise UsageError(f"{checkpoint.label}: holds no FP4 block scales")
    if pattern is None:
        return planes
    stream = parse_stream_name(pattern)
    wanted = stream.scale if stream else pattern
    named = [plane for plane in planes if wanted in (plane.name, *weight_names(plane.name))]
    chosen = named or [p for p in planes if matches(p.name, pattern)]
    if not chosen and not others:
        ending = [plane for plane in planes if ends_with(wanted, plane.name, *weight_names(plane.name))]
        if len(ending) == 1:
            return ending
        raise UsageError(f"{checkpoint.label}: {_nothing_called(pattern, checkpoint, planes, ending)}")
    return chosen


def _nothing_called(
    pattern: str, checkpoint: Checkpoint, planes: list[Plane | DensePlane], ending: list[Plane | DensePlane]
) -> str:
    """Why a pattern means no plane, with a glob or a name that does."""
    if ending:
        found = f"{len(ending):,} planes end with {pattern!r}, for example {ending[0].name!r}"
        return f"{found}: give a longer name, or '*.{pattern}'"
    names = [plane.name for plane in planes] or [other.scale.tensor.name for other in checkpoint.other_scales]
    what, glob = "plane" if planes else "scale", f"*{pattern.strip('*')}*"
    if pattern in checkpoint.plane_table.stored.row_of:
        return f"{pattern} is a tensor, and no {what}: csf-tool ls shows it"
    if any(matches(name, glob) for name in names):
        return f"no {what} is called {pattern!r}; did you mean {glob!r}?"
    if near := nearest(pattern, [*names, *map(module_of, names)], 1):
        return f"no {what} is called {pattern!r}; did you mean {near[0]!r}?"
    return f"no {what} is called {pattern!r}; one of them is {names[0]!r}"


def inspect_plane(plane: Plane | DensePlane) -> Inspected:
    """Read a plane and decode it, or encode it where it is stored dense.

    Raises:
        StreamError: its streams break a rule of the format, so that they cannot be decoded.
    """
    with Readers() as readers, readers.unchanged():
        return _stored_dense(plane, readers) if isinstance(plane, DensePlane) else _compressed(plane, readers)


def _compressed(plane: Plane, readers: Readers) -> Inspected:
    streams = readers.streams(plane).require_decodable()
    stored = [plane.fixed, plane.exceptions]
    return _inspected(plane, plane.dtype, stored, streams.fixed, streams.exceptions, streams.decode(), streams.faults())


def _stored_dense(plane: DensePlane, readers: Readers) -> Inspected:
    [read] = read_scales(readers, [plane])
    fixed, words = reference.encode(plane.fmt, read.scales)
    return _inspected(plane, plane.scale.tensor.dtype, [plane.scale], fixed, words, read.scales, [])


def _inspected(
    plane: Plane | DensePlane,
    dtype: str,
    stored: list[Located],
    fixed: NDArray[np.uint8],
    words: NDArray[np.uint32],
    scales: NDArray[np.uint8],
    faults: list[StreamFault],
) -> Inspected:
    return Inspected(
        name=plane.name,
        format=plane.fmt,
        rows=plane.rows,
        cols=plane.cols,
        dtype=dtype,
        stored=stored,
        fixed_bytes=fixed.nbytes,
        words=words,
        bases=_bases(plane.fmt, fixed, plane.cols),
        scales=scales,
        faults=faults,
    )


def _bases(fmt: CsfFormat, fixed: NDArray[np.uint8], cols: int) -> NDArray[np.uint8]:
    return fixed.reshape(-1, fmt.slab_bytes(cols))[:, :SLAB_ROWS].reshape(-1)
