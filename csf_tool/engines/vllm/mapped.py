"""vLLM's reading of safetensors files, with tensors that are cheaper to come by, and none of streams.

vLLM asks safetensors for one tensor after another, as views of the mapped file. For the small ones of a model of
experts that takes longer than to copy them, and a plane has two streams in place of a scale. vLLM's own function reads
here, with all that it does about order, filters, prefetching and progress; only what it opens files with is another.
"""

import inspect
import os
from collections.abc import Generator
from functools import cache, partial
from math import prod
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, Self

import torch
from vllm.model_executor.model_loader import weight_utils

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.names import parse_stream_name
from csf_tool.checkpoint.stored import Shard
from csf_tool.engines.pages_ahead import PagesAhead
from csf_tool.loading.torch_loader import torch_dtype

Weights = Generator[tuple[str, torch.Tensor], None, None]


def mapped(weights: Weights, checkpoint: Checkpoint, *, are_copied: bool = False) -> Weights:
    """The weights of a checkpoint, of which vLLM has not read any yet; of the streams the fixed ones, without data.

    The same object where vLLM reads in another way than one file after another. Where all weights `are_copied` from the
    files by a CPU, one after another, their pages are made resident ahead.
    """
    reading = _inner(weights)
    function = weight_utils.safetensors_weights_iterator
    stock = getattr(weight_utils, "safe_open", None)
    if stock is None or reading is None or reading.gi_code is not getattr(function, "__code__", None):
        return weights
    shards = {os.path.realpath(shard.path): shard for shard in checkpoint.shards}
    names = function.__globals__ | {"safe_open": partial(_opened, shards, are_copied, stock)}
    own = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    found: Weights = own(**inspect.getgeneratorlocals(reading))
    return found


def _inner(weights: Weights) -> Any:
    """The generator that another one, of an expression, takes its items from; None where there is none."""
    inner = inspect.getgeneratorlocals(weights).get(".0") if inspect.isgenerator(weights) else None
    return inner if inspect.isgenerator(inner) else None


def _opened(shards: dict[str, Shard], are_copied: bool, stock: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    """A shard that is as it was when its header was read; of any other file what safetensors gives."""
    shard = shards.get(os.path.realpath(filename))
    now = Path(filename).stat()
    if shard is None or shard.remote or (now.st_size, now.st_mtime_ns) != (shard.size, shard.mtime_ns):
        return stock(filename, *args, **kwargs)
    return MappedFile(shard, are_copied, partial(stock, filename, *args, **kwargs))


class MappedFile:
    """A shard with the methods of `safetensors.safe_open` that vLLM uses."""

    def __init__(self, shard: Shard, are_copied: bool, stock: Any) -> None:
        header = shard.header
        self._stock = stock
        self._places = dict(
            zip(header.names, zip(header.dtypes, header.shapes, header.begins, header.ends, strict=True), strict=True)
        )
        self._bytes = torch.from_file(str(shard.path), shared=False, size=shard.size, dtype=torch.uint8)
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        self._pages = PagesAhead(self._bytes) if are_copied else None
        self._nothing = torch.empty(0, dtype=torch.uint8, device="cpu")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        """Ask for no more pages; nothing else is held that its tensors do not hold."""
        if self._pages:
            self._pages.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock(), name)

    def keys(self) -> list[str]:
        """The names, sorted, those of exceptions left out."""
        streams = ((name, parse_stream_name(name)) for name in self._places)
        return sorted(name for name, stream in streams if not stream or stream.is_fixed)

    def get_tensor(self, name: str) -> torch.Tensor:
        """A view of the file; of a fixed stream, which csf_tool reads by itself, one of nothing."""
        if parse_stream_name(name):
            return self._nothing
        dtype, shape, begin, end = self._places[name]
        kind = torch_dtype(dtype) if dtype != "F4" else None
        if kind is None or begin % kind.itemsize or begin == end:
            found: torch.Tensor = self._stock().get_tensor(name)
            return found
        if self._pages:
            self._pages.expect(begin, end)
        return self._file_of(kind).as_strided(shape, _strides(shape), begin // kind.itemsize)

    def _file_of(self, kind: torch.dtype) -> torch.Tensor:
        """The file as numbers of a dtype: a view of it takes one call of torch, and one of its bytes takes three."""
        if (found := self._typed.get(kind)) is None:
            whole = len(self._bytes) // kind.itemsize * kind.itemsize
            found = self._typed[kind] = self._bytes[:whole].view(kind)
        return found


@cache
def _strides(shape: tuple[int, ...]) -> list[int]:
    """Strides of a contiguous tensor."""
    return [prod(shape[i + 1 :]) for i in range(len(shape))]
