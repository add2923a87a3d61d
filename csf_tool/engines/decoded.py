"""The weights that an engine reads from files, with every pair of streams replaced by the scale that it stands for.

The engine chooses what is read, and in which order: all that it leaves out is left out here, too. The planes are read,
checked and decoded by `csf_tool.loading`: for a GPU in a thread beside it while it copies their neighbours. They may be
brought there in the same way where they go as they are: an engine copies them one by one, from pageable memory.
For a CPU they are decoded in the engine's own thread. Beside it, both threads would hand Python's lock to one another
thousands of times, which takes longer than to decode.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.logical import LogicalTensor, logical_tensors
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.closing import Closing
from csf_tool.loading.torch_loader import TorchLoader, torch_dtype
from csf_tool.text import size

BATCH_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}
"""Dense bytes that are loaded together: few for the caches of a CPU, many for the launches of a GPU."""

_AHEAD = {"cpu": 0, "cuda": 2}
"""Batches that are loaded in a thread, or wait for it, while the engine takes the one before them."""

_MOST_KEPT = 4
"""Batches' bytes that an engine may have kept before stored tensors are left where they are: some put all in a list."""


@dataclass
class Tally:
    """Planes that were decoded, stored tensors that were brought to the device beside them, and what it took."""

    planes: int = 0
    stored_bytes: int = 0
    dense_bytes: int = 0
    seconds: float = 0.0
    """Seconds that loading them took, most of them beside other work."""
    waited: float = 0.0
    """Seconds of these that the engine waited."""
    passed_over: int = 0
    """Planes that the engine has no use for."""
    brought: int = 0
    brought_bytes: int = 0

    def __str__(self) -> str:
        left = f" (and skipped {self.passed_over:,})" if self.passed_over else ""
        sizes = f"{size(self.stored_bytes)} to {size(self.dense_bytes)} of block scales"
        beside = f" and read {self.brought:,} tensors of {size(self.brought_bytes)}," if self.brought else ""
        seconds = f"in {self.seconds:.2f} s (waited for: {self.waited:.2f} s)"
        return f"decoded {self.planes:,} CSF planes{left}, {sizes},{beside} {seconds}"

    def add(self, batch: list[LogicalTensor], seconds: float) -> None:
        """Count a batch."""
        for tensor in batch:
            if isinstance(tensor.source, Plane):
                self.planes += 1
                self.stored_bytes += tensor.source.csf_bytes
                self.dense_bytes += tensor.nbytes
            else:
                self.brought += 1
                self.brought_bytes += tensor.nbytes
        self.seconds += seconds


