"""Planes of one geometry decoded on the CPU together, one upon another as a single tall plane.

What a call of numpy costs, and Python's lock where an engine works beside it, is paid once for many planes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.streams import Readers
from csf_tool.codec import reference
from csf_tool.codec.formats import EXCEPTION_BYTES
from csf_tool.coders.decoder import NumpyDecoder

_STACK_BYTES = 1 << 20
"""Dense bytes that are decoded together: more than that does not stay in a core's caches."""


def decode_planes(planes: Sequence[Plane], readers: Readers, out: NDArray[np.uint8]) -> None:
    """Read, check and decode planes of one format and geometry, each to a row of `out` `[n, rows * cols]`.

    Raises:
        StreamError: the streams of a plane break a rule of the format.
        CheckpointError: a shard cannot be read.
        EnvironmentFault: the system cannot read it.
    """
    step = max(1, _STACK_BYTES // planes[0].dense_bytes)
    for at in range(0, len(planes), step):
        part, dense = planes[at : at + step], out[at : at + step]
        if not _decode_together(part, readers, dense):
            streams = (readers.streams(plane).require_decodable() for plane in part)  # says which breaks what
            for row, decoded in zip(dense, NumpyDecoder().decode(streams), strict=True):
                row[:] = decoded.scales.reshape(-1)


def _decode_together(planes: Sequence[Plane], readers: Readers, out: NDArray[np.uint8]) -> bool:
    """Decode planes together. False where one of them breaks a rule: then `out` is not to be used."""
    fmt, rows, cols = planes[0].fmt, planes[0].rows, planes[0].cols
    nbytes = fmt.fixed_bytes(rows, cols)
    if any(plane.fixed_bytes != nbytes or plane.exception_bytes % EXCEPTION_BYTES for plane in planes):
        return False
    counts = [plane.exception_count for plane in planes]
    fixed = np.empty((len(planes), nbytes), np.uint8)
    words = np.empty(sum(counts), "<u4")
    _read(planes, readers, fixed, words)
    return reference.decode_stack(fmt, fixed, words, counts, out.reshape(len(planes), rows, cols))


def _read(planes: Sequence[Plane], readers: Readers, fixed: NDArray[np.uint8], words: NDArray[np.uint32]) -> None:
    """Read the streams of planes, those that lie side by side by one call."""
    rows, lists = fixed.reshape(-1).data, words.view(np.uint8).data
    done = 0
    for i, plane in enumerate(planes):
        views = rows[i * fixed.shape[1] : (i + 1) * fixed.shape[1]], lists[done : done + plane.exception_bytes]
        done += plane.exception_bytes
        if plane.fixed.shard is plane.exceptions.shard and plane.fixed.tensor.end == plane.exceptions.tensor.begin:
            readers[plane.fixed.shard].read_into_each(views, plane.fixed.tensor.begin)
        else:
            for (shard, tensor), view in zip((plane.fixed, plane.exceptions), views, strict=True):
                readers[shard].read_into(view, tensor.begin)
