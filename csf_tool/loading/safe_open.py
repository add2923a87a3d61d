"""`safe_open` for logical tensors: those of a shard or a whole checkpoint, by name and part by part.

torch is imported only for "pt".
"""

import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar, overload

from numpy.typing import NDArray

from csf_tool.arguments import check_type
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.logical import LogicalTensor, logical_metadata, logical_tensors
from csf_tool.checkpoint.stored import Located
from csf_tool.coders.batches import batches
from csf_tool.loading.errors import Misused, as_safetensors
from csf_tool.loading.numpy_loader import NumpyLoader
from csf_tool.loading.tensors import BATCH_BYTES, nbytes_of, no_tensor, opened, torch_loader
from csf_tool.text import count

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_PT, _NP = ("pt", "torch", "pytorch"), ("np", "numpy")
_BACKENDS = ("mmap", "pread")


class _Loader(Protocol[T]):
    """Loads tensors of one framework."""

    def load(self, batch: Sequence[LogicalTensor]) -> list[T]:
        """The tensors."""

    def cut(self, whole: T, index: Any) -> T:
        """A part of a tensor, in memory of its own."""

    def close(self) -> None:
        """Close what is open."""


class safe_open(Generic[T]):
    """`safetensors.safe_open` for the logical tensors of a shard or a whole checkpoint.

    Reading is by plain reads, never mmap: `backend` is taken for compatibility alone. Methods may be called from
    several threads. Errors are csf_tool's; those that safetensors would raise as SafetensorError or
    FileNotFoundError are these, too.
    """

    @overload
    def __init__(
        self: "safe_open[torch.Tensor]",
        filename: Checkpoint | str | os.PathLike[str],
        framework: Literal["pt", "torch", "pytorch"] = "pt",
        device: "torch.device | str | int" = "cpu",
        *,
        backend: str = "mmap",
    ) -> None: ...
    @overload
    def __init__(
        self: "safe_open[NDArray[Any]]",
        filename: Checkpoint | str | os.PathLike[str],
        framework: Literal["np", "numpy"],
        device: Literal["cpu"] = "cpu",
        *,
        backend: str = "mmap",
    ) -> None: ...
    def __init__(
        self,
        filename: Checkpoint | str | os.PathLike[str],
        framework: str = "pt",
        device: Any = "cpu",
        *,
        backend: str = "mmap",
    ) -> None:
        """Read the headers, and nothing else.

        Args:
            filename: the checkpoint's folder, one safetensors file, or what `open_checkpoint` gave. A plane whose
                streams lie in two shards is found in the folder alone.
            framework: "pt" for torch tensors, "np" for numpy arrays. numpy itself lacks BF16 and the 8-bit floats:
                they need the package ml_dtypes, and are refused without it.
            device: where torch tensors shall be; on a GPU planes are decoded there.
            backend: "mmap" or "pread"; makes no difference.

        Raises:
            FileNotFoundError: there is nothing at `filename`.
            UsageError: unknown framework, device or backend, or no checkpoint. A SafetensorError, too.
            CheckpointError: the checkpoint is broken or incomplete. A SafetensorError, too.
            EnvironmentFault: it cannot be read here, torch is not installed, or there is no such GPU.
        """
        check_type("framework", framework, str)
        if backend not in _BACKENDS:
            raise Misused(f"backend {backend!r}: give {' or '.join(_BACKENDS)}")
        with as_safetensors():
            self._loader: _Loader[Any] | None = _loader(framework, device)
        self._framework = framework
        self._lock = threading.Lock()
        self._checkpoint = opened(filename, "filename")
        self._tensors = logical_tensors(self._checkpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        with self._lock:
            if self._loader:
                self._loader.close()
            self._loader = None

    def __del__(self) -> None:
        if loader := getattr(self, "_loader", None):
            loader.close()

    def __repr__(self) -> str:
        state = f"{count(len(self._tensors), 'tensor')}" if self._loader else "closed"
        return f"<safe_open {self._checkpoint.label!r}, framework={self._framework!r}: {state}>"

    def keys(self) -> list[str]:
        """The names of the logical tensors, sorted."""
        return sorted(self._tensors)

    def offset_keys(self) -> list[str]:
        """The names in the order in which the tensors are stored; a scale stands where its fixed stream does."""
        return list(self._tensors)

    def metadata(self) -> dict[str, str] | None:
        """The metadata of all shards together, without CSF's own; None where there are none."""
        compressed = {plane.fixed.shard.name for plane in self._checkpoint.planes}
        metadata: dict[str, str] = {}
        for shard in self._checkpoint.shards:
            metadata |= logical_metadata(shard) if shard.name in compressed else shard.header.metadata
        return metadata or None

    def get_tensor(self, name: str) -> T:
        """A tensor, its planes decoded.

        Raises:
            UsageError: there is no such tensor, the framework lacks its dtype, or this is closed. A
                SafetensorError, too.
            CheckpointError: it cannot be read, or breaks a rule of the format. A SafetensorError, too.
            EnvironmentFault: the system cannot read it, or its file changed since it was opened.
        """
        return self._load([self._tensor(name)])[0]

    def get_tensors(self) -> dict[str, T]:
        """All tensors by name, in the order in which they are stored; raises as `get_tensor`."""
        loaded: dict[str, T] = {}
        for batch in batches(self._tensors.values(), nbytes_of, BATCH_BYTES):
            loaded |= zip([tensor.name for tensor in batch], self._load(batch), strict=True)
        return loaded

    def get_slice(self, name: str) -> "TensorSlice[T]":
        """A tensor that is read when it is indexed.

        Raises:
            UsageError: there is no such tensor. A SafetensorError, too.
        """
        return TensorSlice(self, self._tensor(name))

    def _tensor(self, name: str) -> LogicalTensor:
        if (tensor := self._tensors.get(name)) is None:
            raise no_tensor(self._checkpoint, self._tensors, name)
        return tensor

    def _load(self, tensors: Sequence[LogicalTensor]) -> list[T]:
        with self._lock, as_safetensors():
            return self._open_loader().load(tensors)

    def _open_loader(self) -> "_Loader[T]":
        if self._loader is None:
            raise Misused(f"{self._checkpoint.label}: is closed")
        return self._loader


class TensorSlice(Generic[T]):
    """A tensor of `safe_open.get_slice`: shape and dtype at once, data when indexed.

    Indexing is that of the framework. Leading rows of a stored tensor are read alone; a plane is decoded whole.
    """

    def __init__(self, owner: safe_open[T], tensor: LogicalTensor) -> None:
        self._owner = owner
        self._tensor = tensor

    def __repr__(self) -> str:
        return f"<TensorSlice {self._tensor.name!r}, {self._tensor.dtype} {list(self._tensor.shape)}>"

    def get_shape(self) -> list[int]:
        """The shape, as a dense checkpoint's header has it."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """The dtype as safetensors writes it: "BF16", "F8_E4M3"."""
        return self._tensor.dtype

    def __getitem__(self, index: Any) -> T:
        items = index if isinstance(index, tuple) else (index,)
        tensor = self._tensor
        if items and (rows := _leading_rows(items[0], tensor)) is not None:
            tensor = _only_rows(tensor, rows)
            items = (0 if isinstance(items[0], int) else slice(None), *items[1:])
        whole = self._owner._load([tensor])[0]
        return self._owner._open_loader().cut(whole, items)


def _leading_rows(item: object, tensor: LogicalTensor) -> range | None:
    """The rows of a stored tensor that an index's first item selects, where they are whole bytes side by side."""
    if not isinstance(tensor.source, Located) or not tensor.shape or not tensor.shape[0]:
        return None
    rows = range(tensor.shape[0])
    if tensor.nbytes % len(rows):
        return None
    if isinstance(item, slice) and item.step in (None, 1):
        return rows[item]
    if type(item) is int and -len(rows) <= item < len(rows):  # True is an index of another kind
        return rows[item : item + 1 or None]
    return None


def _only_rows(tensor: LogicalTensor, rows: range) -> LogicalTensor:
    """Some rows of a stored tensor as a tensor of their own."""
    assert isinstance(tensor.source, Located)
    shard, stored = tensor.source
    row_bytes = tensor.nbytes // tensor.shape[0]
    begin = stored.begin + rows.start * row_bytes
    shape = (len(rows), *tensor.shape[1:])
    part = stored._replace(shape=shape, begin=begin, end=begin + len(rows) * row_bytes)
    return LogicalTensor(tensor.name, tensor.dtype, shape, Located(shard, part))


def _loader(framework: str, device: "torch.device | str | int") -> _Loader[Any]:
    if framework in _PT:
        return torch_loader(device)
    if framework not in _NP:
        raise Misused(f"framework {framework!r}: give pt or np")
    if device != "cpu":
        raise Misused(f"device {device}: numpy arrays are only on the CPU")
    return NumpyLoader()
