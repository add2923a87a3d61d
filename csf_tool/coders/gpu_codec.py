"""Decoding and encoding planes of files on the GPU, in batches.

Decoding goes through pinned buffers, so that the GPU never waits on Python: while one batch is being copied
and decoded, the next is being read. Three sets of buffers go round: one being filled, one on the GPU, one
whose planes the consumer is looking at.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import TypeVar

import numpy as np
import torch

from csf_tool.checkpoint.streams import PlaneStreams
from csf_tool.codec.formats import EXCEPTION_BYTES, CsfFormat
from csf_tool.coders.batches import batches
from csf_tool.coders.decoder import Decoded
from csf_tool.coders.encoder import Encoded, PlaneScales
from csf_tool.gpu import compress_csf_scales, decompress_csf_scales, prepare_csf_scales

BATCH_BYTES = 32 << 20
"""Dense bytes of a batch: large enough that launches and copies run at full rate, small beside host memory."""

_SLOTS = 3
_ALIGNMENT = 16

Geometry = tuple[CsfFormat, int, int]


P = TypeVar("P", PlaneStreams, PlaneScales)


def _by_geometry(planes: Iterable[P]) -> dict[Geometry, list[P]]:
    """Planes of one format, rows and columns: what one launch takes."""
    groups: dict[Geometry, list[P]] = {}
    for p in planes:
        groups.setdefault((p.plane.fmt, p.plane.rows, p.plane.cols), []).append(p)
    return groups


class _Batch:
    """Planes to decode together, in the order in which they came and by geometry."""

    def __init__(self, planes: list[PlaneStreams]) -> None:
        self.planes = planes
        self.groups = _by_geometry(planes)
        self.dense_bytes = sum(s.plane.dense_bytes for s in planes)


class _Slot:
    """Host and device buffers of one batch in flight; they grow to the largest batch and are then reused."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = device.type == "cuda"
        self._buffers: dict[str, torch.Tensor] = {}
        self.done = torch.cuda.Event() if self._pinned else None

    def buffer(self, name: str, nbytes: int, *, host: bool) -> torch.Tensor:
        """At least `nbytes` bytes, kept under `name`."""
        found = self._buffers.get(name)
        if found is None or found.numel() < nbytes:
            if host:
                found = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._pinned)
            else:
                found = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
            self._buffers[name] = found
        return found[:nbytes]


class GpuDecoder:
    """Decodes on a CUDA device in batches (on the CPU through Triton's interpreter, in tests)."""

    def __init__(self, device: str, batch_bytes: int = BATCH_BYTES) -> None:
        self._torch_device = torch.device(device)
        self._batch_bytes = batch_bytes
        self.device = _described(self._torch_device)

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[Decoded]:
        """See `csf_tool.coders.decoder.Decoder.decode`. A plane's scales are valid until a batch later."""
        slots = cycle([_Slot(self._torch_device) for _ in range(_SLOTS)])
        waiting: tuple[_Slot, _Batch] | None = None
        for planes in batches(streams, lambda s: s.plane.dense_bytes, self._batch_bytes):
            slot, batch = next(slots), _Batch(planes)
            self._launch(slot, batch)
            if waiting:
                yield from _finished(*waiting)
            waiting = slot, batch
        if waiting:
            yield from _finished(*waiting)

    def _launch(self, slot: _Slot, batch: _Batch) -> None:
        """Queue the copies and kernels of a batch; nothing here waits for the GPU."""
        host, layout = _stage(slot, batch)
        on_device = slot.buffer("streams", len(host), host=False)
        on_device.copy_(host, non_blocking=True)
        dense = slot.buffer("dense", batch.dense_bytes, host=False)
        at = 0
        for (fmt, rows, cols), staged in layout.items():
            scales = prepare_csf_scales(
                fmt,
                on_device[staged.fixed],
                on_device[staged.exceptions].view(torch.int32),
                staged.counts,
                rows=rows,
                cols=cols,
                validate=False,  # PlaneStreams.faults has seen every plane
                reused=False,
            )
            nbytes = len(staged.counts) * rows * cols
            decompress_csf_scales(scales, out=dense[at : at + nbytes])
            at += nbytes
        slot.buffer("result", batch.dense_bytes, host=True).copy_(dense, non_blocking=True)
        if slot.done is not None:
            slot.done.record()


