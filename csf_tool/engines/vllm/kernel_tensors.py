"""The tensors that a method of routed experts, and the kernel that it has made, hold beside the layer's own."""

from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from csf_tool.engines.kept_layer import SCALES, KeptLayer

_CONFIGS = ("kept", "dense_because", "quant_config", "moe")
"""Attributes of methods that hold no tensors, or those of others."""

_NO_HOLDERS = (str, bytes, int, float, type, ModuleType, FunctionType, MethodType, KeptLayer)
"""Values that hold no tensors of a kernel's."""

_OF_MODULES = ("_modules", "_parameters")
"""Attributes of modules that hold other layers, and weights."""


def kernel_tensors(method: Any, layer: Any) -> Iterator[torch.Tensor]:
    """The tensors, those apart that share memory with a parameter of the layer other than scales.

    Biases and the scales of whole experts are among these: a kernel has them as the layer does.
    """
    own = {
        parameter.untyped_storage().data_ptr()
        for name, parameter in vars(layer).get("_parameters", {}).items()
        if parameter is not None and name not in SCALES
    }
    held = {name: value for name, value in vars(method).items() if name not in _CONFIGS}
    return (
        tensor for tensor in _tensors(held, {id(method), id(layer)}) if tensor.untyped_storage().data_ptr() not in own
    )


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in a value, and in what it holds."""
    if id(value) in seen or isinstance(value, _NO_HOLDERS):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
        return
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif hasattr(value, "__dict__"):
        parts = [part for name, part in vars(value).items() if name not in _OF_MODULES]
    for part in parts:
        yield from _tensors(part, seen)
