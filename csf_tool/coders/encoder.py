"""One interface over the CPU and the GPU: dense scales in, streams out."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from csf_tool.checkpoint.plane_tables import DensePlane
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.codec import reference
from csf_tool.coders.coded import CodedPlane, PlaneScales
from csf_tool.coders.gpu_worth import gpu_pays
from csf_tool.devices import choose_cuda, named_cuda


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

    def expect(self, nbytes: int, jobs: int) -> None:
        """Prepare for so many bytes of scales, which so many jobs will encode side by side."""

    def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
        """The streams of each plane, in order. It may read ahead by a bounded number of planes."""


class NumpyEncoder:
    """Encodes on the CPU, one plane at a time."""

    device = "CPU (numpy)"

    def expect(self, nbytes: int, jobs: int) -> None:
        """See `Encoder.expect`."""

    def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
        """See `Encoder.encode`."""
        for p in planes:
            yield CodedPlane(PlaneStreams(p.plane, *reference.encode(p.plane.fmt, p.scales)), p.scales)


class AutoEncoder:
    """Encodes on the CPU, until it is to expect so much that a GPU pays."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """`tell` is called with the reason where a GPU would pay and cannot be used."""
        self._tell = tell
        self._chosen: Encoder = NumpyEncoder()
        self._is_open = True

    @property
    def device(self) -> str:
        """See `Encoder.device`."""
        return self._chosen.device

    def expect(self, nbytes: int, jobs: int) -> None:
        """See `Encoder.expect`. A GPU that has been started stays chosen, and one that cannot be used is told once."""
        if self._is_open and gpu_pays(nbytes, jobs):
            self._is_open = False
            if cuda := choose_cuda("auto", "encoding", self._tell):
                self._chosen = _gpu_encoder(cuda)

    def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
        """See `Encoder.encode`."""
        return self._chosen.encode(planes)


def make_encoder(device: str, tell: Callable[[str], None] = lambda _: None) -> Encoder:
    """The encoder for `--device auto|cpu|cuda[:N]`; see `AutoEncoder` for `tell`.

    Raises:
        UsageError: there is no such device name.
        EnvironmentFault: the device was asked for by name and cannot be used here.
    """
    if device == "auto":
        return AutoEncoder(tell)
    cuda = named_cuda(device)
    return _gpu_encoder(cuda) if cuda else NumpyEncoder()


def _gpu_encoder(cuda: str) -> Encoder:
    from csf_tool.coders.gpu_codec import GpuEncoder

    return GpuEncoder(cuda)
