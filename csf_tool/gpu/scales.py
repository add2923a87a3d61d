"""Prepare CSF stacks for the GPU, and decompress them into buffers that the caller owns.

A stack is prepared once, when its weights are loaded, and decompressed as often as its layer runs:

    scales = prepare_nvfp4_csf_scales(fixed, exceptions, rows=640, cols=160)
    workspace = torch.empty(scales.workspace_bytes(), dtype=torch.uint8, device="cuda")
    dense = decompress_nvfp4_csf_scales(scales, out=workspace, expert_start=expert_start)

Decompressing into `out` allocates nothing and never waits for the GPU: it can be captured in a CUDA graph
(run it once before in the same way, so that its kernel is compiled: up to 128 choices in `topk_ids` and more of them
are two) and traced by `torch.compile(fullgraph=True)`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.dtypes import DTYPES
from csf_tool.gpu.arguments import require_bytes, whole_number
from csf_tool.gpu.decode import DecodeTables
from csf_tool.gpu.launching import require_contiguous_at
from csf_tool.gpu.layouts import AnyLayout, dense_shape, layout_of
from csf_tool.gpu.routing import Routing
from csf_tool.gpu.streams import CsfStreams


@dataclass(frozen=True, eq=False, slots=True)
class CsfScales:
    """The planes of a stack, ready to be decompressed on the device where its tensors are.

    Everything here is compressed: no dense copy is kept.
    """

    format: CsfFormat
    experts: int
    rows: int
    cols: int
    _tables: DecodeTables

    def __repr__(self) -> str:
        return f"<CsfScales {self.format.name}: {self.experts} planes {self.rows}x{self.cols}, {self.device}>"

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self._tables.fixed.device

    @property
    def dense_dtype(self) -> torch.dtype:
        """The dtype of the dense scales."""
        dtype: torch.dtype = getattr(torch, DTYPES[self.format.dense_dtype].torch)
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self._tables.tensors())

    @property
    def dense_nbytes(self) -> int:
        """Bytes of the dense scales, row-major."""
        return self.workspace_bytes()

    def dense_shape(self, layout: AnyLayout = "linear") -> tuple[int, int, int]:
        """`[experts, rows, cols]`; in the 128x4 layout padded to its tiles, in Marlin's `[experts, cols, rows]`.

        Raises:
            ValueError: there is no such layout.
        """
        return self.experts, *dense_shape(layout, self.rows, self.cols)

    def workspace_bytes(self, layout: AnyLayout = "linear") -> int:
        """Bytes that `out` must have. For several stacks that share a workspace, take the maximum.

        Raises:
            ValueError: there is no such layout.
        """
        experts, rows, cols = self.dense_shape(layout)
        return experts * rows * cols

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "CsfScales":
        """The same stack on `device`; itself when it is there already."""
        tables = self._tables.to(torch.device(device), non_blocking=non_blocking)
        return self if tables is self._tables else replace(self, _tables=tables)


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
        TypeError: an input is not a tensor, or not of these dtypes; rows or columns are no whole number.
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
    if any(words.dim() != 1 for words in per_plane):
        raise ValueError("exceptions must be 1-D, a tensor for each plane")
    if any(t.device != device for t in (*streams, *per_plane)):
        raise ValueError(f"all streams must be on one device; the first fixed stream is on {device}")
    if len(streams) not in (1, len(per_plane)):
        raise ValueError(f"there are {len(streams)} fixed streams, but {len(per_plane)} lists of exceptions")
    joined = torch.cat([stream.reshape(-1) for stream in streams])
    words = torch.cat([words.view(torch.int32) for words in per_plane])
    return prepare_csf_scales(fmt, joined, words, [len(w) for w in per_plane], rows=rows, cols=cols)


def _tensors(
    name: str, given: torch.Tensor | Sequence[torch.Tensor], dtypes: tuple[torch.dtype, ...]
) -> list[torch.Tensor]:
    if not isinstance(given, Iterable):
        raise TypeError(f"{name} must be tensors, not {type(given).__name__}")
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
    """Prepare a stack whose streams are concatenated already: the function behind the other prepare functions.

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
        TypeError: an argument is of the wrong kind or dtype.
        ValueError: as `prepare_nvfp4_csf_scales`.
    """
    streams = CsfStreams.of(fmt, fixed, exceptions, counts, rows, cols)
    if validate:
        streams.check()
    return prepared(streams, reused=reused)


def prepared(streams: CsfStreams, *, reused: bool = True) -> CsfScales:
    """A stack of checked streams, ready to be decompressed: once, or, `reused`, as often as its layer runs."""
    tables = DecodeTables.of(streams, reused=reused)
    return CsfScales(streams.format, streams.experts, streams.rows, streams.cols, tables)


def decompress_nvfp4_csf_scales(
    scales: CsfScales,
    *,
    out: torch.Tensor | None = None,
    expert_start: torch.Tensor | None = None,
    topk_ids: torch.Tensor | None = None,
    expert_offset: int = 0,
    layout: AnyLayout = "linear",
) -> torch.Tensor:
    """The dense scales of a stack, float8_e4m3fn of `scales.dense_shape(layout)`, in `out` when given.

    Args:
        scales: what `prepare_nvfp4_csf_scales` gave.
        out: contiguous workspace on the stack's device, of a one-byte dtype, at any byte offset, with at least
            `scales.workspace_bytes(layout)` elements, for which autograd records nothing. The rest of it is left alone.
        expert_start: the routing of grouped matrix products: int32 or int64 `[experts + 1]`, where the rows of
            each expert begin, a leading 0 and the row count last. An expert without rows is skipped: its part
            of `out` is left untouched, or is arbitrary when `out` is None.
        topk_ids: in place of `expert_start`, the experts that a router chose for its tokens: int32 or int64 of any
            shape, contiguous. An expert may come more than once; numbers that are none of this stack's count for
            none. Skips the others, with the same launch and no buffer.
        expert_offset: the number that this stack's first expert has among `topk_ids`, where experts are spread over
            ranks.
        layout: "linear", row-major; "swizzled", the 128x4 layout of tensor cores, `[experts, padded rows, padded
            cols]`, with zeros as padding; "marlin", the order of Marlin's kernels, `[experts, cols, rows]`; or a
            `ScaleLayout`, which also orders rows and changes bytes by a table.

    Raises:
        TypeError: `scales` or a tensor is of the wrong kind or dtype.
        ValueError: wrong format, layout, device, shape or length; a tensor that is not contiguous; an `out` that
            requires a gradient; or the stack is where Triton cannot run.
    """
    _require_format(scales, NVFP4)
    return decompress_csf_scales(
        scales, out=out, expert_start=expert_start, topk_ids=topk_ids, expert_offset=expert_offset, layout=layout
    )


def decompress_mxfp4_csf_scales(
    scales: CsfScales,
    *,
    out: torch.Tensor | None = None,
    expert_start: torch.Tensor | None = None,
    topk_ids: torch.Tensor | None = None,
    expert_offset: int = 0,
    layout: AnyLayout = "linear",
) -> torch.Tensor:
    """The dense scales of a stack, float8_e8m0fnu: as `decompress_nvfp4_csf_scales`."""
    _require_format(scales, MXFP4)
    return decompress_csf_scales(
        scales, out=out, expert_start=expert_start, topk_ids=topk_ids, expert_offset=expert_offset, layout=layout
    )


def decompress_csf_scales(
    scales: CsfScales,
    *,
    out: torch.Tensor | None = None,
    expert_start: torch.Tensor | None = None,
    topk_ids: torch.Tensor | None = None,
    expert_offset: int = 0,
    layout: AnyLayout = "linear",
) -> torch.Tensor:
    """The dense scales of a stack of either format: the function behind the other decompress functions.

    Raises:
        TypeError: as `decompress_nvfp4_csf_scales`.
        ValueError: likewise.
    """
    require_scales("scales", scales)
    shape = scales.dense_shape(layout)
    size = scales.workspace_bytes(layout)
    if out is None:
        out = torch.empty(size, dtype=torch.uint8, device=scales.device)
    _check_workspace(scales, out, size)
    routing = Routing(expert_start, topk_ids, whole_number("expert_offset", expert_offset))
    routing.require(scales.experts, scales.device)
    arguments = layout_of(layout).arguments(scales.rows, scales.cols, scales.device)
    scales._tables.decode(
        out, routing, arguments, rows=scales.rows, cols=scales.cols, code_bits=scales.format.code_bits
    )
    return out.view(-1)[:size].view(scales.dense_dtype).view(shape)


def require_scales(name: str, given: object) -> None:
    """Raise TypeError when an argument is no prepared stack."""
    if not isinstance(given, CsfScales):
        raise TypeError(f"{name} must be prepared CsfScales, not {type(given).__name__}")


def _require_format(scales: CsfScales, fmt: CsfFormat) -> None:
    require_scales("scales", scales)
    if scales.format != fmt:
        raise ValueError(f"the scales are {scales.format.title}, not {fmt.title}")


def _check_workspace(scales: CsfScales, out: torch.Tensor, size: int) -> None:
    require_bytes("out", out, "uint8 or float8")
    if out.requires_grad and torch.is_grad_enabled():
        raise ValueError("out requires a gradient, but decoding has none: give out.detach(), or use torch.no_grad()")
    require_contiguous_at("out", out, scales.device)
    if out.numel() < size:
        raise ValueError(f"out has {out.numel()} bytes, but the dense scales need {size}")
