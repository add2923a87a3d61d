"""Dense tensors as torch tensors on any device: a batch at a time, its planes decoded together."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain
from typing import Any

import torch

from csf_tool.checkpoint.logical import LogicalTensor
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.streams import Readers
from csf_tool.closing import Closing
from csf_tool.codec.formats import CsfFormat
from csf_tool.coders.plane_stack import decode_planes
from csf_tool.devices import why_no_gpu
from csf_tool.dtypes import DTYPES
from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.garbage import no_garbage_collection
from csf_tool.loading.staging import Stager, Transfer
from csf_tool.text import escape

_Kind = tuple[str, tuple[int, ...], CsfFormat | None]
"""Dtype and shape, and the format of planes, which are decoded."""


def torch_device(device: torch.device | str | int) -> torch.device:
    """The device of a name, or the GPU of a number.

    Raises:
        UsageError: torch knows no device of that name.
        EnvironmentFault: it is a GPU that cannot be used here.
    """
    try:
        target = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device {escape(device)}: torch knows no such device") from error
    if target.type == "cuda" and (reason := why_no_gpu(str(target))):
        raise EnvironmentFault(f"device {target}: {reason}")
    return target


def torch_dtype(name: str) -> torch.dtype | None:
    """torch's dtype of a name in a header; None where it has none."""
    found: torch.dtype | None = getattr(torch, DTYPES[name].torch, None) if name in DTYPES else None
    return found


def empty_tensors(tensor: LogicalTensor, n: int, device: torch.device) -> torch.Tensor:
    """Room for `n` tensors like this one: `[n, *shape]`.

    Raises:
        UsageError: torch has no such dtype, or cannot hold it in this shape.
    """
    shape = tensor.shape
    if (dtype := torch_dtype(tensor.dtype)) is None:
        raise UsageError(f"{escape(tensor.name)}: torch has no dtype for {escape(tensor.dtype)}")
    if tensor.dtype == "F4":
        if not shape or shape[-1] % 2:
            raise UsageError(
                f"{escape(tensor.name)}: torch packs F4 in pairs, which its shape {list(shape)} does not allow"
            )
        shape = (*shape[:-1], shape[-1] // 2)
    return torch.empty((n, *shape), dtype=dtype, device=device)


class TorchLoader(Closing):
    """Loads tensors to one device. A context manager: it holds files open, and threads.

    Tensors of one dtype and shape in a batch are one allocation, each tensor a view of it: a layer's thousands
    of small ones come in few copies, and take no more memory than their bytes. Such an allocation is free
    again when the last of its tensors is.
    """

    def __init__(self, device: torch.device, *, decode_there: bool | None = None) -> None:
        """Decode on the device if it is a GPU, on the CPU if not, unless `decode_there` says otherwise."""
        self._device = device
        # Other accelerators than CUDA get a copy of what was read and decoded on the CPU.
        self._direct = device if device.type == "cuda" else torch.device("cpu")
        self._decode_there = device.type == "cuda" if decode_there is None else decode_there
        self._stager = Stager(self._direct)
        self._readers = Readers()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="csf-tool-kernels")
        self._kernels: dict[tuple[CsfFormat, tuple[int, ...]], Future[None]] = {}
        """The decode of planes by format and shape, being made ready."""

    def close(self) -> None:
        """Close the files and end the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._stager.close()
        self._readers.close()

    @no_garbage_collection()  # beside a checkpoint's million objects, half as long again
    def load(self, batch: Sequence[LogicalTensor]) -> list[torch.Tensor]:
        """The tensors of a batch, complete: usable on any stream. Compressed buffers are gone by then.

        Raises:
            UsageError: torch has no such dtype.
            StreamError: the streams of a plane break a rule of the format.
            CheckpointError: a shard cannot be read.
            EnvironmentFault: the system cannot read it, or it changed since its header was read.
        """
        groups: defaultdict[_Kind, list[int]] = defaultdict(list)
        for i, tensor in enumerate(batch):
            fmt = tensor.source.fmt if isinstance(tensor.source, Plane) else None
            groups[tensor.dtype, tensor.shape, fmt].append(i)
        self._begin_kernels(groups)
        stored: list[Transfer] = []
        stacks: list[tuple[list[Plane], torch.Tensor]] = []
        loaded: dict[int, torch.Tensor] = {}
        for members in groups.values():
            whole = empty_tensors(batch[members[0]], len(members), self._direct)
            data = whole.view(-1).view(torch.uint8)
            sources = [batch[i].source for i in members]
            planes = [source for source in sources if isinstance(source, Plane)]
            if planes:
                stacks.append((planes, data))
            for row, source in enumerate(sources):
                if not isinstance(source, Plane):
                    stored.append(Transfer(source, data, row * source.tensor.nbytes))
            loaded |= zip(members, whole, strict=True)
        self._fill(stored, stacks)
        return [loaded[i].to(self._device) for i in range(len(batch))]

    def _begin_kernels(self, kinds: Iterable[_Kind]) -> None:
        """Have the kernels for planes made ready beside reading: the first time it takes longer than that."""
        if not self._decode_there:
            return
        from csf_tool.loading.stack_streams import make_ready

        for _, shape, fmt in kinds:
            if fmt and (fmt, shape) not in self._kernels:
                rows, cols = shape
                self._kernels[fmt, shape] = self._pool.submit(make_ready, fmt, rows, cols, self._direct)

    def cut(self, whole: torch.Tensor, index: Any) -> torch.Tensor:
        """A part of a tensor, in memory of its own; the tensor itself when it is all of it."""
        part = whole[index]
        return part if part.numel() == whole.numel() else part.clone(memory_format=torch.contiguous_format)

    def _fill(self, stored: list[Transfer], stacks: list[tuple[list[Plane], torch.Tensor]]) -> None:
        """Bring stored tensors and decoded planes to where they belong."""
        if self._decode_there:
            self._decode_on_device(stored, stacks)
        else:
            self._run(stored)
            self._decode_on_cpu(stacks)
        if self._direct.type == "cuda":
            torch.cuda.current_stream(self._direct).synchronize()

    def _run(self, transfers: list[Transfer]) -> None:
        self._stager.run(sorted(transfers, key=lambda t: (t.source.shard.name, t.source.tensor.begin)))

    def _decode_on_device(self, stored: list[Transfer], stacks: list[tuple[list[Plane], torch.Tensor]]) -> None:
        from csf_tool.gpu.scales import decompress_csf_scales, prepared
        from csf_tool.loading.stack_streams import check, fill, room_for

        streams = [room_for(planes, self._direct) for planes, _ in stacks]
        fills = (fill(stack, planes) for stack, (planes, _) in zip(streams, stacks, strict=True))
        self._run([*stored, *chain.from_iterable(fills)])
        wait(self._kernels.values())  # what is wrong with one of them, the decode says
        for stack, (planes, dense) in zip(streams, stacks, strict=True):
            check(stack, planes)
            decompress_csf_scales(prepared(stack, reused=False), out=dense)

    def _decode_on_cpu(self, stacks: list[tuple[list[Plane], torch.Tensor]]) -> None:
        for planes, dense in stacks:
            rows = dense.view(len(planes), -1).numpy()  # torch would wake its threads for every plane
            with self._readers.unchanged():
                decode_planes(planes, self._readers, rows)
