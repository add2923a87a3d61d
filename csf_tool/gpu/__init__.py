"""Decode and encode CSF scales on the GPU, with torch and Triton. No files."""

from csf_tool.gpu.compress import CsfStreams, compress_csf_scales, compress_mxfp4_scales, compress_nvfp4_scales
from csf_tool.gpu.scales import (
    CsfScales,
    decompress_csf_scales,
    decompress_mxfp4_csf_scales,
    decompress_nvfp4_csf_scales,
    prepare_csf_scales,
    prepare_mxfp4_csf_scales,
    prepare_nvfp4_csf_scales,
)
from csf_tool.gpu.workspace import ScaleWorkspace

__all__ = [
    "CsfScales",
    "CsfStreams",
    "ScaleWorkspace",
    "compress_csf_scales",
    "compress_mxfp4_scales",
    "compress_nvfp4_scales",
    "decompress_csf_scales",
    "decompress_mxfp4_csf_scales",
    "decompress_nvfp4_csf_scales",
    "prepare_csf_scales",
    "prepare_mxfp4_csf_scales",
    "prepare_nvfp4_csf_scales",
]