class GpuEncoder:
    """Encodes on a CUDA device in batches (on the CPU through Triton's interpreter, in tests)."""

    def __init__(self, device: str, batch_bytes: int = BATCH_BYTES) -> None:
        self._torch_device = torch.device(device)
        self._batch_bytes = batch_bytes
        self.device = _described(self._torch_device)

    def encode(self, planes: Iterable[PlaneScales]) -> Iterator[Encoded]:
        """See `csf_tool.coders.encoder.Encoder.encode`."""
        for batch in batches(planes, lambda p: p.scales.nbytes, self._batch_bytes):
            yield from self._encode(batch)

    def _encode(self, batch: list[PlaneScales]) -> Iterator[Encoded]:
        streams: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for (fmt, _, _), members in _by_geometry(batch).items():
            dense = torch.from_numpy(np.stack([p.scales for p in members])).to(self._torch_device)
            encoded = compress_csf_scales(fmt, dense)
            fixed = encoded.fixed.cpu().numpy()
            words = encoded.exceptions.view(torch.int32).cpu().numpy().view("<u4")
            parts = np.split(words, np.cumsum(encoded.counts)[:-1])
            streams |= {p.plane.name: (f, w) for p, f, w in zip(members, fixed, parts, strict=True)}
        for p in batch:
            yield Encoded(p.plane, p.scales, *streams[p.plane.name])


def _described(device: torch.device) -> str:
    if device.type == "cuda":
        index = device.index or 0
        return f"cuda:{index} ({torch.cuda.get_device_name(index)})"
    return f"{device} (Triton interpreter)"


@dataclass(frozen=True)
class _Staged:
    """Where the streams of one geometry lie in a slot's staging buffer."""

    fixed: slice
    exceptions: slice
    counts: list[int]


def _stage(slot: _Slot, batch: _Batch) -> tuple[torch.Tensor, dict[Geometry, _Staged]]:
    """All streams of a batch in one pinned buffer, so that one copy brings them to the device."""
    layout: dict[Geometry, _Staged] = {}
    at = 0
    for geometry, planes in batch.groups.items():
        counts = [len(s.exceptions) for s in planes]
        fixed = slice(at, at + sum(s.fixed.nbytes for s in planes))
        begin = _aligned(fixed.stop)
        exceptions = slice(begin, begin + EXCEPTION_BYTES * sum(counts))
        layout[geometry] = _Staged(fixed, exceptions, counts)
        at = _aligned(exceptions.stop)
    host = slot.buffer("staged", at, host=True)
    memory = host.numpy()
    for geometry, planes in batch.groups.items():
        staged = layout[geometry]
        np.concatenate([s.fixed.reshape(-1) for s in planes], out=memory[staged.fixed])
        np.concatenate([s.exceptions for s in planes], out=memory[staged.exceptions].view("<u4"))
    return host, layout


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT


def _finished(slot: _Slot, batch: _Batch) -> Iterator[Decoded]:
    """The planes of a batch in the order in which they came, once the GPU is done with it."""
    if slot.done is not None:
        slot.done.synchronize()
    dense = slot.buffer("result", batch.dense_bytes, host=True).numpy()
    places = {}
    at = 0
    for planes in batch.groups.values():
        for s in planes:
            places[s.plane.name] = at
            at += s.plane.dense_bytes
    for s in batch.planes:
        begin = places[s.plane.name]
        yield Decoded(s, dense[begin : begin + s.plane.dense_bytes].reshape(s.plane.rows, s.plane.cols))
