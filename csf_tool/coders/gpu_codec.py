"""Decoding and encoding planes of files on the GPU, in batches.

Decoding goes through pinned memory, so that the GPU never waits on Python: while one batch is being copied and
decoded, the next is being read. Every batch asks for its own buffers. Torch keeps those that are released, pinned
ones as soon as their copies are done, and gives them out again.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from csf_tool.checkpoint.streams import PlaneStreams
from csf_tool.codec.formats import EXCEPTION_BYTES, CsfFormat
from csf_tool.coders.batches import batches
from csf_tool.coders.coded import CodedPlane, PlaneScales
from csf_tool.coders.device_faults import named_for
from csf_tool.gpu.encode import compress_csf_scales
from csf_tool.gpu.scales import decompress_csf_scales, prepare_csf_scales

BATCH_BYTES = 32 << 20
"""Dense bytes of a batch: large enough that launches and copies run at full rate, small beside host memory."""

P = TypeVar("P", PlaneStreams, PlaneScales)


def _by_geometry(planes: Iterable[P]) -> dict[tuple[CsfFormat, int, int], list[P]]:
    """Planes grouped by format, rows and columns: a group is one launch."""
    groups: dict[tuple[CsfFormat, int, int], list[P]] = {}
    for p in planes:
        groups.setdefault((p.plane.fmt, p.plane.rows, p.plane.cols), []).append(p)
    return groups


class _InFlight(NamedTuple):
    """A batch that the device works on."""

    planes: list[PlaneStreams]
    scales: dict[str, NDArray[np.uint8]]
    """Dense scales by plane name, in host memory to which the device is still writing."""
    done: torch.cuda.Event | None
    device: str
    """The device's name for reports."""

    def finished(self) -> Iterator[CodedPlane]:
        """The planes in the order in which they came, once the device is done."""
        if self.done is not None:
            with named_for(self.device):
                self.done.synchronize()
        for s in self.planes:
            yield CodedPlane(s, self.scales[s.plane.name])


class GpuDecoder:
    """Decodes on a CUDA device in batches (on the CPU through Triton's interpreter, in tests)."""

    def __init__(self, device: str, batch_bytes: int = BATCH_BYTES) -> None:
        self._torch_device = torch.device(device)
        self._batch_bytes = batch_bytes
        self.device = _described(self._torch_device)

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[CodedPlane]:
        """See `csf_tool.coders.decoder.Decoder.decode`.

        Raises:
            EnvironmentFault: the device fails.
        """
        waiting: _InFlight | None = None
        for planes in batches(streams, lambda s: s.plane.dense_bytes, self._batch_bytes):
            with named_for(self.device):
                launched = self._launch(planes)
            if waiting:
                yield from waiting.finished()
            waiting = launched
        if waiting:
            yield from waiting.finished()

    def _launch(self, planes: list[PlaneStreams]) -> _InFlight:
        """Queue the copies and kernels of a batch; nothing here waits for the GPU."""
        scales: dict[str, NDArray[np.uint8]] = {}
        for (fmt, rows, cols), members in _by_geometry(planes).items():
            dense = self._decoded(fmt, rows, cols, members).numpy()
            scales |= zip((s.plane.name for s in members), dense, strict=True)
        done = None
        if self._torch_device.type == "cuda":
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self._torch_device))
        return _InFlight(planes, scales, done, self.device)

    def _decoded(self, fmt: CsfFormat, rows: int, cols: int, planes: Sequence[PlaneStreams]) -> torch.Tensor:
        """Host memory `[planes, rows, cols]` to which the dense scales of one geometry will be written."""
        counts = [len(s.exceptions) for s in planes]
        fixed_bytes = len(planes) * fmt.fixed_bytes(rows, cols)  # a multiple of 16, which aligns what follows
        host = self._host_memory(fixed_bytes + EXCEPTION_BYTES * sum(counts))
        np.concatenate([s.fixed.reshape(-1) for s in planes], out=host.numpy()[:fixed_bytes])
        np.concatenate([s.exceptions for s in planes], out=host.numpy()[fixed_bytes:].view("<u4"))
        streams = host.to(self._torch_device, non_blocking=True)
        scales = prepare_csf_scales(
            fmt,
            streams[:fixed_bytes],
            streams[fixed_bytes:].view(torch.int32),
            counts,
            rows=rows,
            cols=cols,
            validate=False,  # PlaneStreams.faults has seen every plane
            reused=False,
        )
        dense = decompress_csf_scales(scales).view(torch.uint8)
        result = self._host_memory(dense.nbytes).view(dense.shape)
        return result.copy_(dense, non_blocking=True)

    def _host_memory(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=self._torch_device.type == "cuda")


class GpuEncoder:
    """Encodes on a CUDA device in batches (on the CPU through Triton's interpreter, in tests)."""

    def __init__(self, device: str, batch_bytes: int = BATCH_BYTES) -> None:
        self._torch_device = torch.device(device)
        self._batch_bytes = batch_bytes
        self.device = _described(self._torch_device)

    def expect(self, nbytes: int, jobs: int) -> None:
        """See `csf_tool.coders.encoder.Encoder.expect`."""

    def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
        """See `csf_tool.coders.encoder.Encoder.encode`.

        Raises:
            EnvironmentFault: the device fails.
        """
        for batch in batches(planes, lambda p: p.scales.nbytes, self._batch_bytes):
            with named_for(self.device):
                encoded = self._encode(batch)
            yield from encoded

    def _encode(self, batch: list[PlaneScales]) -> list[CodedPlane]:
        streams: dict[str, PlaneStreams] = {}
        for (fmt, _, _), members in _by_geometry(batch).items():
            dense = torch.from_numpy(np.stack([p.scales for p in members])).to(self._torch_device)
            encoded = compress_csf_scales(fmt, dense)
            parts = zip(members, encoded.fixed.cpu(), encoded.words.cpu().split(encoded.counts), strict=True)
            for p, fixed, words in parts:
                streams[p.plane.name] = PlaneStreams(p.plane, fixed.numpy(), words.numpy().view("<u4"))
        return [CodedPlane(streams[p.plane.name], p.scales) for p in batch]


def _described(device: torch.device) -> str:
    if device.type == "cuda":
        index = device.index or 0
        with named_for(str(device)):
            return f"cuda:{index} ({torch.cuda.get_device_name(index)})"
    return f"{device} (Triton interpreter)"
