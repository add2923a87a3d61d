"""Prepare CSF stacks for the GPU, and decompress them into buffers that the caller owns.

A stack is prepared once, when its weights are loaded, and decompressed as often as its layer runs:

    scales = prepare_nvfp4_csf_scales(fixed, exceptions, rows=640, cols=160)
    workspace = torch.empty(scales.workspace_bytes(), dtype=torch.uint8, device="cuda")
    dense = decompress_nvfp4_csf_scales(scales, out=workspace, expert_start=expert_start)

Decompressing into `out` allocates nothing and never waits for the GPU: it can be captured in a CUDA graph
(run it once before, so that its kernel is compiled) and traced by `torch.compile(fullgraph=True)`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import triton

from csf_tool.codec import formats, tiles
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.codec.prepared import LEAD_GROUP, leads_pay, piece_bytes
from csf_tool.gpu import kernels
from csf_tool.gpu.launching import launching_at, multiprocessors, require_geometry, require_gpu

Layout = Literal["linear", "swizzled"]

DENSE_DTYPES = {NVFP4: torch.float8_e4m3fn, MXFP4: torch.float8_e8m0fnu}
"""What the dense scales are, for torch."""

# The launch shape that was fastest on an H200, of 2 to 16 KiB a program and 2 to 16 warps.
_WARPS = 4
_ROUTED_PROGRAMS_PER_SM = 10

_MAX_EXCEPTIONS = 2**31 - 1


@dataclass(frozen=True, eq=False, slots=True)
class CsfScales:
    """The planes of a stack, ready to be decompressed on the device where its tensors are.

    Everything here is compressed: no dense copy is kept. The split into leads and rest, and why it is made,
    stands in `csf_tool.gpu.kernels`.
    """

    format: CsfFormat
    experts: int
    rows: int
    cols: int
    lead_group: int
    """Scales that share a place in `leads`; 0: there are no leads."""
    fixed: torch.Tensor
    """The fixed streams: uint8 `[experts, rows / 16, slab bytes]`."""
    leads: torch.Tensor
    """First exception of each group, int16 `[experts, groups]`: `value << 8 | position in the group`."""
    rest: torch.Tensor
    """All other exceptions, in order: int32 `[n]`, `value << 24 | position in the plane`."""
    piece_starts: torch.Tensor
    """Where in `rest` those of each piece of the row-major planes begin: int32 `[experts * pieces + 1]`."""
    block_starts: torch.Tensor
    """Where in `rest` those of each block of 128 rows begin: int32 `[experts * blocks + 1]`."""

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.fixed.device

    @property
    def dense_dtype(self) -> torch.dtype:
        """The dtype of the dense scales."""
        return DENSE_DTYPES[self.format]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self._tensors())

    @property
    def dense_nbytes(self) -> int:
        """Bytes of the dense scales, row-major."""
        return self.workspace_bytes()

    def dense_shape(self, layout: Layout = "linear") -> tuple[int, int, int]:
        """`[experts, rows, cols]`, in the swizzled layout with both padded to its tiles.

        Raises:
            ValueError: there is no such layout.
        """
        if layout == "linear":
            return self.experts, self.rows, self.cols
        if layout == "swizzled":
            return self.experts, *tiles.padded_shape(self.rows, self.cols)
        raise ValueError(f'layout must be "linear" or "swizzled", not {layout!r}')

    def workspace_bytes(self, layout: Layout = "linear") -> int:
        """Bytes that `out` must have. For several stacks that share a workspace, take the maximum."""
        experts, rows, cols = self.dense_shape(layout)
        return experts * rows * cols

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "CsfScales":
        """The same stack on `device`; itself when it is there already."""
        moved = [t.to(device, non_blocking=non_blocking) for t in self._tensors()]
        if all(new is old for new, old in zip(moved, self._tensors(), strict=True)):
            return self
        fixed, leads, rest, piece_starts, block_starts = moved
        return replace(self, fixed=fixed, leads=leads, rest=rest, piece_starts=piece_starts, block_starts=block_starts)

    def _tensors(self) -> tuple[torch.Tensor, ...]:
        return self.fixed, self.leads, self.rest, self.piece_starts, self.block_starts


def prepare_nvfp4_csf_scales(
    fixed: torch.Tensor | Sequence[torch.Tensor],
    exceptions: torch.Tensor | Sequence[torch.Tensor],
    *,
    rows: int,
    cols: int,
) -> CsfScales:
    """Check and prepare the NVFP4 CSF streams of a stack, on the device where they are.

    Args:
        fixed: uint8 fixed streams: one tensor a plane, each of any shape, or all planes in one tensor.
        exceptions: exception words, uint32 or their bits as int32: one 1-D tensor a plane, possibly empty.
            A tensor instead of a sequence means a single plane.
        rows: rows of a plane, a multiple of 16.
        cols: columns of a plane: scales of a row.

    Raises:
        TypeError: an input is not a tensor, or not of these dtypes.
        ValueError: the format has no such planes, the tensors do not fit together, or the streams break a
            rule of the format (the message names plane and rule).
    """
    return _prepare(NVFP4, fixed, exceptions, rows, cols)


def prepare_mxfp4_csf_scales(
    fixed: torch.Tensor | Sequence[torch.Tensor],
    exceptions: torch.Tensor | Sequence[torch.Tensor],
    *,
    rows: int,
    cols: int,
) -> CsfScales:
    """Check and prepare the MXFP4 CSF streams of a stack: as `prepare_nvfp4_csf_scales`."""
    return _prepare(MXFP4, fixed, exceptions, rows, cols)


def _prepare(
    fmt: CsfFormat,
    fixed: torch.Tensor | Sequence[torch.Tensor],
    exceptions: torch.Tensor | Sequence[torch.Tensor],
    rows: int,
    cols: int,
) -> CsfScales:
    per_plane = _tensors("exceptions", exceptions, (torch.uint32, torch.int32))
    streams = _tensors("fixed", fixed, (torch.uint8,))
    device = streams[0].device
    if any(t.device != device for t in (*streams, *per_plane)):
        raise ValueError(f"all streams must be on one device; the first fixed stream is on {device}")
    if len(streams) not in (1, len(per_plane)):
        raise ValueError(f"{len(streams)} fixed streams, but {len(per_plane)} planes have exceptions")
    joined = torch.cat([stream.reshape(-1) for stream in streams])
    words = torch.cat([words.reshape(-1).view(torch.int32) for words in per_plane])
    return prepare_csf_scales(fmt, joined, words, [len(w) for w in per_plane], rows=rows, cols=cols)


def _tensors(
    name: str, given: torch.Tensor | Sequence[torch.Tensor], dtypes: tuple[torch.dtype, ...]
) -> list[torch.Tensor]:
    tensors = [given] if isinstance(given, torch.Tensor) else list(given)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be tensors, not {type(tensor).__name__}")
        if tensor.dtype not in dtypes:
            raise TypeError(f"{name} must be {' or '.join(map(str, dtypes))}, not {tensor.dtype}")
    if not tensors:
        raise ValueError(f"{name} has no planes")
    return tensors


def prepare_csf_scales(
    fmt: CsfFormat,
    fixed: torch.Tensor,
    exceptions: torch.Tensor,
    counts: Sequence[int],
    *,
    rows: int,
    cols: int,
    validate: bool = True,
    reused: bool = True,
) -> CsfScales:
    """Prepare a stack whose streams are concatenated already: what the other prepare functions come down to.

    With neither `validate` nor `reused`, it makes one small copy to the device and never waits for it, so a
    loader can queue batches: streams from pinned memory, this, decompress, copy back.

    Args:
        fmt: the format of all planes.
        fixed: uint8 fixed streams, plane after plane. Kept, not copied, where contiguous and aligned.
        exceptions: uint32 or int32 exception words, plane after plane, on the device of `fixed`. Kept likewise
            where nothing is split off.
        counts: exceptions of each plane, on the host. Its length is the number of planes.
        rows: rows of a plane.
        cols: columns of a plane.
        validate: check the streams against the rules of the format. Decoding broken streams can write outside
            the workspace, so only streams that passed `codec.reference.check` may go without.
        reused: the stack will be decompressed many times: split off leads where that makes it faster.

    Raises:
        ValueError: as `prepare_nvfp4_csf_scales`.
    """
    experts = len(counts)
    words = exceptions.reshape(-1).view(torch.int32)
    _check_sizes(fmt, fixed, words, counts, rows, cols)
    fixed = _aligned(fixed).reshape(experts, rows // formats.SLAB_ROWS, fmt.slab_bytes(cols))
    words = _aligned(words)
    plane = _plane_of_each(counts, len(words), fixed.device)
    if validate:
        _check_fixed(fmt, fixed, cols)
        _check_positions(words, plane, rows, cols)

    group = LEAD_GROUP if reused and leads_pay(len(words), experts * rows * cols, cols) else 0
    leads = torch.zeros(0, dtype=torch.int16, device=fixed.device)
    if group:
        leads, words, plane = _split_leads(words, plane, experts, -(-rows * cols // group), group)
    position = words & formats.POSITION_MASK
    return CsfScales(
        format=fmt,
        experts=experts,
        rows=rows,
        cols=cols,
        lead_group=group,
        fixed=fixed,
        leads=leads,
        rest=words,
        piece_starts=_starts(plane, position, experts, rows * cols, piece_bytes(fmt.code_bits)),
        block_starts=_starts(plane, position, experts, rows * cols, tiles.TILE_ROWS * cols),
    )


def _runs(code_bits: int) -> int:
    """Runs of the 128x4 layout that one program writes: one a thread, or two for the same reason."""
    return 32 * _WARPS * (1 if code_bits == 4 else 2)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it that wide loads can read: contiguous and aligned to 16 bytes."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _plane_of_each(counts: Sequence[int], total: int, device: torch.device) -> torch.Tensor:
    """The plane of each exception: int64 `[total]`. One copy to the device, and no wait for it."""
    on_host = torch.tensor(counts, dtype=torch.int64)
    if device.type == "cuda":
        on_host = on_host.pin_memory()
    per_plane = on_host.to(device, non_blocking=True)
    return torch.repeat_interleave(torch.arange(len(counts), device=device), per_plane, output_size=total)


def _split_leads(
    words: torch.Tensor, plane: torch.Tensor, experts: int, groups: int, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The table of leads, and words and planes of the exceptions that are none."""
    key = plane * groups + (words & formats.POSITION_MASK) // group
    is_lead = torch.ones_like(key, dtype=torch.bool)
    is_lead[1:] = key[1:] != key[:-1]
    value = (words >> formats.POSITION_BITS) & 0xFF
    lead = value << 8 | (words & (group - 1))  # a group is a power of two, so these are its low bits
    leads = torch.full((experts * groups,), kernels.NO_LEAD, dtype=torch.int32, device=words.device)
    leads[key[is_lead]] = lead[is_lead]
    return leads.to(torch.int16).view(experts, groups), words[~is_lead], plane[~is_lead]


