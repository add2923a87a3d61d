"""One interface over the CPU and the GPU: checked streams in, dense bytes out, on the chosen device."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from csf_tool.checkpoint.model import Plane
from csf_tool.checkpoint.streams import PlaneStreams
from csf_tool.codec import reference


@dataclass(frozen=True, slots=True)
class Decoded:
    """A plane and its dense scales, `[rows, cols]` uint8."""

    plane: Plane
    scales: NDArray[np.uint8]


class Decoder(Protocol):
    """Decodes planes in the order in which they come."""

    @property
    def device(self) -> str:
        """What it runs on, for reports."""

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[Decoded]:
        """The dense scales of each plane, in order.

        The streams must have passed `PlaneStreams.faults`. It may read ahead of what it has given out, by a
        bounded number of planes.
        """


class NumpyDecoder:
    """Decodes on the CPU, one plane at a time."""

    device = "CPU (numpy)"

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[Decoded]:
        """See `Decoder.decode`."""
        for s in streams:
            plane = s.plane
            scales = reference.decode(plane.fmt, s.fixed, s.exceptions, rows=plane.rows, cols=plane.cols)
            yield Decoded(plane, scales)
