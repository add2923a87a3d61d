"""One interface over the CPU and the GPU: checked streams in, dense bytes out, on the chosen device."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from csf_tool.checkpoint.streams import PlaneStreams
from csf_tool.choices import CrossCheck
from csf_tool.coders.coded import CodedPlane
from csf_tool.devices import named_cuda


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
            yield CodedPlane(s, s.decode(), agreed=True)


def make_decoder(device: str, cross_check: CrossCheck = CrossCheck.ALL) -> Decoder:
    """The decoder for `--device auto|cpu|cuda[:N]`. `auto` is the CPU: see `csf_tool.coders.gpu_worth`.

    What is written is decoded with all planes compared: shards that were finished before one is found wrong stay.

    Raises:
        UsageError: there is no such device name.
        EnvironmentFault: the device was asked for by name and cannot be used here.
    """
    cuda = named_cuda(device)
    if cuda is None:
        return NumpyDecoder()
    from csf_tool.coders.cross_checked import SAMPLE_EVERY, CrossCheckedDecoder
    from csf_tool.coders.gpu_codec import GpuDecoder

    gpu = GpuDecoder(cuda)
    if cross_check is CrossCheck.NONE:
        return gpu
    return CrossCheckedDecoder(gpu, 1 if cross_check is CrossCheck.ALL else SAMPLE_EVERY)
