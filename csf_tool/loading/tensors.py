"""Reading the logical tensors of a checkpoint from Python: `safe_open`, `load_file` and `iter_tensors`.

A checkpoint is a folder in either CSF layout, a dense one, or one safetensors file. Names, shapes and dtypes are
those of the dense checkpoint that it stands for; a plane is decoded when its scale is asked for. torch is
imported only for "pt".
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar, overload

from numpy.typing import NDArray

from csf_tool.arguments import as_names, as_path, check_type
from csf_tool.checkpoint.causes import first_of
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.logical import LogicalTensor, logical_metadata, logical_tensors
from csf_tool.checkpoint.names import parse_stream_name
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import obstacles
from csf_tool.checkpoint.stored import Located
from csf_tool.coders.batches import batches
from csf_tool.codes import Code
from csf_tool.disk.reader import exists, is_file
from csf_tool.errors import not_installed
from csf_tool.loading.errors import Broken, Missing, Misused, as_safetensors
from csf_tool.loading.numpy_loader import NumpyLoader
from csf_tool.nearest import did_you_mean
from csf_tool.text import count, escape

if TYPE_CHECKING:
    import torch

    from csf_tool.loading.torch_loader import TorchLoader

BATCH_BYTES = 512 << 20
"""Dense bytes that `iter_tensors` loads together: many planes a launch, few compressed bytes beside them."""

T = TypeVar("T")

_PT, _NP = ("pt", "torch", "pytorch"), ("np", "numpy")
_BACKENDS = ("mmap", "pread")
_nbytes = attrgetter("nbytes")


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
        for batch in batches(self._tensors.values(), _nbytes, BATCH_BYTES):
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


def no_tensor(checkpoint: Checkpoint, tensors: Mapping[str, LogicalTensor], name: str) -> Misused:
    """The error of a name that no logical tensor has: what it is instead, or the nearest."""
    check_type("name", name, str)
    stream = parse_stream_name(name)
    if stream and stream.scale in tensors:
        hint = f": it is a stream of {escape(stream.scale)}: ask for that tensor"
    else:
        hint = escape(did_you_mean(name, tensors))
    return Misused(f"{checkpoint.label}: has no tensor {escape(name)}{hint}")


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


def opened(checkpoint: Checkpoint | str | os.PathLike[str], name: str = "checkpoint") -> Checkpoint:
    """A checkpoint whose tensors can be read, opened here unless it is open already; `name` is the argument's.

    Faults of configs are let pass: recipes say how to read, not what the bytes are.

    Raises:
        TypeError: it is no path.
        FileNotFoundError: there is nothing at the path. A UsageError, too.
        UsageError: what is there is no checkpoint. A SafetensorError, too.
        CheckpointError: it is broken or incomplete. A SafetensorError, too.
        EnvironmentFault: the system cannot read it.
    """
    if not isinstance(checkpoint, Checkpoint):
        with as_safetensors():
            path = as_path(name, checkpoint)
        if not exists(path):
            raise Missing(f"{path}: no such file or folder")
        with as_safetensors():
            checkpoint = open_checkpoint(path)
    if faults := [problem for problem in obstacles(checkpoint.problems) if problem.file not in CONFIG_FILES]:
        hint = "; if the rest of it is in another shard, open the folder" if is_file(checkpoint.path) else ""
        raise Broken(f"cannot be loaded: {first_of(faults)}{hint}", Code.FAULTY_SOURCE, checkpoint.label)
    return checkpoint


def _loader(framework: str, device: "torch.device | str | int") -> _Loader[Any]:
    if framework in _PT:
        return _torch_loader(device)
    if framework not in _NP:
        raise Misused(f"framework {framework!r}: give pt or np")
    if device != "cpu":
        raise Misused(f"device {device}: numpy arrays are only on the CPU")
    return NumpyLoader()


def _torch_loader(device: "torch.device | str | int") -> "TorchLoader":
    try:
        from csf_tool.loading.torch_loader import TorchLoader, torch_device
    except ModuleNotFoundError as error:
        raise not_installed(error.name or "torch") from error
    return TorchLoader(torch_device(device))


def load_file(
    filename: str | os.PathLike[str], device: "torch.device | str | int" = "cpu"
) -> "dict[str, torch.Tensor]":
    """All logical tensors of a shard or of a whole checkpoint by name, in the order in which they are stored.

    As `safetensors.torch.load_file`. Raises as `iter_tensors`.
    """
    return dict(iter_tensors(opened(filename, "filename"), device=device))


def iter_tensors(
    checkpoint: Checkpoint | str | os.PathLike[str],
    *,
    device: "torch.device | str | int" = "cpu",
    names: Iterable[str] | None = None,
    batch: int = BATCH_BYTES,
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Name and torch tensor of every logical tensor of a checkpoint, in the order in which they are stored.

    On a GPU, stored bytes go through 128 MiB of pinned memory, and the planes of a batch are decoded there, one launch
    for all of a geometry. Its compressed streams are released before its first tensor comes out.

    Args:
        checkpoint: a folder, a file, or what `open_checkpoint` gave.
        device: where the tensors shall be.
        names: the tensors wanted; all when None.
        batch: dense bytes that are loaded together at most, unless one tensor is larger. Tensors of one dtype and
            shape in a batch share an allocation, which is released with the last of them.

    Raises:
        FileNotFoundError: there is nothing at the path.
        UsageError: a name that the checkpoint does not have, no such device, a dtype that torch lacks, no checkpoint.
        CheckpointError: the checkpoint is broken or incomplete, or a plane breaks a rule of the format.
        EnvironmentFault: it cannot be read here, torch is not installed, or there is no such GPU.
    """
    check_type("batch", batch, int)
    checkpoint = opened(checkpoint)
    tensors = logical_tensors(checkpoint)
    if names is not None:
        wanted = set(as_names("names", names))
        for name in wanted - tensors.keys():
            raise no_tensor(checkpoint, tensors, name)
        tensors = {name: tensor for name, tensor in tensors.items() if name in wanted}
    return _loaded(_torch_loader(device), list(tensors.values()), batch)


def _loaded(
    loader: "TorchLoader", tensors: Sequence[LogicalTensor], batch: int
) -> "Iterator[tuple[str, torch.Tensor]]":
    with loader:
        for part in batches(tensors, _nbytes, batch):
            # No variable here holds a tensor: it is freed once the caller lets go of it.
            yield from zip([tensor.name for tensor in part], loader.load(part), strict=True)
