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

# The interpreter patches the language's functions globally while a kernel runs: one at a time.
_interpreter = threading.RLock()


def require_gpu(tensor: torch.Tensor) -> None:
    """Raise ValueError when `tensor` is where no kernel can reach it."""
    if not (tensor.is_cuda or INTERPRETED):
        raise ValueError(f"the scales are on {tensor.device}: move them to a GPU, or set TRITON_INTERPRET=1")


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
