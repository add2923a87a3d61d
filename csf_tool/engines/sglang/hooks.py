"""The hooks: scales in the place of streams among the weights that SGLang reads, and the files of containers.

Which files are read, and how, stays SGLang's own; so does what its loaders make of names.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from csf_tool.engines.lost_streams import refuse_lost_streams

if TYPE_CHECKING:
    import torch

_Weights = Iterator[tuple[str, "torch.Tensor"]]

_MARK = "_csf_"
"""Part of every stream's name, and of hardly any other."""


def with_scales(read: Callable[..., _Weights], files: list[str], *args: Any, **options: Any) -> _Weights:
    """Names and tensors of some files, as of a dense checkpoint.

    Raises:
        StreamError: the streams of a plane break a rule of the format.
        CheckpointError: a shard is broken, or half a pair of streams is missing.
        EnvironmentFault: the system cannot read it.
    """
    stored = iter(read(files, *args, **options))
    for name, tensor in stored:
        if _MARK in name:
            from csf_tool.engines.sglang.weights import decoded

            yield from decoded(chain([(name, tensor)], stored), files, tensor.device)
        else:
            yield name, tensor


def with_containers(
    find: Callable[..., tuple[str, list[str], bool]], loader: Any, model: str, *args: Any, **options: Any
) -> tuple[str, list[str], bool]:
    """The folder and the files of a model's weights, those of a container whose metadata/ is the model as well.

    Raises:
        CheckpointError: it is a container that is broken or incomplete; or all its streams are missing.
        EnvironmentFault: the system cannot read it.
    """
    try:
        found = find(loader, model, *args, **options)
    except RuntimeError:
        from csf_tool.engines.containers import container_of

        if (container := container_of(Path(model))) is None:
            raise
        from csf_tool.engines.sglang.weights import files_of

        return files_of(container)
    refuse_lost_streams(found[0])
    return found
