"""The functions of transformers by which it reads safetensors files, replaced by ones that know CSF streams.

All ways of loading a model meet in them: sharded or not, onto any device, with experts that are fused on the way. The
files of other checkpoints go to transformers' own functions.
"""

from collections.abc import Callable
from functools import wraps
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import __version__, modeling_layers, modeling_utils

from csf_tool.engines.containers import container_of, model_of
from csf_tool.engines.transformers.file import CsfFile, is_stream
from csf_tool.engines.transformers.limits import say_limits
from csf_tool.engines.transformers.places import files_of
from csf_tool.errors import EnvironmentFault, UsageError

_Function = Callable[..., Any]


def install() -> None:
    """Have transformers read CSF checkpoints. Doing it again changes nothing.

    Raises:
        EnvironmentFault: this transformers reads files in another way.
    """
    if not hasattr(modeling_utils, "safe_open"):
        raise EnvironmentFault(f"transformers {__version__} reads files in a way that csf-tool does not know")
    for name, module in product(_REPLACEMENTS, _MODULES):
        own = getattr(module, name, None)
        if own and not hasattr(own, "replaced_by_csf_tool"):
            function = _REPLACEMENTS[name](own)
            function.replaced_by_csf_tool = own  # type: ignore[attr-defined]
            setattr(module, name, function)


def uninstall() -> None:
    """Have transformers read files as it did before. A function that others replaced since then is left alone."""
    for name, module in product(_REPLACEMENTS, _MODULES):
        if own := getattr(getattr(module, name, None), "replaced_by_csf_tool", None):
            setattr(module, name, own)


def _open(own: _Function) -> _Function:
    """`safe_open`, by which it opens every file."""

    @wraps(own, updated=())
    def safe_open(filename: str | PathLike[str], *args: Any, **options: Any) -> Any:
        stock = own(filename, *args, **options)
        if not any(map(is_stream, stock.keys())):
            return stock
        file = CsfFile(filename, stock)
        say_limits(model_of(Path(filename)), file.planes)
        return file

    return safe_open


def _load_bytes(own: _Function) -> _Function:
    """`safetensors.torch.load`, to which it gives whole files where it shall not map them."""

    @wraps(own)
    def load(data: bytes) -> Any:
        tensors = own(data)
        if any(map(is_stream, tensors)):
            raise UsageError("CSF checkpoints do not load with disable_mmap=True: leave it out")
        return tensors

    return load


def _is_on_mount(own: _Function) -> _Function:
    """`_is_on_hf_mount`, by which it finds that it shall not map a file."""

    @wraps(own)
    def is_on_hf_mount(path: str | PathLike[str]) -> bool:
        return own(path) and not _has_streams(path)

    return is_on_hf_mount


def _resolve(own: _Function) -> _Function:
    """`_get_resolved_checkpoint_files`, by which it finds the files of a model, or downloads them."""

    @wraps(own)
    def resolve(pretrained_model_name_or_path: str | PathLike[str] | None, *args: Any, **options: Any) -> Any:
        model = pretrained_model_name_or_path
        container = container_of(Path(model)) if model is not None else None
        return files_of(container) if container else own(model, *args, **options)

    return resolve


def _has_streams(path: str | PathLike[str]) -> bool:
    with modeling_utils.safe_open(path, framework="pt") as file:
        return isinstance(file, CsfFile)


_REPLACEMENTS = {
    "safe_open": _open,
    "_safe_load_bytes": _load_bytes,  # this and the next are new in 5.8
    "_is_on_hf_mount": _is_on_mount,
    "_get_resolved_checkpoint_files": _resolve,
}
"""Makers of our function from that of transformers."""

_MODULES = (modeling_utils, modeling_layers)
"""The modules that have them under names of their own: of models, and in newer versions of layers that draft tokens."""
