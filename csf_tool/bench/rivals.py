"""What decoding is measured against: the floor, two launches, plain PyTorch, and nvCOMP's entropy coder."""

import functools
from collections.abc import Callable
from importlib.util import find_spec

import torch
import triton

from csf_tool.bench import kernels
from csf_tool.bench.workloads import Streams, Workload
from csf_tool.codec.formats import POSITION_BITS, SLAB_ROWS
from csf_tool.gpu import CsfScales, prepare_csf_scales

FLOOR_TILES = [(kib * 1024, warps) for kib in (2, 4, 8, 16, 32) for warps in (4, 8)]
"""Dense bytes a program and warps of the streaming kernels whose best is the floor."""

_LANES = 1024


def streamer(read_bytes: int, dense_bytes: int, size: int, warps: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A launch that reads about `read_bytes` of its first tensor and writes `dense_bytes` of its second."""
    programs = triton.cdiv(dense_bytes, size)
    share = read_bytes // programs // 16 * 16

    def launch(source: torch.Tensor, out: torch.Tensor) -> None:
        kernels.stream[(programs,)](source, out, dense_bytes // 16, READ=share, SIZE=size, num_warps=warps)

    return launch


def launch_empty(tensor: torch.Tensor) -> None:
    """Launch a kernel that does nothing."""
    kernels.empty[(1,)](tensor)


def without_exceptions(work: Workload, streams: Streams) -> CsfScales:
    """The stack with its exceptions left out: the first of two launches."""
    none = streams.words[:0]
    return prepare_csf_scales(
        work.format, streams.fixed.clone(), none, [0] * work.experts, rows=work.rows, cols=work.cols
    )


def scatter_exceptions(streams: Streams, out: torch.Tensor) -> None:
    """Store all exceptions over the dense bytes: the second of two launches."""
    count = len(streams.words)
    kernels.scatter[(triton.cdiv(count, _LANES),)](streams.words, streams.places, out, count, LANES=_LANES)


def torch_decode(work: Workload, streams: Streams) -> torch.Tensor:
    """The dense bytes `[experts, rows, cols]` with nothing but tensor operations."""
    fmt = work.format
    shifts = torch.arange(0, 8, fmt.code_bits, dtype=torch.uint8, device=streams.fixed.device)
    bases = streams.fixed[..., :SLAB_ROWS].reshape(work.experts, work.rows, 1)
    packed = streams.fixed[..., SLAB_ROWS:].reshape(work.experts, work.rows, -1, 1)
    codes = ((packed >> shifts) & (fmt.window - 1)).view(work.experts, work.rows, -1)[..., : work.cols]
    dense = codes + bases
    dense.view(-1)[streams.places] = ((streams.words >> POSITION_BITS) & 0xFF).to(torch.uint8)
    return dense


def nvcomp_missing() -> str | None:
    """Why nvCOMP is not measured, or None when it is there."""
    if find_spec("nvidia") is None or find_spec("nvidia.nvcomp") is None:
        return "nvidia-nvcomp is not installed"
    return None


def nvcomp_decoder(dense: torch.Tensor) -> tuple[Callable[[], object], int]:
    """A call that decodes `dense` from nvCOMP's ANS coding on the current stream, and the coded bytes.

    It decodes to a buffer of its own, with the header parsed before: no allocation and no wait are in its time.
    """
    from nvidia import nvcomp

    stream = torch.cuda.current_stream().cuda_stream
    codec = nvcomp.Codec(algorithm="ANS", cuda_stream=stream)
    coded = codec.encode(nvcomp.as_array(dense.view(-1), cuda_stream=stream))
    config = codec.decompression_config(coded)
    out = torch.empty_like(dense.view(-1))
    return functools.partial(codec.decode, coded, out=out, decompression_config=config), coded.buffer_size
