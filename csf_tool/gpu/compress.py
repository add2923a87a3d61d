"""Encode dense scales to CSF streams on the GPU: byte for byte what `codec.reference.encode` gives."""

import math
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate

import torch
import triton.language as tl

from csf_tool.codec import formats
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.gpu import encode_kernels
from csf_tool.gpu.launching import INTERPRETED, launching_at, require_geometry, require_gpu

# All rows of a program look again at their scales as long as one of them has to, so few share one; and a warp
# alone waits for no other. The interpreter's cost is by program.
_ROWS_PER_PROGRAM = 512 if INTERPRETED else 32

_UNITS_PER_PROGRAM = 512
"""Units of a program that writes exceptions: a multiple of the rows of one that encodes."""

_MAX_UNIT = 16
"""Most scales that a thread packs at once, read with one load."""

_EXPECTED_SHARE = 1 / 32
"""Exceptions for which there is room at first, as a share of the scales."""

_WIDEST = 8
"""Most scales that are read as one integer while bases are sought: the scales must be aligned to it."""

_INTEGERS = {8: tl.uint8, 16: tl.uint16, 32: tl.uint32, 64: tl.uint64}


class CsfStreams:
    """The streams of a stack, on the device where its dense scales are.

    Encoding only queues work on the current stream: the first look at `ends`, `counts`, `exceptions` or `planes`,
    on the same stream, waits for it, so several stacks can be queued before. Until then the dense scales must stay
    as they are.

    They are what `prepare_csf_scales` takes: `prepare_csf_scales(s.format, s.fixed, s.exceptions, s.counts,
    rows=s.rows, cols=s.cols, validate=False)`.
    """

    def __init__(
        self,
        fmt: CsfFormat,
        rows: int,
        cols: int,
        fixed: torch.Tensor,
        totals: torch.Tensor,
        write_exceptions: Callable[[int], torch.Tensor],
    ) -> None:
        self.format = fmt
        self.rows = rows
        self.cols = cols
        self.fixed = fixed
        """The fixed streams: uint8 `[experts, rows / 16, slab bytes]`."""
        # How many exceptions there are is known only after a wait. They are written before it, to room for the
        # share that checkpoints have, and once more when there turn out to be more.
        self._write_exceptions = write_exceptions
        self._words = write_exceptions(int(fixed.shape[0] * rows * cols * _EXPECTED_SHARE))
        self._totals = totals  # read when asked for: pinned memory for a copy would cost more than all the kernels

    @cached_property
    def counts(self) -> list[int]:
        """How many exceptions each plane has."""
        return self._totals.tolist()

    @property
    def ends(self) -> list[int]:
        """How many exceptions there are up to and with each plane."""
        return list(accumulate(self.counts))

    @cached_property
    def exceptions(self) -> torch.Tensor:
        """The exception words of all planes, plane after plane: uint32 `[n]`."""
        total = sum(self.counts)
        words = self._words
        if total > len(words):
            with launching_at(words):
                words = self._write_exceptions(total)
        del self._words, self._write_exceptions  # they hold the dense scales and the masks
        return words[:total].view(torch.uint32)

    def planes(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Fixed stream and exceptions of each plane, as views."""
        words = self.exceptions.view(torch.int32).split(self.counts)
        return [(fixed, own.view(torch.uint32)) for fixed, own in zip(self.fixed, words, strict=True)]


def compress_nvfp4_scales(scales: torch.Tensor) -> CsfStreams:
    """Encode NVFP4 block scales by the format's rule, the lowest best base. Queues the work, and does not wait.

    Args:
        scales: contiguous `[experts, rows, cols]` or `[rows, cols]` of a one-byte dtype, float8_e4m3fn or its
            bits as uint8, on a GPU.

    Raises:
        TypeError: `scales` is no tensor of bytes.
        ValueError: the format has no planes of this geometry, or they are not contiguous, or no kernel can reach them.
    """
    return compress_csf_scales(NVFP4, scales)


def compress_mxfp4_scales(scales: torch.Tensor) -> CsfStreams:
    """Encode MXFP4 block scales, float8_e8m0fnu or its bits as uint8: as `compress_nvfp4_scales`."""
    return compress_csf_scales(MXFP4, scales)


def compress_csf_scales(fmt: CsfFormat, scales: torch.Tensor) -> CsfStreams:
    """Encode block scales of any format: as `compress_nvfp4_scales`."""
    if not isinstance(scales, torch.Tensor) or scales.dtype.itemsize != 1:
        kind = scales.dtype if isinstance(scales, torch.Tensor) else type(scales).__name__
        raise TypeError(f"scales must be a tensor of bytes (float8 or uint8), not {kind}")
    if scales.ndim not in (2, 3) or not scales.is_contiguous():
        raise ValueError("scales must be contiguous, [experts, rows, cols] or [rows, cols]")
    require_gpu(scales)
    *stack, rows, cols = scales.shape
    require_geometry(fmt, rows, cols)
    with launching_at(scales):
        return _encode(fmt, scales.view(torch.uint8), stack[0] if stack else 1, rows, cols)


def _encode(fmt: CsfFormat, scales: torch.Tensor, experts: int, rows: int, cols: int) -> CsfStreams:
    if scales.data_ptr() % _WIDEST:
        scales = scales.clone()
    row_bytes = fmt.row_bytes(cols)
    unit = math.gcd(row_bytes, _MAX_UNIT * fmt.code_bits // 8) * 8 // fmt.code_bits
    row_units = row_bytes * 8 // fmt.code_bits // unit
    parts = _parts(rows, _ROWS_PER_PROGRAM)
    fixed = scales.new_empty(experts, rows // formats.SLAB_ROWS, fmt.slab_bytes(cols))
    masks = scales.new_empty(experts * rows * row_units, dtype=torch.int16)
    counts = scales.new_empty(experts * parts * row_units, dtype=torch.int32)
    totals = scales.new_zeros(experts, dtype=torch.int32)
    shape = {"ROWS": rows, "COLS": cols, "UNIT": unit, "ROW_UNITS": row_units, "THREADS": _ROWS_PER_PROGRAM}
    encode_kernels.encode[(parts, experts)](
        scales,
        fixed,
        masks,
        counts,
        totals,
        BITS=fmt.code_bits,
        DIGITS=max(3, cols.bit_length()),
        SCALES=_INTEGERS[8 * math.gcd(cols, _WIDEST)],
        CODES=_INTEGERS[unit * fmt.code_bits],
        num_warps=_parts(_ROWS_PER_PROGRAM, 32),
        **shape,
    )
    grid = (_parts(rows * row_units, _UNITS_PER_PROGRAM), experts)

    def write_exceptions(room: int) -> torch.Tensor:
        words = scales.new_empty(room, dtype=torch.int32)
        encode_kernels.write_exceptions[grid](
            scales, masks, counts, totals, words, room, parts * row_units, SIZE=_UNITS_PER_PROGRAM, **shape
        )
        return words

    return CsfStreams(fmt, rows, cols, fixed, totals, write_exceptions)


def _parts(size: int, part: int) -> int:
    """How many parts of `part` make `size`, the last perhaps smaller. triton.cdiv takes 10 us, as long as a launch."""
    return -(-size // part)
