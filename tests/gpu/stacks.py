"""Stacks of planes with known dense scales, and the backends that decode them into a workspace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from csf_tool import (
    CsfScales,
    decompress_mxfp4_csf_scales,
    decompress_nvfp4_csf_scales,
    prepare_mxfp4_csf_scales,
    prepare_nvfp4_csf_scales,
)
from csf_tool.codec import reference
from csf_tool.codec.formats import NVFP4, CsfFormat
from csf_tool.gpu.layouts import DenseLayout
from tests.swizzled import swizzle

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Stack:
    """Streams of a stack, plane by plane, and its dense scales `[experts, rows, cols]`."""

    fmt: CsfFormat
    fixed: list[Bytes]
    exceptions: list[NDArray[np.uint32]]
    scales: Bytes

    @property
    def rows(self) -> int:
        return int(self.scales.shape[1])

    @property
    def cols(self) -> int:
        return int(self.scales.shape[2])

    def __str__(self) -> str:
        return f"{self.fmt.name}-{len(self.scales)}x{self.rows}x{self.cols}"


def random_scales(fmt: CsfFormat, experts: int, rows: int, cols: int, outside: float, seed: int = 0) -> Bytes:
    """Scales of which about the share `outside` lies outside its row's window."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, fmt.max_base + 1, (experts, rows, 1), np.uint8)
    scales: Bytes = base + rng.integers(0, fmt.window, (experts, rows, cols), np.uint8)
    strays = rng.random(scales.shape) < outside
    scales[strays] = rng.integers(0, 256, strays.sum(), np.uint8)
    return scales


def encoded(fmt: CsfFormat, scales: Bytes) -> Stack:
    """The stack that the encoder makes of dense scales."""
    streams = [reference.encode(fmt, plane) for plane in scales]
    return Stack(fmt, [fixed for fixed, _ in streams], [words for _, words in streams], scales)


def random_stack(fmt: CsfFormat, experts: int, rows: int, cols: int, outside: float, seed: int = 0) -> Stack:
    return encoded(fmt, random_scales(fmt, experts, rows, cols, outside, seed))


def all_exceptions(fmt: CsfFormat, experts: int, rows: int, cols: int) -> Stack:
    """A stack in which every scale is an exception, over codes that mean something else."""
    rng = np.random.default_rng(1)
    scales = rng.integers(0, 256, (experts, rows, cols), np.uint8)
    fixed = [np.zeros((rows // 16, fmt.slab_bytes(cols)), np.uint8) for _ in scales]
    position = np.arange(rows * cols, dtype=np.uint32)
    words = [plane.reshape(-1).astype(np.uint32) << np.uint32(24) | position for plane in scales]
    return Stack(fmt, fixed, words, scales)


def on_device(array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)


def prepared(stack: Stack) -> CsfScales:
    prepare = prepare_nvfp4_csf_scales if stack.fmt is NVFP4 else prepare_mxfp4_csf_scales
    fixed = [on_device(f) for f in stack.fixed]
    words = [on_device(w) for w in stack.exceptions]
    return prepare(fixed, words, rows=stack.rows, cols=stack.cols)


def expected(stack: Stack, layout: DenseLayout) -> Bytes:
    """The dense scales, `[experts, bytes of a plane]`, in the layout."""
    scales = stack.scales if layout == "linear" else swizzle(stack.scales)
    return scales.reshape(len(scales), -1)


def expert_start(active: Sequence[bool], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """A routing in which the active experts have one to three rows."""
    rows = [i % 3 + 1 if a else 0 for i, a in enumerate(active)]
    return torch.tensor([0, *np.cumsum(rows)], dtype=dtype, device=DEVICE)


Backend = Callable[[Stack, Bytes, Sequence[bool] | None, DenseLayout], None]
"""Decodes a stack (of it, the active planes) to the start of a workspace."""


def numpy_backend(stack: Stack, workspace: Bytes, active: Sequence[bool] | None, layout: DenseLayout) -> None:
    size = expected(stack, layout)[0].size
    for i, (fixed, words) in enumerate(zip(stack.fixed, stack.exceptions, strict=True)):
        if active is None or active[i]:
            dense = reference.decode(stack.fmt, fixed, words, rows=stack.rows, cols=stack.cols)
            dense = dense if layout == "linear" else swizzle(dense)
            workspace[i * size : (i + 1) * size] = dense.reshape(-1)


def triton_backend(stack: Stack, workspace: Bytes, active: Sequence[bool] | None, layout: DenseLayout) -> None:
    decompress = decompress_nvfp4_csf_scales if stack.fmt is NVFP4 else decompress_mxfp4_csf_scales
    routing = None if active is None else expert_start(active)
    out = torch.from_numpy(workspace)
    if DEVICE == "cpu":
        decompress(prepared(stack), out=out, expert_start=routing, layout=layout)
        return
    offset = workspace.ctypes.data % 16  # the same misalignment on the GPU
    buffer = torch.empty(offset + len(out), dtype=torch.uint8, device=DEVICE)[offset:]
    buffer.copy_(out)
    decompress(prepared(stack), out=buffer, expert_start=routing, layout=layout)
    out.copy_(buffer)


BACKENDS = {"numpy": numpy_backend, "triton": triton_backend}
