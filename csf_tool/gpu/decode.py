"""The decode kernel's tables of a stack, and its launch. Another kernel means another such module."""

from dataclasses import dataclass, replace

import torch
import triton

from csf_tool.codec import formats, tiles
from csf_tool.codec.prepared import LEAD_GROUP, PIECE_BYTES, leads_pay
from csf_tool.gpu import decode_kernels, routing_kernels
from csf_tool.gpu.launching import is_traced, launching_at, multiprocessors, register_limit, require_gpu
from csf_tool.gpu.layouts import LayoutArguments, divide
from csf_tool.gpu.routing import Routing
from csf_tool.gpu.streams import CsfStreams

# The launch shape that was fastest on an H200, of 2 to 16 KiB a program and 2 to 16 warps.
_WARPS = 8

# More programs a multiprocessor would decode all experts sooner, and few of them later: a GPU starts one a cycle, all
# in all. Where codes have one bit, there is less to read before a program writes, and a few more pay.
_ROUTED_PROGRAMS_PER_SM = 22
_MORE_FOR_BITS = 4

# Where a thread reads four rows, ptxas by itself spares registers, and lets loads wait for one another.
_RUN_REGISTERS = 64

MOST_SLOTS = 128
"""Chosen experts, at most, that have programs of their own: each program looks through those before it."""

_CHOICES = 512
"""Chosen experts that a program looks at at a time: four a thread, so that their loads are under way together."""


