"""csf-tool: inspect, verify and expand FP4 checkpoints whose block scales are CSF-compressed.

The GPU functions are found here as well; torch and Triton are imported when the first of them is touched.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from csf_tool.version import __version__

if TYPE_CHECKING:
    from csf_tool.gpu import (
        CsfScales,
        CsfStreams,
        compress_mxfp4_scales,
        compress_nvfp4_scales,
        decompress_mxfp4_csf_scales,
        decompress_nvfp4_csf_scales,
        prepare_csf_scales,
        prepare_mxfp4_csf_scales,
        prepare_nvfp4_csf_scales,
    )

__all__ = [
    "CsfScales",
    "CsfStreams",
    "__version__",
    "compress_mxfp4_scales",
    "compress_nvfp4_scales",
    "decompress_mxfp4_csf_scales",
    "decompress_nvfp4_csf_scales",
    "prepare_csf_scales",
    "prepare_mxfp4_csf_scales",
    "prepare_nvfp4_csf_scales",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("csf_tool.gpu"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
