"""A user's code, held against the types of the public API: mypy checks this file, strictly, with all others.

It runs, too, so that what the types promise is what happens.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import csf_tool
from csf_tool import CsfScales, ScaleWorkspace


def torch_tensors(folder: Path) -> dict[str, torch.Tensor]:
    with csf_tool.safe_open(folder, framework="pt", device="cpu") as f:
        assert_type(f.keys(), list[str])
        assert_type(f.offset_keys(), list[str])
        assert_type(f.metadata(), dict[str, str] | None)
        name = f.keys()[0]
        assert_type(f.get_tensor(name), torch.Tensor)
        part = f.get_slice(name)
        assert_type(part.get_shape(), list[int])
        assert_type(part.get_dtype(), str)
        assert_type(part[0:1], torch.Tensor)
        assert_type(csf_tool.safe_open(folder).get_tensor(name), torch.Tensor)
        return f.get_tensors()


def numpy_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    with csf_tool.safe_open(folder, "np") as f:
        assert_type(f.get_tensor(f.keys()[0]), NDArray[Any])
        assert_type(f.get_slice(f.keys()[0])[...], NDArray[Any])
        return f.get_tensors()


def loaded(folder: Path) -> int:
    checkpoint = csf_tool.open_checkpoint(folder)
    tensors = csf_tool.iter_tensors(checkpoint, device=torch.device("cpu"), names=None, batch=1 << 20)
    assert_type(tensors, Iterator[tuple[str, torch.Tensor]])
    assert_type(csf_tool.load_file(folder, "cpu"), dict[str, torch.Tensor])
    return sum(tensor.nbytes for _, tensor in tensors)


def stacks(folder: Path) -> ScaleWorkspace:
    gate_up = csf_tool.load_stack(folder, 0, "gate_up", device="cpu", tp_rank=0, tp_size=1, order=("up", "gate"))
    assert_type(gate_up, CsfScales)
    workspace = csf_tool.ScaleWorkspace(gate_up, csf_tool.load_stack(folder, 0, "down", device="cpu"))
    assert_type(workspace.nbytes, int)
    return workspace


def decoded(workspace: ScaleWorkspace, stack: CsfScales, expert_start: torch.Tensor | None) -> torch.Tensor:
    dense = workspace.decompress(stack, expert_start=expert_start)
    assert_type(dense, torch.Tensor)
    return dense


def test_what_the_types_promise(sample: Callable[[str], Path]) -> None:
    folder = sample("nvfp4-csf-hf")
    tensors, arrays = torch_tensors(folder), numpy_arrays(folder)
    assert isinstance(next(iter(tensors.values())), torch.Tensor)
    assert isinstance(next(iter(arrays.values())), np.ndarray)
    assert loaded(folder) == sum(tensor.nbytes for tensor in tensors.values())
    assert stacks(folder).nbytes > 0
