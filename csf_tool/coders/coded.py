"""The types that decoders and encoders take and give."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from csf_tool.checkpoint.plane_tables import AnyPlane, DensePlane
from csf_tool.checkpoint.streams import PlaneStreams


@dataclass(frozen=True, slots=True)
class PlaneScales:
    """A plane that is stored dense, with its scales in memory: `[rows, cols]` uint8."""

    plane: DensePlane
    scales: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CodedPlane:
    """A plane as streams and as dense scales: one was given to a decoder or encoder, which made the other."""

    streams: PlaneStreams
    scales: NDArray[np.uint8]
    """`[rows, cols]` uint8."""
    agreed: bool = False
    """Whether the CPU has decoded the streams, and to these scales."""

    @property
    def plane(self) -> AnyPlane:
        """The plane."""
        return self.streams.plane
