"""The devices of this machine: its cores, and GPUs by their names."""

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from csf_tool.errors import EnvironmentFault, UsageError, not_installed
from csf_tool.text import count, first_line

_VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Variable that says which GPUs CUDA may see."""

_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files that a driver makes (NVIDIA; WSL; AMD), looked for first: torch takes seconds to import."""


def cores() -> int:
    """Number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not every system says which of them are ours
        return os.cpu_count() or 1


def choose_cuda(device: str, work: str, tell: Callable[[str], None]) -> str | None:
    """The CUDA device that `--device auto|cpu|cuda[:N]` means, or None for the CPU: auto takes a GPU if there is one.

    `tell` is called with the reason where auto takes the CPU though there is a GPU: where there is none, nothing can
    be done about it. The `work` that it names is "encoding", say.

    Raises:
        As `named_cuda`.
    """
    if device != "auto":
        return named_cuda(device)
    if not _may_have_gpu():
        return None
    if reason := why_no_gpu("cuda"):
        tell(f"{work} on the CPU, although there is a GPU: {reason}")
        return None
    return "cuda"


def named_cuda(device: str) -> str | None:
    """The CUDA device that is named; None for cpu, and for auto, which names none.

    Raises:
        UsageError: there is no such device name.
        EnvironmentFault: the device cannot be used here.
    """
    require_device_name(device)
    if device in ("auto", "cpu"):
        return None
    if reason := why_no_gpu(device):
        raise EnvironmentFault(f"--device {device}: {reason}")
    return device


def require_device_name(device: str) -> None:
    """Check that a word means a device, here or on another machine.

    Raises:
        UsageError: it does not.
    """
    if not re.fullmatch("auto|cpu|cuda(:(0|[1-9][0-9]{0,3}))?", device):  # torch takes no other digits, nor 00
        number = re.fullmatch(r"(?:cuda|gpu)?:?(\d{0,4})", device.lower())
        near = f"; did you mean cuda{f':{int(number[1])}' if number[1] else ''}?" if number else ""
        raise UsageError(f"--device {device}: give auto, cpu, cuda or cuda:N{near}")


def _may_have_gpu() -> bool:
    """Whether a driver has made its files, or, on systems where that cannot be seen, whether torch is there to tell.

    Not where GPUs are hidden from CUDA: that is the same as none.
    """
    if _all_hidden():
        return False
    is_told = sys.platform == "linux"
    return any(Path(file).exists() for file in _GPU_FILES) if is_told else not _missing_packages()


def _all_hidden() -> bool:
    """Whether CUDA may see no GPU: it goes through the list up to the first number that is none."""
    first = os.environ.get(_VISIBLE, "0").partition(",")[0].strip()
    return first in ("", "-1")


def _missing_packages() -> list[str]:
    return [name for name in ("torch", "triton") if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # it has been put out of reach
        return False


def why_no_gpu(device: str) -> str | None:
    """Why `device` cannot be used, or None when it can."""
    if missing := _missing_packages():
        return str(not_installed(missing[0], " ".join(missing)))
    try:
        import torch
    except Exception as error:  # a library of CUDA's is missing or of another version: any error
        return f"torch cannot be loaded: {first_line(error)}"
    if not torch.cuda.is_available():
        if _all_hidden():
            return f"{_VISIBLE} hides all GPUs"
        return "torch finds no GPU (is a CUDA build of torch installed, and is the driver running?)"
    index = int(device.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        visible = f", and {_VISIBLE} is {given}" if (given := os.environ.get(_VISIBLE)) else ""
        return f"torch finds {count(torch.cuda.device_count(), 'GPU')}, numbered from 0{visible}"
    return None
