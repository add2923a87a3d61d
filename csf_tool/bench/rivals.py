"""Rivals of the decoder: the streaming floor, two launches, plain PyTorch, and nvCOMP's entropy coder."""

import functools
from collections.abc import Callable
from importlib.util import find_spec

import torch
import triton

from csf_tool.bench import rival_kernels
from csf_tool.bench.workloads import places_of
from csf_tool.codec.formats import POSITION_BITS, SLAB_ROWS
from csf_tool.gpu.scales import CsfScales, prepared
from csf_tool.gpu.streams import CsfStreams

FLOOR_TILES = [(kib * 1024, warps) for kib in (2, 4, 8, 16, 32) for warps in (4, 8)]
"""Dense bytes a program and warps of the streaming kernels whose best is the floor."""

_LANES = 1024


def streamer(read_bytes: int, dense_bytes: int, size: int, warps: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A launch that reads about `read_bytes` of its first tensor and writes `dense_bytes` of its second."""
    programs = triton.cdiv(dense_bytes, size)
    share = read_bytes // programs // 16 * 16

    def launch(source: torch.Tensor, out: torch.Tensor) -> None:
        rival_kernels.stream[(programs,)](source, out, dense_bytes // 16, READ=share, SIZE=size, num_warps=warps)

    return launch


def launch_empty(tensor: torch.Tensor) -> None:
    """Launch a kernel that does nothing."""
    rival_kernels.empty[(1,)](tensor)


def without_exceptions(streams: CsfStreams) -> CsfScales:
    """The stack with its exceptions left out, in memory of its own: the first of two launches."""
    fmt, fixed, none = streams.format, streams.fixed.clone(), streams.words[:0]
    return prepared(CsfStreams.of(fmt, fixed, none, [0] * streams.experts, streams.rows, streams.cols))


def scatter_exceptions(words: torch.Tensor, places: torch.Tensor, out: torch.Tensor) -> None:
    """Store exceptions at their places over the dense bytes: the second of two launches."""
    rival_kernels.scatter[(triton.cdiv(len(words), _LANES),)](words, places, out, len(words), LANES=_LANES)


def torch_decode(streams: CsfStreams, places: torch.Tensor | None = None) -> torch.Tensor:
    """The dense bytes `[experts, rows, cols]` with nothing but tensor operations.

    `places` are those of the exceptions, where they are known already.
    """
    fmt, shape = streams.format, (streams.experts, streams.rows, -1)
    places = places_of(streams) if places is None else places
    shifts = torch.arange(0, 8, fmt.code_bits, dtype=torch.uint8, device=streams.fixed.device)
    bases = streams.fixed[..., :SLAB_ROWS].reshape(shape)
    packed = streams.fixed[..., SLAB_ROWS:].reshape(*shape, 1)
    codes = ((packed >> shifts) & (fmt.window - 1)).view(shape)[..., : streams.cols]
    dense = codes + bases
    dense.view(-1)[places] = ((streams.words >> POSITION_BITS) & 0xFF).to(torch.uint8)
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