def _starts(plane: torch.Tensor, position: torch.Tensor, experts: int, scales: int, size: int) -> torch.Tensor:
    """Where the sorted exceptions of each `size` scales of each plane begin: int32, with the end as last."""
    parts = -(-scales // size)
    part = plane * parts + position // size
    return torch.searchsorted(part, torch.arange(experts * parts + 1, device=part.device), out_int32=True)


def _check_sizes(
    fmt: CsfFormat, fixed: torch.Tensor, words: torch.Tensor, counts: Sequence[int], rows: int, cols: int
) -> None:
    require_geometry(fmt, rows, cols)
    expected = len(counts) * fmt.fixed_bytes(rows, cols)
    if fixed.numel() != expected:
        planes = f"{len(counts)} planes of {rows}x{cols}"
        raise ValueError(f"fixed streams have {fixed.numel()} bytes, {planes} take {expected}")
    if len(words) != sum(counts):
        raise ValueError(f"{len(words)} exceptions, but the planes have {sum(counts)}")
    if len(words) > _MAX_EXCEPTIONS:
        raise ValueError(f"{len(words)} exceptions; a stack may have {_MAX_EXCEPTIONS}: split it")


def _check_fixed(fmt: CsfFormat, fixed: torch.Tensor, cols: int) -> None:
    bases = fixed[..., : formats.SLAB_ROWS]
    _refuse(bases > fmt.max_base, f"a row base is above {fmt.max_base}")
    padding = fmt.row_bytes(cols) * 8 - cols * fmt.code_bits
    if padding:
        last = fixed[..., formats.SLAB_ROWS :].reshape(*fixed.shape[:2], formats.SLAB_ROWS, -1)[..., -1]
        _refuse(last >> (8 - padding) != 0, "bits past the last column are not zero")


def _check_positions(words: torch.Tensor, plane: torch.Tensor, rows: int, cols: int) -> None:
    position = words & formats.POSITION_MASK
    unsorted = (position[1:] <= position[:-1]) & (plane[1:] == plane[:-1])
    _refuse(position >= rows * cols, f"an exception position is outside the plane of {rows * cols} scales", plane)
    _refuse(unsorted, "exception positions must strictly increase", plane[1:])


def _refuse(bad: torch.Tensor, rule: str, plane: torch.Tensor | None = None) -> None:
    """Raise ValueError with the first plane where `bad` is true; dim 0 is the plane when `plane` is None."""
    if bool(bad.any()):
        first = int(bad.nonzero()[0, 0])
        raise ValueError(f"plane {first if plane is None else int(plane[first])}: {rule}")


def decompress_nvfp4_csf_scales(
    scales: CsfScales,
    *,
    out: torch.Tensor | None = None,
    expert_start: torch.Tensor | None = None,
    layout: Layout = "linear",
) -> torch.Tensor:
    """The dense scales of a stack, float8_e4m3fn `[experts, rows, cols]`, in `out` when given.

    Args:
        scales: what `prepare_nvfp4_csf_scales` gave.
        out: contiguous workspace on the stack's device, of a one-byte dtype, at any byte offset, with at least
            `scales.workspace_bytes(layout)` elements. The rest of it is left alone.
        expert_start: the routing of grouped matrix products: int32 or int64 `[experts + 1]`, where the rows of
            each expert begin, a leading 0 and the row count last. An expert without rows is skipped: its part
            of `out` is left untouched, or is arbitrary when `out` is None.
        layout: "linear", row-major, or "swizzled": the 128x4 layout of tensor cores, `[experts, padded rows,
            padded cols]`, with zeros as padding.

    Raises:
        TypeError: `scales` or a tensor is of the wrong kind or dtype.
        ValueError: wrong format, layout, device or length; or the stack is where Triton cannot run.
    """
    _require_scales(scales, NVFP4)
    return decompress_csf_scales(scales, out=out, expert_start=expert_start, layout=layout)


def decompress_mxfp4_csf_scales(
    scales: CsfScales,
    *,
    out: torch.Tensor | None = None,
    expert_start: torch.Tensor | None = None,
    layout: Layout = "linear",
) -> torch.Tensor:
    """The dense scales of a stack, float8_e8m0fnu: as `decompress_nvfp4_csf_scales`."""
    _require_scales(scales, MXFP4)
    return decompress_csf_scales(scales, out=out, expert_start=expert_start, layout=layout)


def decompress_csf_scales(
    scales: CsfScales,
    *,
    out: torch.Tensor | None = None,
    expert_start: torch.Tensor | None = None,
    layout: Layout = "linear",
) -> torch.Tensor:
    """The dense scales of a stack of either format: what the other decompress functions come down to."""
    _require_scales(scales)
    shape = scales.dense_shape(layout)
    size = scales.workspace_bytes(layout)
    if out is None:
        out = torch.empty(size, dtype=torch.uint8, device=scales.device)
    _check_workspace(scales, out, size)
    if expert_start is not None:
        _check_expert_start(scales, expert_start)
    _decompress_op(
        scales.fixed,
        scales.leads,
        scales.rest,
        scales.block_starts if layout == "swizzled" else scales.piece_starts,
        expert_start,
        out,
        scales.rows,
        scales.cols,
        scales.format.code_bits,
        scales.lead_group,
        layout == "swizzled",
    )
    return out.view(-1)[:size].view(scales.dense_dtype).view(shape)


def _require_scales(scales: CsfScales, fmt: CsfFormat | None = None) -> None:
    if not isinstance(scales, CsfScales):
        raise TypeError(f"scales must be prepared CsfScales, not {type(scales).__name__}")
    if fmt and scales.format != fmt:
        raise ValueError(f"these are {scales.format.title} scales, not {fmt.title}")


def _check_workspace(scales: CsfScales, out: torch.Tensor, size: int) -> None:
    if not isinstance(out, torch.Tensor) or out.dtype.itemsize != 1:
        kind = out.dtype if isinstance(out, torch.Tensor) else type(out).__name__
        raise TypeError(f"out must be a tensor of bytes (uint8 or float8), not {kind}")
    if out.device != scales.device:
        raise ValueError(f"out is on {out.device}, the scales are on {scales.device}")
    if not out.is_contiguous():
        raise ValueError("out must be contiguous")
    if out.numel() < size:
        raise ValueError(f"out has {out.numel()} bytes, the dense scales take {size}")


def _check_expert_start(scales: CsfScales, expert_start: torch.Tensor) -> None:
    if not isinstance(expert_start, torch.Tensor) or expert_start.dtype not in (torch.int32, torch.int64):
        kind = expert_start.dtype if isinstance(expert_start, torch.Tensor) else type(expert_start).__name__
        raise TypeError(f"expert_start must be an int32 or int64 tensor, not {kind}")
    if expert_start.device != scales.device:
        raise ValueError(f"expert_start is on {expert_start.device}, the scales are on {scales.device}")
    if expert_start.shape != (scales.experts + 1,):
        shape = tuple(expert_start.shape)
        raise ValueError(f"expert_start has shape {shape}, {scales.experts} experts need ({scales.experts + 1},)")
    if not expert_start.is_contiguous():
        raise ValueError("expert_start must be contiguous")


@torch.library.custom_op("csf_tool::decompress", mutates_args={"out"})
def _decompress_op(
    fixed: torch.Tensor,
    leads: torch.Tensor,
    rest: torch.Tensor,
    starts: torch.Tensor,
    expert_start: torch.Tensor | None,
    out: torch.Tensor,
    rows: int,
    cols: int,
    code_bits: int,
    lead_group: int,
    swizzled: bool,
) -> None:
    """Launch the kernel. The arguments are fields of `CsfScales`, which has passed the checks."""
    require_gpu(fixed)
    experts = fixed.shape[0]
    if swizzled:
        padded_rows, padded_cols = tiles.padded_shape(rows, cols)
        width = math.gcd(padded_cols // tiles.TILE_COLS, kernels.MAX_WIDTH)
        size, units = _runs(code_bits), padded_rows * padded_cols // (16 * width)
    else:
        width, size, units = 0, piece_bytes(code_bits), rows * cols
    items = triton.cdiv(units, size)
    grid = (experts * items,) if expert_start is None else _routed_grid(experts, items, fixed.device)
    with launching_at(fixed):
        kernels.decode[grid](
            fixed,
            leads,
            rest,
            starts,
            out.view(torch.uint8),
            expert_start,
            experts,
            ROWS=rows,
            COLS=cols,
            BITS=code_bits,
            GROUP=lead_group,
            WIDTH=width,
            SIZE=size,
            ITEMS=items,
            LANES=32 * _WARPS,
            ROUTED=expert_start is not None,
            WORD_ALIGNED=out.data_ptr() % 4 == 0,
            num_warps=_WARPS,
        )


@_decompress_op.register_fake
def _(
    fixed: torch.Tensor,
    leads: torch.Tensor,
    rest: torch.Tensor,
    starts: torch.Tensor,
    expert_start: torch.Tensor | None,
    out: torch.Tensor,
    rows: int,
    cols: int,
    code_bits: int,
    lead_group: int,
    swizzled: bool,
) -> None:
    """Nothing to infer: the operator only writes `out`."""


def _routed_grid(experts: int, items: int, device: torch.device) -> tuple[int, int]:
    """Programs a block of experts, and blocks: few enough to start at once, with equal shares when all are active."""
    blocks = triton.cdiv(experts, kernels.EXPERT_BLOCK)
    block_items = min(experts, kernels.EXPERT_BLOCK) * items
    rounds = triton.cdiv(block_items * blocks, _ROUTED_PROGRAMS_PER_SM * multiprocessors(device))
    return triton.cdiv(block_items, rounds), blocks
