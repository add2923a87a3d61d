"""The streams of planes of one geometry on a device: brought there as they are stored, and checked there."""

from collections.abc import Iterator, Sequence

import torch

from csf_tool.checkpoint.plane_tables import AnyPlane, Plane
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.codec.formats import EXCEPTION_BYTES, CsfFormat
from csf_tool.errors import EnvironmentFault
from csf_tool.gpu.streams import CsfStreams
from csf_tool.loading.staging import Transfer

StackPlane = Plane | PlaneStreams
"""A plane of a stack: stored as streams, or encoded here to streams in memory."""


def room_for(planes: Sequence[StackPlane], device: torch.device) -> CsfStreams:
    """Streams of planes of one format and geometry, in memory on a device that `fill` is to fill."""
    first = _plane_of(planes[0])
    fmt, rows, cols = first.fmt, first.rows, first.cols
    counts = [_exceptions_of(plane) for plane in planes]
    fixed = torch.empty(len(planes) * fmt.fixed_bytes(rows, cols), dtype=torch.uint8, device=device)
    words = torch.empty(sum(counts), dtype=torch.int32, device=device)
    return CsfStreams.of(fmt, fixed, words, counts, rows, cols)


def make_ready(fmt: CsfFormat, rows: int, cols: int, device: torch.device) -> None:
    """Import, compile and load what decodes planes of a geometry on a device, by decoding none of them."""
    from csf_tool.gpu.scales import decompress_csf_scales, prepared

    fixed, words = (torch.empty(0, dtype=dtype, device=device) for dtype in (torch.uint8, torch.int32))
    decompress_csf_scales(prepared(CsfStreams.of(fmt, fixed, words, [], rows, cols), reused=False))


def _plane_of(plane: StackPlane) -> AnyPlane:
    return plane if isinstance(plane, Plane) else plane.plane


def _exceptions_of(plane: StackPlane) -> int:
    return plane.exception_count if isinstance(plane, Plane) else len(plane.exceptions)


def fill(streams: CsfStreams, planes: Sequence[StackPlane]) -> Iterator[Transfer]:
    """Copy encoded planes to their places, and yield the transfers that bring stored ones to theirs."""
    fixed, words = streams.fixed.view(-1), streams.words
    word_bytes = words.view(torch.uint8)
    fixed_bytes = len(fixed) // len(planes)
    for i, (plane, end) in enumerate(zip(planes, streams.ends, strict=True)):
        begin = end - _exceptions_of(plane)
        if isinstance(plane, Plane):
            yield Transfer(plane.fixed, fixed, i * fixed_bytes)
            yield Transfer(plane.exceptions, word_bytes, EXCEPTION_BYTES * begin)
        else:
            fixed[i * fixed_bytes : (i + 1) * fixed_bytes] = torch.from_numpy(plane.fixed.reshape(-1))
            words[begin:end] = torch.from_numpy(plane.exceptions.view("<i4"))


def check(streams: CsfStreams, planes: Sequence[StackPlane]) -> None:
    """Check filled streams against the rules of the format, on their device.

    Raises:
        StreamError: a stored plane breaks a rule. The message is the CPU's, which names tensor and place.
        EnvironmentFault: the device finds a fault where the CPU finds none.
    """
    try:
        streams.check()
    except ValueError as fault:
        with Readers() as readers:
            for plane in planes:
                if isinstance(plane, Plane):
                    readers.streams(plane).require_decodable()
        raise EnvironmentFault(
            f"{_plane_of(planes[0]).name} and others: the device finds that {fault}, but the CPU does not: "
            "do not trust this device or its driver"
        ) from fault
