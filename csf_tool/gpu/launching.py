"""Launching kernels: on which device, and one at a time where they are interpreted."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import triton

from csf_tool.gpu import decode_kernels

INTERPRETED = not isinstance(decode_kernels.decode, triton.JITFunction)
"""Whether Triton interprets kernels on the CPU: TRITON_INTERPRET=1 was set when they were defined."""

_PLAIN = torch.Tensor.__torch_dispatch__
"""Mark of tensors that have bytes; others (fake ones, say) have their own way with operators."""

# The interpreter patches the language's functions globally while a kernel runs: one at a time.
_interpreter = threading.RLock()


def require_gpu(tensor: torch.Tensor) -> None:
    """Raise ValueError when `tensor` is where no kernel can reach it."""
    if not (tensor.is_cuda or (INTERPRETED and tensor.is_cpu)):
        raise ValueError(f"the scales are on {tensor.device}: move them to a GPU, or set TRITON_INTERPRET=1")


def require_contiguous_at(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raise ValueError when a caller's tensor is not on the device of the scales, or is a view with gaps."""
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, but the scales are on {device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous")


def is_traced(*tensors: torch.Tensor) -> bool:
    """Whether torch records calls for a graph, or hands them to a mode, in place of making them: it sees operators."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or torch._C._len_torch_dispatch_stack():
        return True
    return any(_has_no_bytes(tensor) for tensor in tensors)


def _has_no_bytes(tensor: torch.Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is not _PLAIN or tensor.is_meta or torch._is_functional_tensor(tensor)


@contextmanager
def launching_at(tensor: torch.Tensor) -> Iterator[None]:
    """Launch kernels on the device of `tensor`, whichever is current."""
    if tensor.is_cuda:
        with torch.cuda.device(tensor.device):
            yield
    else:
        with _interpreter:
            yield


@cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 for the CPU, where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def register_limit(registers: int | None) -> dict[str, int]:
    """The launch option for at most so many registers a thread, where the compiler has one: NVIDIA's."""
    return {} if registers is None or torch.version.hip else {"maxnreg": registers}
