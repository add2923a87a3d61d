"""Bringing stored tensors to a device: read by several threads, through a little pinned memory.

A GPU copies from pinned memory at full rate and by itself. So two pinned slots take turns: while one is copied,
the other is filled. In a slot, bytes are ordered by the buffer that they go to, so that the thousands of small
tensors of a layer need a handful of copies. A device that is the CPU is read into directly.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import cycle
from typing import NamedTuple

import torch

from csf_tool.checkpoint.stored import Located, Shard
from csf_tool.checkpoint.streams import Readers
from csf_tool.closing import Closing
from csf_tool.neighbours import runs

SLOT_BYTES = 64 << 20
"""Pinned bytes of a slot. Two of them are all that is pinned."""

READ_THREADS = 8
"""Threads that read: on an H200 with 16 cores, more did not help, and smaller slots were slower."""

_SLOTS = 2
_PIECE_BYTES = 4 << 20
_ALONE_BYTES = 1 << 20
"""Most bytes that one thread reads as fast as several, which must be woken first."""


class Transfer(NamedTuple):
    """A stored tensor, and where its bytes go: to offset `at` of a contiguous uint8 buffer."""

    source: Located
    buffer: torch.Tensor
    at: int


class _Piece(NamedTuple):
    """A part of a transfer that fits a slot: `nbytes` bytes from `begin` of the shard on."""

    shard: Shard
    begin: int
    nbytes: int
    buffer: torch.Tensor
    at: int


class _Slot:
    """Host memory that is filled, and copied to the device while the other slot is filled."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._device = device
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self.memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")

    def wait(self) -> None:
        """Wait until its copies are done, and it can be filled again."""
        if self._copied:
            self._copied.synchronize()

    def record_copies(self) -> None:
        """Record that its copies are queued: `wait` waits for them."""
        if self._copied:
            self._copied.record(torch.cuda.current_stream(self._device))


class Stager(Closing):
    """Brings stored tensors to one device. A context manager: it holds threads.

    Copies to a GPU are queued on its current stream; the sources have been read when `run` returns.
    """

    def __init__(
        self,
        device: torch.device,
        slot_bytes: int = SLOT_BYTES,
        threads: int = READ_THREADS,
        *,
        through_slots: bool | None = None,
    ) -> None:
        """Go through slots to a GPU, and not to the CPU, unless `through_slots` says otherwise."""
        self._device = device
        self._slot_bytes = slot_bytes
        self._through_slots = device.type == "cuda" if through_slots is None else through_slots
        self._slots: Iterator[_Slot] | None = None  # pinned when first needed
        # A reader has one position in its file, so every thread has its own.
        self._readers = [Readers() for _ in range(threads)]
        self._pool = ThreadPoolExecutor(len(self._readers), thread_name_prefix="csf-tool-read")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _close_files(self) -> None:
        for readers in self._readers:
            readers.close()

    def run(self, transfers: Iterable[Transfer]) -> None:
        """Carry out transfers, quickest in the order in which their sources are stored.

        Raises:
            CheckpointError: a source cannot be read.
            EnvironmentFault: the system cannot read it, or it changed since its header was read.
        """
        try:
            for batch in _batches(transfers, self._slot_bytes):
                if self._through_slots:
                    self._slots = self._slots or cycle([_Slot(self._slot_bytes, self._device) for _ in range(_SLOTS)])
                    self._copy(batch, next(self._slots))
                else:
                    self._read_directly(batch)
        finally:
            self._close_files()  # each thread has opened every shard: hundreds would stay open

    def _copy(self, batch: list[_Piece], slot: _Slot) -> None:
        """Fill the slot, and queue its copies."""
        rank = {id(piece.buffer): i for i, piece in enumerate(batch)}
        order = sorted(range(len(batch)), key=lambda i: (rank[id(batch[i].buffer)], batch[i].at))
        slot.wait()
        memory = slot.memory.numpy().data
        places = [memory] * len(batch)
        at = 0
        for i in order:
            places[i] = memory[at : at + batch[i].nbytes]
            at += batch[i].nbytes
        self._read(batch, places)
        at = 0
        for run in runs((batch[i] for i in order), _lands_after):
            begin, end = run[0].at, run[-1].at + run[-1].nbytes
            run[0].buffer[begin:end].copy_(slot.memory[at : at + end - begin], non_blocking=True)
            at += end - begin
        slot.record_copies()

    def _read_directly(self, batch: list[_Piece]) -> None:
        """Read into the buffers themselves."""
        views = {id(piece.buffer): piece.buffer.numpy().data for piece in batch}
        self._read(batch, [views[id(piece.buffer)][piece.at : piece.at + piece.nbytes] for piece in batch])

    def _read(self, pieces: list[_Piece], places: list[memoryview]) -> None:
        """Read pieces to their places in host memory, each thread a share of about as many bytes."""
        total = sum(piece.nbytes for piece in pieces)
        if total <= _ALONE_BYTES:
            _read_share(self._readers[0], list(zip(pieces, places, strict=True)))
            return
        shares: list[list[tuple[_Piece, memoryview]]] = [[] for _ in self._readers]
        done = 0
        for piece, place in zip(pieces, places, strict=True):
            shares[done * len(shares) // total].append((piece, place))
            done += piece.nbytes
        reads = [self._pool.submit(_read_share, *each) for each in zip(self._readers, shares, strict=True)]
        try:
            for read in reads:
                read.result()
        finally:
            wait(reads)  # where one fails, too: files are closed then, and readers used again


def _read_share(readers: Readers, share: list[tuple[_Piece, memoryview]]) -> None:
    """Read pieces to their places, those that follow one another in a file by one call."""
    with readers.unchanged():
        for run in runs(share, lambda before, after: _is_stored_after(before[0], after[0])):
            first = run[0][0]
            readers[first.shard].read_into_each([place for _, place in run], first.begin)


def _is_stored_after(before: _Piece, piece: _Piece) -> bool:
    return before.shard is piece.shard and before.begin + before.nbytes == piece.begin


def _batches(transfers: Iterable[Transfer], limit: int) -> Iterator[list[_Piece]]:
    """The transfers in batches of at most `limit` bytes; large ones in pieces, for several threads to read."""
    batch: list[_Piece] = []
    nbytes = 0
    for (shard, tensor), buffer, at in transfers:
        done = 0
        while done < tensor.nbytes:
            part = min(tensor.nbytes - done, limit - nbytes, _PIECE_BYTES)
            batch.append(_Piece(shard, tensor.begin + done, part, buffer, at + done))
            done += part
            nbytes += part
            if nbytes == limit:
                yield batch
                batch, nbytes = [], 0
    if batch:
        yield batch


def _lands_after(before: _Piece, piece: _Piece) -> bool:
    """Whether a piece goes right behind another one, into the same buffer."""
    return before.buffer is piece.buffer and before.at + before.nbytes == piece.at