def decoded_weights(
    stored: Iterable[tuple[str, torch.Tensor]],
    checkpoint: Checkpoint,
    device: torch.device,
    tally: Tally,
    wanted: Callable[[str], bool] = lambda _: True,
    batch_bytes: int | None = None,
    *,
    bring: bool = False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """The stored tensors in their order, and in place of streams the scales, each soon after its fixed stream.

    Args:
        stored: names and tensors as the engine reads them from the checkpoint's shards. Streams among them are not
            looked at, and no data of those that are brought.
        checkpoint: the checkpoint that they are from.
        device: where the scales shall be; on a CUDA GPU they are decoded there, for other accelerators on the CPU.
        tally: counts what is decoded.
        wanted: whether the engine has a use for the weight of this name.
        batch_bytes: dense bytes that are loaded together; by where they are decoded when None.
        bring: bring stored tensors to the device, too, unless one is larger than a batch: the engine has room for it,
            but not for it twice.

    Raises:
        StreamError: the streams of a plane break a rule of the format.
        CheckpointError: a shard cannot be read.
        EnvironmentFault: the system cannot read it, or it changed since its header was read.
    """
    kind = "cuda" if device.type == "cuda" else "cpu"  # where they are decoded: other accelerators get a copy
    limit = batch_bytes or BATCH_BYTES[kind]
    planes = {plane.fixed.tensor.name: LogicalTensor.of_plane(plane) for plane in checkpoint.planes}
    exceptions = {plane.exceptions.tensor.name for plane in checkpoint.planes}
    others = {name: one for name, one in logical_tensors(checkpoint).items() if one.nbytes <= limit} if bring else {}
    batch: list[LogicalTensor] = []
    nbytes = 0
    with _Ahead(device, tally, _AHEAD[kind], _MOST_KEPT * limit) as ahead:
        for name, tensor in stored:
            if name in exceptions:
                continue
            if plane := planes.get(name):
                if not wanted(plane.name):
                    tally.passed_over += 1
                    continue
                batch.append(plane)
            elif (other := others.get(name)) and ahead.has_room and _is_as_stored(tensor, other) and wanted(name):
                batch.append(other)
            else:
                yield name, tensor
                continue
            nbytes += batch[-1].nbytes
            if nbytes >= limit:
                ahead.begin(batch)
                batch, nbytes = [], 0
                yield from ahead.ready()
        if batch:
            ahead.begin(batch)
        yield from ahead.rest()


def _is_as_stored(tensor: torch.Tensor, found: LogicalTensor) -> bool:
    """Whether the engine has a tensor in host memory as it is stored: so it can be brought to the device instead."""
    return tensor.is_cpu and tensor.dtype == torch_dtype(found.dtype) and tensor.shape == found.shape


class _Ahead(Closing):
    """Batches that are loaded in a thread, or none ahead when they are taken, in the order in which they were begun."""

    def __init__(self, device: torch.device, tally: Tally, most_ahead: int, most_kept: int) -> None:
        self._device = device
        self._tally = tally
        self._most_ahead = most_ahead
        self._most_kept = most_kept
        self._loader = TorchLoader(device)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="csf-tool-decode")
        self._batches: deque[tuple[list[LogicalTensor], Callable[[], list[torch.Tensor]]]] = deque()
        self._given: list[weakref.ref[torch.Tensor]] = []
        self.has_room = True
        """Whether the engine lets go of what it has been given."""

    def close(self) -> None:
        """End the thread, and close the files."""
        self._pool.shutdown(cancel_futures=True)
        self._loader.close()

    def begin(self, batch: list[LogicalTensor]) -> None:
        """Have a batch loaded, in the thread if there may be any ahead."""
        load = partial(self._load, batch, _current_stream(self._device))
        self._batches.append((batch, self._pool.submit(load).result if self._most_ahead else load))

    def ready(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of batches that leave the thread enough to do."""
        while len(self._batches) > self._most_ahead:
            yield from self._first()

    def rest(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of all batches that are left."""
        while self._batches:
            yield from self._first()

    def _load(self, batch: list[LogicalTensor], stream: AbstractContextManager[object]) -> list[torch.Tensor]:
        begun = time.perf_counter()
        with stream:
            tensors = self._loader.load(batch)
        self._tally.add(batch, time.perf_counter() - begun)
        return tensors

    def _first(self) -> Iterator[tuple[str, torch.Tensor]]:
        batch, tensors_of = self._batches.popleft()
        self._given = [given for given in self._given if given() is not None]
        self.has_room = _allocated(given() for given in self._given) <= self._most_kept
        begun = time.perf_counter()
        tensors = tensors_of()
        self._tally.waited += time.perf_counter() - begun
        self._given += map(weakref.ref, tensors)
        yield from zip([one.name for one in batch], tensors, strict=True)


def _allocated(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes that are not free as long as one of these tensors is there: each may be a part of an allocation."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _current_stream(device: torch.device) -> AbstractContextManager[object]:
    """The engine's stream as that of another thread, and its GPU: memory that it is done with there is used again."""
    return torch.cuda.stream(torch.cuda.current_stream(device)) if device.type == "cuda" else nullcontext()
