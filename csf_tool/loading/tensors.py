"""The logical tensors of a checkpoint, one after another: `load_file` and `iter_tensors`.

A checkpoint is a folder in either CSF layout, a dense one, or one safetensors file. Names, shapes and dtypes are those
of the dense checkpoint that it stands for; a plane is decoded when its scale is asked for.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from csf_tool.arguments import as_names, as_path, check_type
from csf_tool.checkpoint.causes import first_of
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.logical import LogicalTensor, logical_tensors
from csf_tool.checkpoint.names import parse_stream_name
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import obstacles
from csf_tool.coders.batches import batches
from csf_tool.codes import Code
from csf_tool.disk.reader import exists, is_file
from csf_tool.errors import not_installed
from csf_tool.loading.errors import Broken, Missing, Misused, as_safetensors
from csf_tool.nearest import did_you_mean
from csf_tool.text import escape

if TYPE_CHECKING:
    import torch

    from csf_tool.loading.torch_loader import TorchLoader

BATCH_BYTES = 512 << 20
"""Dense bytes that `iter_tensors` loads together: many planes a launch, few compressed bytes beside them."""

nbytes_of = attrgetter("nbytes")


def no_tensor(checkpoint: Checkpoint, tensors: Mapping[str, LogicalTensor], name: str) -> Misused:
    """The error of a name that no logical tensor has: what it is instead, or the nearest."""
    check_type("name", name, str)
    stream = parse_stream_name(name)
    if stream and stream.scale in tensors:
        hint = f": it is a stream of {escape(stream.scale)}: ask for that tensor"
    else:
        hint = escape(did_you_mean(name, tensors))
    return Misused(f"{checkpoint.label}: has no tensor {escape(name)}{hint}")


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


def torch_loader(device: "torch.device | str | int") -> "TorchLoader":
    """A loader to a device that torch knows; raises as `iter_tensors`."""
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
    return _loaded(torch_loader(device), list(tensors.values()), batch)


def _loaded(
    loader: "TorchLoader", tensors: Sequence[LogicalTensor], batch: int
) -> "Iterator[tuple[str, torch.Tensor]]":
    with loader:
        for part in batches(tensors, nbytes_of, batch):
            # No variable here holds a tensor: it is freed once the caller lets go of it.
            yield from zip([tensor.name for tensor in part], loader.load(part), strict=True)
