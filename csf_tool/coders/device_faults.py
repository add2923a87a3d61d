"""Failures of a GPU, its driver, or the compiler of its kernels, as errors that name it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from triton.errors import TritonError

from csf_tool.errors import EnvironmentFault
from csf_tool.text import first_line

_FAILURES = (RuntimeError, TritonError, subprocess.CalledProcessError)
"""Errors of torch and CUDA; of Triton; of the C compiler and the assembler that Triton calls."""


@contextmanager
def named_for(device: str, *, replaceable: bool = True) -> Iterator[None]:
    """Have what fails on a device say so, and that the CPU can do the work if it can (`replaceable`).

    Raises:
        EnvironmentFault: it failed.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        way_out = ", or use --device cpu" if replaceable else ""
        raise EnvironmentFault(f"{device}: not enough free memory: free some{way_out}") from error
    except _FAILURES as error:
        way_out = ": --device cpu works without it" if replaceable else ""
        raise EnvironmentFault(f"{device}: {first_line(error).rstrip('.')}{way_out}") from error
