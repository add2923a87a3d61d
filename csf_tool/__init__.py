"""csf-tool: inspect, verify and expand FP4 checkpoints whose block scales are CSF-compressed.

The Python API is found here: reading checkpoints, and the GPU functions. A module is imported when the first of its
names is touched, torch and Triton with it where it needs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from csf_tool.version import __version__

if TYPE_CHECKING:
    from csf_tool.checkpoint.open import open_checkpoint
    from csf_tool.gpu import (
        CsfScales,
        CsfStreams,
        ScaleWorkspace,
        compress_csf_scales,
        compress_mxfp4_scales,
        compress_nvfp4_scales,
        decompress_csf_scales,
        decompress_mxfp4_csf_scales,
        decompress_nvfp4_csf_scales,
        prepare_csf_scales,
        prepare_mxfp4_csf_scales,
        prepare_nvfp4_csf_scales,
    )
    from csf_tool.loading.stacks import load_stack
    from csf_tool.loading.tensors import iter_tensors, load_file, safe_open

__all__ = [
    "CsfScales",
    "CsfStreams",
    "ScaleWorkspace",
    "__version__",
    "compress_csf_scales",
    "compress_mxfp4_scales",
    "compress_nvfp4_scales",
    "decompress_csf_scales",
    "decompress_mxfp4_csf_scales",
    "decompress_nvfp4_csf_scales",
    "iter_tensors",
    "load_file",
    "load_stack",
    "open_checkpoint",
    "prepare_csf_scales",
    "prepare_mxfp4_csf_scales",
    "prepare_nvfp4_csf_scales",
    "safe_open",
]

_ELSEWHERE = {
    "iter_tensors": "csf_tool.loading.tensors",
    "load_file": "csf_tool.loading.tensors",
    "load_stack": "csf_tool.loading.stacks",
    "open_checkpoint": "csf_tool.checkpoint.open",
    "safe_open": "csf_tool.loading.tensors",
}
"""Where the names are that are not in `csf_tool.gpu`."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_ELSEWHERE.get(name, "csf_tool.gpu")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
