"""One interface over the CPU and the GPU: checked streams in, dense bytes out, on the chosen device."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from csf_tool.checkpoint.streams import PlaneStreams
from csf_tool.choices import CrossCheck
from csf_tool.coders.coded import CodedPlane
from csf_tool.devices import choose_cuda
from csf_tool.errors import EnvironmentFault

SAMPLE_EVERY = 64
"""`--cross-check sample` compares one plane of this many with the CPU."""


class Decoder(Protocol):
    """Decodes planes in the order in which they come."""

    @property
    def device(self) -> str:
        """The device's name for reports."""

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[CodedPlane]:
        """The dense scales of each plane, in order.

        The streams must have passed `PlaneStreams.faults`. It may read ahead, by a bounded number of
        planes.
        """


class NumpyDecoder:
    """Decodes on the CPU, one plane at a time."""

    device = "CPU (numpy)"

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[CodedPlane]:
        """See `Decoder.decode`."""
        for s in streams:
            yield CodedPlane(s, s.decode())


class CrossCheckedDecoder:
    """Compares the planes that another decoder decodes with the CPU's."""

    def __init__(self, inner: Decoder, every: int) -> None:
        self._inner = inner
        self._every = every
        share = "every plane" if every == 1 else f"one plane in {every}"
        self.device = f"{inner.device}, {share} compared with the CPU"

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[CodedPlane]:
        """See `Decoder.decode`.

        Raises:
            EnvironmentFault: the device gives other bytes than the CPU.
        """
        for i, decoded in enumerate(self._inner.decode(streams)):
            if i % self._every == 0 and not np.array_equal(decoded.scales, decoded.streams.decode()):
                raise EnvironmentFault(
                    f"{decoded.plane.name}: {self._inner.device} gives other bytes than the CPU: do not trust this "
                    "device or its driver; --device cpu works without it"
                )
            yield decoded


def make_decoder(
    device: str, cross_check: CrossCheck = CrossCheck.NONE, tell: Callable[[str], None] = lambda _: None
) -> Decoder:
    """The decoder for `--device auto|cpu|cuda[:N]`. `tell` is called with the reason where auto takes the CPU.

    Raises:
        UsageError: there is no such device name.
        EnvironmentFault: the device was asked for by name and cannot be used here.
    """
    cuda = choose_cuda(device, "decoding", tell)
    if cuda is None:
        return NumpyDecoder()
    from csf_tool.coders.gpu_codec import GpuDecoder

    gpu = GpuDecoder(cuda)
    if cross_check is CrossCheck.NONE:
        return gpu
    return CrossCheckedDecoder(gpu, 1 if cross_check is CrossCheck.ALL else SAMPLE_EVERY)
