"""The stacks that are measured: real geometries, made-up scales with the exception rates of real checkpoints."""

from dataclasses import dataclass

import torch

from csf_tool.codec.formats import MXFP4, NVFP4, POSITION_BITS, POSITION_MASK, SLAB_ROWS, CsfFormat
from csf_tool.errors import EnvironmentFault
from csf_tool.gpu.streams import CsfStreams


@dataclass(frozen=True, slots=True)
class Workload:
    """A stack to measure."""

    name: str
    format: CsfFormat
    experts: int
    rows: int
    cols: int
    exception_share: float

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense scales."""
        return self.experts * self.rows * self.cols


WORKLOADS = (
    Workload("Qwen3.8 gate", NVFP4, 512, 640, 160, 0.010),
    Workload("Qwen3.8 down", NVFP4, 512, 2560, 40, 0.004),
    Workload("GLM-5.3 gate", NVFP4, 288, 2048, 256, 0.010),
    Workload("GLM-5.3 down", NVFP4, 288, 4096, 128, 0.004),
    Workload("DeepSeek-V4.1 w1", MXFP4, 384, 2304, 160, 0.0006),
    Workload("DeepSeek-V4.1 w2", MXFP4, 384, 5120, 72, 0.0006),
)
"""Gate and down stacks of the checkpoints in the format description, one layer each."""

ENCODED = (("gate and up", 1280, 160), ("down", 2560, 40))
"""Planes of the layer that the encoder is timed on: 512 experts of each, 157 MB of scales."""

ENCODED_EXPERTS = 512

ACTIVE_EXPERTS = 8
"""Experts that have tokens in a routing to a few."""


class WrongBytes(EnvironmentFault):
    """Raised when what is about to be timed does not give the right bytes, so that its time means nothing."""


def make_streams(work: Workload, device: torch.device) -> CsfStreams:
    """Random streams of the stack. Bases lie close together, as block scales do, so that entropy coders can work.

    No scale is NaN, nor so large that a product overflows: products would be equal whatever was decoded.
    """
    random = torch.Generator(device).manual_seed(0)
    slabs = work.rows // SLAB_ROWS
    shape = (work.experts, slabs, work.format.slab_bytes(work.cols))
    fixed = torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=random)
    bases = torch.randint(96, 104, (work.experts, slabs, SLAB_ROWS), device=device, generator=random)
    fixed[..., :SLAB_ROWS] = bases.to(torch.uint8)
    padding = work.format.row_bytes(work.cols) * 8 - work.cols * work.format.code_bits
    if padding:
        rows = fixed[..., SLAB_ROWS:].view(*shape[:2], SLAB_ROWS, -1)
        rows[..., -1] &= 0xFF >> padding
    plane = work.rows * work.cols
    strays = torch.rand(work.experts, plane, device=device, generator=random) < work.exception_share
    places = strays.view(-1).nonzero().view(-1)
    values = torch.randint(0, 256, places.shape, device=device, generator=random)
    if work.format.scale_type == "E4M3":
        values ^= torch.where(values & 0x7F == 0x7F, 0x10, 0)
    else:
        values &= 0x7F  # at most 1
    words = values << POSITION_BITS | places % plane
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return CsfStreams.of(work.format, fixed, words, strays.sum(1).tolist(), work.rows, work.cols)


def choices(experts: int, active: int, number: int) -> list[torch.Tensor]:
    """So many different random choices of active experts: int64 `[active]` each, on the CPU."""
    seeds = [torch.Generator().manual_seed(seed) for seed in range(number)]
    return [torch.randperm(experts, generator=seed)[:active] for seed in seeds]


def expert_start(experts: int, chosen: torch.Tensor, tokens: int, device: torch.device) -> torch.Tensor:
    """The routing in which the `chosen` experts have `tokens` tokens each, and no others any: int32 `[experts + 1]`."""
    ends = torch.zeros(experts + 1, dtype=torch.int32)
    ends[chosen + 1] = tokens
    return ends.cumsum(0).int().to(device)


def copied(streams: CsfStreams) -> CsfStreams:
    """The same streams in memory of their own."""
    fixed, words = streams.fixed.clone(), streams.words.clone()
    return CsfStreams.of(streams.format, fixed, words, streams.counts, streams.rows, streams.cols)


def places_of(streams: CsfStreams) -> torch.Tensor:
    """Position of each exception in the row-major stack: int64 `[n]`."""
    return streams.plane_of_each() * (streams.rows * streams.cols) + (streams.words & POSITION_MASK)


def make_scales(rows: int, cols: int, device: torch.device) -> torch.Tensor:
    """Dense NVFP4 scales to encode: bell-shaped rows, with 1% of strays."""
    random = torch.Generator(device).manual_seed(1)
    shape = (ENCODED_EXPERTS, rows, cols)
    bell = torch.randn(shape, device=device, generator=random) * 3
    scales = (bell + torch.randint(100, 120, (*shape[:2], 1), device=device, generator=random)).round().to(torch.uint8)
    strays = torch.rand(shape, device=device, generator=random) < 0.01
    return torch.where(strays, torch.randint_like(scales, 0, 256), scales)