@dataclass(frozen=True, eq=False, slots=True)
class DecodeTables:
    """A stack as the kernel takes it, on its device. `decode_kernels` says what leads and rest are, and why."""

    fixed: torch.Tensor
    """The fixed streams: uint8 `[experts, rows / 16, slab bytes]`."""
    lead_group: int
    """Scales that share a place in `leads`; 0: there are no leads."""
    leads: torch.Tensor
    """First exception of each group, int16 `[experts, groups]`: `value << 8 | position in the group`."""
    rest: torch.Tensor
    """All other exceptions, in order: int32 `[n]`, `value << 24 | position in the plane`."""
    piece_starts: torch.Tensor
    """Index in `rest` at which each piece of the row-major planes begins: int32 `[experts * pieces + 1]`."""
    block_starts: torch.Tensor
    """Index in `rest` at which each block of 128 rows begins: int32 `[experts * blocks + 1]`."""

    @classmethod
    def of(cls, streams: CsfStreams, *, reused: bool) -> "DecodeTables":
        """The tables of checked streams. Makes one small copy to the device, and does not wait.

        `reused`: the stack will be decoded many times, so that leads pay where they make that faster.
        """
        experts, scales, cols = streams.experts, streams.rows * streams.cols, streams.cols
        words, plane = _aligned(streams.words), streams.plane_of_each()
        group = LEAD_GROUP if reused and leads_pay(len(words), experts * scales, cols) else 0
        leads = torch.zeros(0, dtype=torch.int16, device=words.device)
        if group:
            leads, words, plane = _split_leads(words, plane, experts, -(-scales // group), group)
        position = words & formats.POSITION_MASK
        return cls(
            fixed=_aligned(streams.fixed),
            lead_group=group,
            leads=leads,
            rest=words,
            piece_starts=_starts(plane, position, experts, scales, PIECE_BYTES),
            block_starts=_starts(plane, position, experts, scales, tiles.TILE_ROWS * cols),
        )

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors on the device."""
        return self.fixed, self.leads, self.rest, self.piece_starts, self.block_starts

    def to(self, device: torch.device | str, *, non_blocking: bool) -> "DecodeTables":
        """The same on `device`; itself when it is there already."""
        moved = [tensor.to(device, non_blocking=non_blocking) for tensor in self.tensors()]
        if all(new is old for new, old in zip(moved, self.tensors(), strict=True)):
            return self
        fixed, leads, rest, piece_starts, block_starts = moved
        return replace(self, fixed=fixed, leads=leads, rest=rest, piece_starts=piece_starts, block_starts=block_starts)

    def decode(
        self,
        out: torch.Tensor,
        routing: Routing,
        layout: LayoutArguments,
        *,
        rows: int,
        cols: int,
        code_bits: int,
    ) -> None:
        """Write the dense scales to `out`. Nothing is checked here: a wrong number writes anywhere."""
        starts = self.block_starts if layout.form else self.piece_starts
        decompress = _decompress_op if is_traced(out, self.fixed) else _launch
        decompress(
            self.fixed, self.leads, self.rest, starts, *routing,
            layout.destinations, layout.table, layout.form, layout.swap, layout.turns,
            out, rows, cols, code_bits, self.lead_group,
        )  # fmt: skip


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it that wide loads can read: contiguous and aligned to 16 bytes."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _split_leads(
    words: torch.Tensor, plane: torch.Tensor, experts: int, groups: int, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The table of leads, then words and planes of all other exceptions."""
    key = plane * groups + (words & formats.POSITION_MASK) // group
    is_lead = torch.ones_like(key, dtype=torch.bool)
    is_lead[1:] = key[1:] != key[:-1]
    value = (words >> formats.POSITION_BITS) & 0xFF
    lead = value << 8 | (words & (group - 1))  # a group is a power of two, so these are its low bits
    leads = torch.full((experts * groups,), decode_kernels.NO_LEAD, dtype=torch.int32, device=words.device)
    leads[key[is_lead]] = lead[is_lead]
    return leads.to(torch.int16).view(experts, groups), words[~is_lead], plane[~is_lead]


def _starts(plane: torch.Tensor, position: torch.Tensor, experts: int, scales: int, size: int) -> torch.Tensor:
    """Index of the first sorted exception of each `size` scales of each plane: int32, with the end as last."""
    parts = -(-scales // size)
    part = plane * parts + position // size
    return torch.searchsorted(part, torch.arange(experts * parts + 1, device=part.device), out_int32=True)


def _launch(
    fixed: torch.Tensor,
    leads: torch.Tensor,
    rest: torch.Tensor,
    starts: torch.Tensor,
    expert_start: torch.Tensor | None,
    topk_ids: torch.Tensor | None,
    expert_offset: int,
    destinations: torch.Tensor | None,
    table: torch.Tensor | None,
    form: int,
    swap: bool,
    turns: int,
    out: torch.Tensor,
    rows: int,
    cols: int,
    code_bits: int,
    lead_group: int,
) -> None:
    """Launch the kernel."""
    require_gpu(fixed)
    experts = fixed.shape[0]
    width, size, items = divide(form, rows, cols, 32 * _WARPS)
    chosen = expert_start if topk_ids is None else topk_ids
    number = 0 if topk_ids is None else topk_ids.numel()
    slots = 0 < number <= MOST_SLOTS
    groups = 0 if chosen is None or slots else _groups(experts)
    grid: tuple[int, ...] = (experts * items,)
    if groups:
        per_sm = _ROUTED_PROGRAMS_PER_SM + (_MORE_FOR_BITS if code_bits == 1 else 0)
        programs = round(per_sm * multiprocessors(fixed.device) / (groups * items))
        grid = (groups * items, max(1, min(programs, triton.cdiv(experts, groups))))
    elif slots:
        grid = (items, number)
    with launching_at(fixed):
        decode_kernels.decode[grid](
            fixed,
            leads,
            rest,
            starts,
            out.view(torch.uint8),
            destinations,
            table,
            chosen,
            number,
            expert_offset,
            experts,
            ROWS=rows,
            COLS=cols,
            BITS=code_bits,
            GROUP=lead_group,
            WIDTH=width,
            SIZE=size,
            ITEMS=items,
            LANES=32 * _WARPS,
            SLOTS=slots,
            GROUPS=groups,
            CHOICES=0 if topk_ids is None else _CHOICES,
            FORM=form,
            SWAP=swap,
            TURNS=turns,
            WORD_ALIGNED=out.data_ptr() % 4 == 0,
            num_warps=_WARPS,
            **register_limit(_RUN_REGISTERS if width else None),
        )
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)  # as an operator would: a backward that needs what was there raises


# Graphs hold it. Calls outside of them do without, for an operator's first call imports what compiles graphs: seconds.
# It only writes, so torch infers nothing of it.
_decompress_op = torch.library.custom_op("csf_tool::decompress", _launch, mutates_args={"out"})


def _groups(experts: int) -> int:
    """Groups of experts that programs look at. An odd number: a warp then reads a group from all banks of the cache."""
    return -(-experts // int(routing_kernels.GROUP_EXPERTS)) | 1
