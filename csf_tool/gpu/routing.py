"""The routing that decoding takes, `expert_start`, from the experts that a router chose for its tokens."""

import torch
import triton
import triton.language as tl

from csf_tool.gpu.launching import launching_at, require_gpu

_CHUNK = 64
"""Choices that are compared with all experts at a time."""

_WARPS = 16


@triton.jit(do_not_specialize=["number", "experts"])
def count_choices(chosen, expert_start, number, experts, EXPERTS: tl.constexpr, CHUNK: tl.constexpr):
    """Write where each expert's rows begin if the choices are sorted. One program; EXPERTS is a power of two."""
    expert = tl.arange(0, EXPERTS)
    choice = tl.arange(0, CHUNK)
    matches = tl.zeros((CHUNK, EXPERTS), dtype=tl.int32)  # added up once: a sum among warps waits for all of them
    for begin in range(0, number, CHUNK):
        some = tl.load(chosen + begin + choice, mask=begin + choice < number, other=0).to(tl.int32)
        match = (some[:, None] == expert[None, :]) & (begin + choice < number)[:, None]
        matches += match.to(tl.int32)
    ends = tl.cumsum(tl.sum(matches, 0), 0)
    tl.store(expert_start + expert + 1, ends, mask=expert < experts)
    tl.store(expert_start + expert, 0, mask=expert == 0)


def expert_start_of(chosen: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The places where the rows of each expert begin, in `out`: `expert_start` of the decompress functions.

    One launch, which allocates nothing and waits for nothing, and which takes longer the more choices there are: with
    many more of them than experts hardly an expert is idle, and decoding all is as good.

    Args:
        chosen: the numbers of the chosen experts, integers of any shape, contiguous. Others than `out` has room for,
            such as -1, count for none.
        out: contiguous int32 `[experts + 1]`, on the same device.

    Raises:
        ValueError: a tensor is not as it must be, or where Triton cannot run.
    """
    require_gpu(chosen)
    if out.dtype != torch.int32 or out.dim() != 1 or not out.is_contiguous() or out.device != chosen.device:
        raise ValueError(f"out must be contiguous int32 [experts + 1] on {chosen.device}")
    if chosen.is_floating_point() or not chosen.is_contiguous():
        raise ValueError("chosen must be contiguous integers")
    experts = len(out) - 1
    with launching_at(chosen):
        count_choices[(1,)](
            chosen, out, chosen.numel(), experts,
            EXPERTS=triton.next_power_of_2(experts), CHUNK=_CHUNK, num_warps=_WARPS,
        )  # fmt: skip
    return out
