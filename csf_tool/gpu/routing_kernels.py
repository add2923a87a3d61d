"""The experts that a kernel decodes: a program finds by a caller's routing which of a stack are active."""

import triton
import triton.language as tl

GROUP_EXPERTS = tl.constexpr(32)
"""Experts of a group, at most: a bit each, and a lane of a warp, so that finding the active ones takes no barrier."""


@triton.jit
def either(a, b):
    """Bits of either, for a reduction."""
    return a | b


@triton.jit
def count_bits(bits):
    """The number of bits that are set in uint32s."""
    pairs = bits - ((bits >> 1) & 0x55555555)
    nibbles = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    return ((((nibbles + (nibbles >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def active_experts(routing, group, number, experts, offset, GROUPS: tl.constexpr, CHOICES: tl.constexpr):
    """The active experts of a group, which has each GROUPS-th expert from `group` on: the bits of a uint32.

    CHOICES 0: `routing` says where the rows of each expert begin. Else it is `number` chosen experts in any order,
    some perhaps more than once, and looked at CHOICES at a time; expert 0 is number `offset` there, and those that are
    no experts of this stack count for none.
    """
    if CHOICES:
        at = tl.arange(0, CHOICES)
        bits = tl.zeros((CHOICES,), tl.uint32)
        for begin in range(0, number, CHOICES):
            expert = tl.load(routing + begin + at, mask=begin + at < number, other=0).to(tl.int64) - offset
            inside = (expert >= 0) & (expert < experts) & (begin + at < number)
            expert = tl.where(inside, expert, 0).to(tl.int32)
            bit = tl.full((CHOICES,), 1, tl.uint32) << (expert // GROUPS).to(tl.uint32)
            bits |= tl.where(inside & (expert % GROUPS == group), bit, 0)
    else:
        lane = tl.arange(0, GROUP_EXPERTS)
        expert = lane * GROUPS + group
        begin = tl.load(routing + expert, mask=expert < experts, other=0)
        end = tl.load(routing + expert + 1, mask=expert < experts, other=0)
        bits = (begin != end).to(tl.uint32) << lane.to(tl.uint32)
    return tl.reduce(bits, 0, either)


@triton.jit
def comes_first(routing, slot, chosen):
    """Whether no slot before this one has the same choice. A lane of a warp for each, so that it takes no barrier."""
    lane = tl.arange(0, GROUP_EXPERTS)
    same = tl.zeros((GROUP_EXPERTS,), tl.int32)
    for begin in range(0, slot, GROUP_EXPERTS):
        mask = begin + lane < slot
        same |= ((tl.load(routing + begin + lane, mask=mask, other=0) == chosen) & mask).to(tl.int32)
    return tl.sum(same, 0) == 0
