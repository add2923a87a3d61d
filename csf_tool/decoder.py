"""One interface over the CPU and the GPU: checked streams in, dense bytes out, on the chosen device."""

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from csf_tool.checkpoint.model import Plane
from csf_tool.checkpoint.streams import PlaneStreams
from csf_tool.codec import reference
from csf_tool.errors import EnvironmentFault, UsageError

SAMPLE_EVERY = 64
"""`--cross-check sample` compares one plane of this many with the CPU."""

_INSTALL = "pip install 'csf-tool[gpu]'"
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files that a driver makes (NVIDIA; WSL; AMD): torch takes seconds to import, so look here first."""


class CrossCheck(StrEnum):
    """How many planes that the GPU decodes are compared with the CPU's decode."""

    ALL = "all"
    SAMPLE = "sample"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Decoded:
    """A plane's streams and its dense scales, `[rows, cols]` uint8."""

    streams: PlaneStreams
    scales: NDArray[np.uint8]

    @property
    def plane(self) -> Plane:
        """The plane."""
        return self.streams.plane


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
            yield Decoded(s, _decode_on_cpu(s))


class CrossCheckedDecoder:
    """Another decoder, whose planes are compared with the CPU's as they come out."""

    def __init__(self, inner: Decoder, every: int) -> None:
        self._inner = inner
        self._every = every
        share = "every plane" if every == 1 else f"one plane in {every}"
        self.device = f"{inner.device}, {share} compared with the CPU"

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[Decoded]:
        """See `Decoder.decode`.

        Raises:
            EnvironmentFault: the device gives other bytes than the CPU.
        """
        for i, decoded in enumerate(self._inner.decode(streams)):
            if i % self._every == 0 and not np.array_equal(decoded.scales, _decode_on_cpu(decoded.streams)):
                raise EnvironmentFault(
                    f"{decoded.plane.name}: {self._inner.device} decodes other bytes than the CPU: do not trust this "
                    "device or its driver; --device cpu works without it"
                )
            yield decoded


def _decode_on_cpu(s: PlaneStreams) -> NDArray[np.uint8]:
    return reference.decode(s.plane.fmt, s.fixed, s.exceptions, rows=s.plane.rows, cols=s.plane.cols)


def make_decoder(
    device: str, cross_check: CrossCheck = CrossCheck.NONE, tell: Callable[[str], None] = lambda _: None
) -> Decoder:
    """The decoder for `--device auto|cpu|cuda[:N]`. `tell` hears when auto ends up on the CPU, and why.

    Raises:
        UsageError: there is no such device name.
        EnvironmentFault: the device was asked for by name and cannot be used here.
    """
    if device == "cpu":
        return NumpyDecoder()
    if device != "auto" and not _is_cuda_name(device):
        raise UsageError(f"--device {device}: give auto, cpu, cuda or cuda:N")
    reason = _why_no_gpu(device)
    if reason and device != "auto":
        raise EnvironmentFault(f"--device {device}: {reason}")
    if reason:
        tell(f"decoding on the CPU: {reason}")
        return NumpyDecoder()
    from csf_tool.gpu_decoder import GpuDecoder

    gpu = GpuDecoder("cuda" if device == "auto" else device)
    if cross_check is CrossCheck.NONE:
        return gpu
    return CrossCheckedDecoder(gpu, 1 if cross_check is CrossCheck.ALL else SAMPLE_EVERY)


def _is_cuda_name(device: str) -> bool:
    name, _, index = device.partition(":")
    return name == "cuda" and (index.isdecimal() or device == "cuda")


def _why_no_gpu(device: str) -> str | None:
    """Why `device` cannot decode, or None when it can."""
    if missing := [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]:
        return f"{' and '.join(missing)} not installed ({_INSTALL} adds the GPU)"
    if device == "auto" and sys.platform == "linux" and not any(Path(f).exists() for f in _GPU_FILES):
        return "no GPU found"
    import torch

    if not torch.cuda.is_available():
        return "torch sees no GPU (is a CUDA build of it installed, and the driver running?)"
    index = int(device.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        return f"torch sees {torch.cuda.device_count()} GPUs, numbered from 0"
    return None
