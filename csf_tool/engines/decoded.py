"""The weights that an engine reads from files, with every pair of streams replaced by the scale that it stands for.

The engine reads stored tensors in its own way, and all that it leaves out is left out here, too. The planes are read,
checked and decoded by `csf_tool.loading`, in a thread beside it while it copies their neighbours.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.logical import LogicalTensor
from csf_tool.closing import Closing
from csf_tool.loading.torch_loader import TorchLoader
from csf_tool.text import size

BATCH_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}
"""Dense bytes of the planes that are decoded together: few for the caches of a CPU, many for the launches of a GPU."""

_AHEAD = 2
"""Batches that may wait to be taken: one that is being decoded, and one before it."""


@dataclass
class Tally:
    """Planes that were decoded, and what it took."""

    planes: int = 0
    stored_bytes: int = 0
    dense_bytes: int = 0
    seconds: float = 0.0
    """Seconds that decoding took, most of them beside other work."""
    passed_over: int = 0
    """Planes that the engine has no use for."""

    def __str__(self) -> str:
        left = f" (and skipped {self.passed_over:,})" if self.passed_over else ""
        sizes = f"{size(self.stored_bytes)} to {size(self.dense_bytes)} of block scales"
        return f"decoded {self.planes:,} CSF planes{left}, {sizes}, in {self.seconds:.2f} s"

    def add(self, batch: list[LogicalTensor], seconds: float) -> None:
        """Count a batch."""
        self.planes += len(batch)
        self.stored_bytes += sum(located.tensor.nbytes for scale in batch for located in scale.stored)
        self.dense_bytes += sum(scale.nbytes for scale in batch)
        self.seconds += seconds


def decoded_weights(
    stored: Iterable[tuple[str, torch.Tensor]],
    checkpoint: Checkpoint,
    device: torch.device,
    tally: Tally,
    wanted: Callable[[str], bool] = lambda _: True,
    batch_bytes: int | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """The stored tensors in their order, and in place of streams the scales, each soon after its fixed stream.

    Args:
        stored: names and tensors as the engine reads them from the checkpoint's shards. Streams among them are not
            looked at.
        checkpoint: the checkpoint that they are from.
        device: where the scales shall be; on a GPU they are decoded there.
        tally: counts what is decoded.
        wanted: whether the engine has a use for the scale of this name.
        batch_bytes: dense bytes of the planes that are decoded together; by the kind of the device when None.

    Raises:
        StreamError: the streams of a plane break a rule of the format.
        CheckpointError: a shard cannot be read.
        EnvironmentFault: the system cannot read it, or it changed since its header was read.
    """
    planes = {plane.fixed.tensor.name: LogicalTensor.of_plane(plane) for plane in checkpoint.planes}
    exceptions = {plane.exceptions.tensor.name for plane in checkpoint.planes}
    batch: list[LogicalTensor] = []
    nbytes = 0
    limit = batch_bytes or BATCH_BYTES[device.type]
    with _Ahead(device, tally) as ahead:
        for name, tensor in stored:
            if plane := planes.get(name):
                if not wanted(plane.name):
                    tally.passed_over += 1
                    continue
                batch.append(plane)
                nbytes += plane.nbytes
                if nbytes >= limit:
                    ahead.begin(batch)
                    batch, nbytes = [], 0
            elif name not in exceptions:
                yield name, tensor
            yield from ahead.ready()
        if batch:
            ahead.begin(batch)
        yield from ahead.rest()


class _Ahead(Closing):
    """Batches that are being decoded in a thread, taken in the order in which they were begun."""

    def __init__(self, device: torch.device, tally: Tally) -> None:
        self._tally = tally
        self._loader = TorchLoader(device)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="csf-tool-decode")
        self._batches: deque[tuple[list[LogicalTensor], Future[list[torch.Tensor]]]] = deque()

    def close(self) -> None:
        """End the thread, and close the files."""
        self._pool.shutdown(cancel_futures=True)
        self._loader.close()

    def begin(self, batch: list[LogicalTensor]) -> None:
        """Have a batch decoded."""
        self._batches.append((batch, self._pool.submit(self._load, batch)))

    def ready(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The scales of batches that are done, and of those for which there is no room."""
        while self._batches and (len(self._batches) > _AHEAD or self._batches[0][1].done()):
            yield from self._first()

    def rest(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The scales of all batches that are left."""
        while self._batches:
            yield from self._first()

    def _load(self, batch: list[LogicalTensor]) -> list[torch.Tensor]:
        begun = time.perf_counter()
        scales = self._loader.load(batch)
        self._tally.add(batch, time.perf_counter() - begun)
        return scales

    def _first(self) -> Iterator[tuple[str, torch.Tensor]]:
        batch, future = self._batches.popleft()
        yield from zip([plane.name for plane in batch], future.result(), strict=True)
