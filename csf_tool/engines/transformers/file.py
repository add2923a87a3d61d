"""A safetensors file as transformers opens it, its streams shown as the scales that they stand for."""

from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

import torch

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.names import STREAM_MARK, is_stream_suffix
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.engines.containers import is_container
from csf_tool.engines.read_files import checkpoint_of
from csf_tool.engines.transformers.places import index_of
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.loading.safe_open import safe_open
from csf_tool.loading.tensors import opened

_parts: WeakValueDictionary[Path, Checkpoint] = WeakValueDictionary()
"""Checkpoints of which files are open, by their folder. A folder is looked into once a load, not once a file."""


def is_stream(name: str) -> bool:
    """Whether a stored tensor is a stream, of a known format or an unknown one."""
    return STREAM_MARK in name and is_stream_suffix("." + name.rpartition(".")[2])


class CsfFile(safe_open[torch.Tensor]):
    """The logical tensors of a file: scales by csf_tool, all others by the reader that transformers chose.

    Scales are decoded on the CPU, and transformers moves them, as all that it reads.
    """

    def __init__(self, filename: str | PathLike[str], stock: Any) -> None:
        """Find the planes of a file.

        Args:
            filename: the file.
            stock: what `safetensors.safe_open` gave for it.

        Raises:
            CheckpointError: it is broken, or what its planes need is nowhere. A SafetensorError, too.
            EnvironmentFault: it cannot be read here.
        """
        path = Path(filename)
        super().__init__(_checkpoint_with(path))
        self._stock = stock
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if tensor.home.path == path}

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, value, tb)
        self._stock.__exit__(kind, value, tb)

    @property
    def planes(self) -> list[Plane]:
        """The planes whose scales are among the tensors."""
        return [tensor.source for tensor in self._tensors.values() if isinstance(tensor.source, Plane)]

    def get_tensor(self, name: str) -> torch.Tensor:
        """See `safetensors.safe_open`."""
        return super().get_tensor(name) if self._is_plane(name) else self._stock.get_tensor(name)

    def get_slice(self, name: str) -> Any:
        """See `safetensors.safe_open`."""
        return super().get_slice(name) if self._is_plane(name) else self._stock.get_slice(name)

    def _is_plane(self, name: str) -> bool:
        tensor = self._tensors.get(name)
        return tensor is not None and isinstance(tensor.source, Plane)


def _checkpoint_with(path: Path) -> Checkpoint:
    """A checkpoint that says all of a file's planes: the file alone, or what it is a part of, where that says more."""
    if known := next((checkpoint for checkpoint in list(_parts.values()) if _has(checkpoint, path)), None):
        return known
    if is_container(path.parent.parent):  # its receipts know dtypes and geometries
        checkpoint = opened(path.parent.parent)
    else:
        try:
            return opened(path)
        except CheckpointError as alone:  # perhaps the rest of a plane is in another shard
            checkpoint = _around(path, alone)
    _parts[checkpoint.root] = checkpoint
    return checkpoint


def _around(path: Path, alone: CheckpointError) -> Checkpoint:
    """The checkpoint that a file is a part of, by an index or because it lies there; or the error of the file alone."""
    if index := index_of(path):
        return checkpoint_of(index.root, [str(index.root / shard) for shard in index.shards])
    try:
        checkpoint = opened(path.parent)
    except UsageError:
        raise alone from None
    if not _has(checkpoint, path):
        raise alone
    return checkpoint


def _has(checkpoint: Checkpoint, path: Path) -> bool:
    return any(shard.path == path for shard in checkpoint.shards)
