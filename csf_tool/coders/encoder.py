"""One interface over the CPU and the GPU: dense scales in, streams out."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from csf_tool.checkpoint.plane_tables import DensePlane
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.codec import reference
from csf_tool.coders.coded import CodedPlane, PlaneScales
from csf_tool.devices import choose_cuda


def read_scales(readers: Readers, planes: Iterable[DensePlane]) -> Iterator[PlaneScales]:
    """Read the scales of each plane."""
    for plane in planes:
        tensor = plane.scale.tensor
        data = readers[plane.scale.shard].read(tensor.begin, tensor.end)
        yield PlaneScales(plane, np.frombuffer(data, np.uint8).reshape(plane.rows, plane.cols))


class Encoder(Protocol):
    """Encodes planes in the order in which they come, by the format's rule: lowest best base."""

    @property
    def device(self) -> str:
        """The device's name for reports."""

    def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
        """The streams of each plane, in order. It may read ahead by a bounded number of planes."""


class NumpyEncoder:
    """Encodes on the CPU, one plane at a time."""

    device = "CPU (numpy)"

    def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
        """See `Encoder.encode`."""
        for p in planes:
            yield CodedPlane(PlaneStreams(p.plane, *reference.encode(p.plane.fmt, p.scales)), p.scales)


def make_encoder(device: str, tell: Callable[[str], None] = lambda _: None) -> Encoder:
    """The encoder for `--device auto|cpu|cuda[:N]`. `tell` is called with the reason where auto takes the CPU.

    Raises:
        UsageError: there is no such device name.
        EnvironmentFault: the device was asked for by name and cannot be used here.
    """
    cuda = choose_cuda(device, "encoding", tell)
    if cuda is None:
        return NumpyEncoder()
    from csf_tool.coders.gpu_codec import GpuEncoder

    return GpuEncoder(cuda)
