"""FlashInfer's CSF functions as a rival: those that are installed, or its kernels built from its sources alone.

FlashInfer 0.7.4 and later have them (CUDA, NVFP4). Where it is not installed, `CSF_TOOL_FLASHINFER` may name a folder
with its `csf_scales.cu`, made an extension of torch with a function `expand`, and that is built when it is first used.
"""

import importlib
import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from csf_tool.bench.workloads import Workload, make_streams
from csf_tool.codec.formats import NVFP4, SLAB_ROWS, CsfFormat
from csf_tool.gpu.streams import CsfStreams
from csf_tool.text import brief

FOLDER = "CSF_TOOL_FLASHINFER"
"""The environment variable that names the folder of sources."""

_SMALL = Workload("small", NVFP4, 2, 128, 40, 0.01)

_LAYOUTS = {"swizzled": 0, "linear": 2}
"""Numbers of its `SfLayout`."""

Expand = Callable[[torch.Tensor, Literal["linear", "swizzled"], torch.Tensor | None], object]
"""Expands the stack into a tensor of the layout's shape; of the experts with the given numbers (int32), if any."""


def missing(fmt: CsfFormat = NVFP4) -> str | None:
    """Why it is not measured, or None when it is."""
    if fmt != NVFP4:
        return f"it has no {fmt.title}"
    if folder := os.environ.get(FOLDER):
        return _fault(folder) if (Path(folder) / "csf_scales.cu").is_file() else f"{FOLDER} has no csf_scales.cu"
    if find_spec("flashinfer") is None:
        return "flashinfer is not installed"
    try:
        functions = importlib.import_module("flashinfer.quantization")
    except Exception as error:  # built for another torch or CUDA, say: it fails in many ways
        return f"flashinfer cannot be imported: {brief(error)}"
    return _fault() if hasattr(functions, "expand_csf_scales") else "this flashinfer has no CSF functions"


@cache
def _fault(folder: str | None = None) -> str | None:
    """Why it does not expand a small stack, or None when it does: only now are its kernels compiled."""
    try:
        expand = expander(make_streams(_SMALL, torch.device("cuda")))
        expand(torch.empty(_SMALL.experts, _SMALL.rows, _SMALL.cols, dtype=torch.uint8, device="cuda"), "linear", None)
        torch.cuda.synchronize()
    except Exception as error:  # no compiler, a GPU that it does not know, say: it fails in many ways
        return f"{folder or 'flashinfer'}: its kernels cannot be used: {brief(error)}"
    return None


def expander(streams: CsfStreams) -> Expand:
    """A call that expands the streams, which FlashInfer takes with the start of each slab's exceptions."""
    words, offsets = streams.words.view(torch.uint32), slab_starts(streams)
    if os.environ.get(FOLDER):
        expand = _built(os.environ[FOLDER]).expand
        return lambda out, layout, ids: expand(streams.fixed, words, offsets, ids, out, _LAYOUTS[layout])
    module: Any = importlib.import_module("flashinfer.quantization")
    scales = module.CsfScales(streams.fixed, words, offsets, streams.rows, streams.cols)
    layouts: Any = importlib.import_module("flashinfer").SfLayout
    return lambda out, layout, ids: module.expand_csf_scales(scales, out, ids, layout=layouts(_LAYOUTS[layout]))


def slab_starts(streams: CsfStreams) -> torch.Tensor:
    """Index of the first exception of each slab of the stack, with the number of all as last: int32."""
    slabs = streams.rows // SLAB_ROWS
    position = streams.words & 0xFFFFFF
    slab = streams.plane_of_each() * slabs + position // (SLAB_ROWS * streams.cols)
    every = torch.arange(streams.experts * slabs + 1, device=slab.device)
    return torch.searchsorted(slab.contiguous(), every, out_int32=True)


@cache
def _built(folder: str) -> Any:
    from torch.utils.cpp_extension import load

    major, minor = torch.cuda.get_device_capability()
    number = f"{major}{minor}{'a' if major >= 9 else ''}"
    flags = ["-O3", "-gencode", f"arch=compute_{number},code=sm_{number}"]
    source = str(Path(folder) / "csf_scales.cu")
    return load("csf_tool_flashinfer", [source], extra_include_paths=[folder], extra_cuda_cflags=flags)
