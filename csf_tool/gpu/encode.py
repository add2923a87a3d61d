"""Encode dense scales to CSF streams on the GPU: byte for byte what `codec.reference.encode` gives."""

import math

import torch
import triton.language as tl

from csf_tool.codec import formats
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.gpu import encode_kernels
from csf_tool.gpu.arguments import require_bytes
from csf_tool.gpu.launching import INTERPRETED, launching_at, require_gpu
from csf_tool.gpu.streams import CsfStreams, Exceptions, require_geometry

# A program goes on until the last of its rows has a base, so it has few rows: one warp, which waits for no other.
# The interpreter takes its time by the program, so there it has many.
_ROWS_PER_PROGRAM = 512 if INTERPRETED else 32

_UNITS_PER_PROGRAM = 512
"""Units of a program that writes exceptions: a multiple of the rows of one that encodes."""

_MAX_UNIT = 16
"""Most scales that a thread packs at once, read with one load."""

_EXPECTED_SHARE = 1 / 32
"""Exceptions that there is room for at first, as a share of the scales."""

_WIDEST = 8
"""Most scales that are read as one integer while bases are sought: the scales must be aligned to it."""

_INTEGERS = {8: tl.uint8, 16: tl.uint16, 32: tl.uint32, 64: tl.uint64}

_Shape = dict[str, int]
"""Constants of both kernels."""


class _QueuedExceptions:
    """Exceptions that kernels are still writing, when their number is not known yet.

    They are written to room for the share that checkpoints have; where there are more, `wait` writes them again.
    Until then the kernel's input is kept: the dense scales, and the marks of the first kernel.
    """

    def __init__(
        self, scales: torch.Tensor, masks: torch.Tensor, counts: torch.Tensor, totals: torch.Tensor, shape: _Shape
    ) -> None:
        self._marks = masks, counts
        self._totals = totals  # read by `wait`: pinned memory for an early copy would cost more than the kernels
        self._scales = scales
        self._shape = shape
        self._words = self._written(int(scales.numel() * _EXPECTED_SHARE))

    def wait(self) -> Exceptions:
        """The exceptions, once the device is done."""
        counts = self._totals.tolist()
        total = sum(counts)
        if total > len(self._words):
            with launching_at(self._scales):
                self._words = self._written(total)
        return Exceptions(self._words[:total], counts)

    def _written(self, room: int) -> torch.Tensor:
        """Queue the kernel that writes the first `room` exceptions, int32 `[room]`."""
        rows, row_units = self._shape["ROWS"], self._shape["ROW_UNITS"]
        words = self._scales.new_empty(room, dtype=torch.int32)
        grid = (_parts(rows * row_units, _UNITS_PER_PROGRAM), len(self._totals))
        chunks = _parts(rows, _ROWS_PER_PROGRAM) * row_units
        encode_kernels.write_exceptions[grid](
            self._scales, *self._marks, self._totals, words, room, chunks, SIZE=_UNITS_PER_PROGRAM, **self._shape
        )
        return words


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
    require_bytes("scales", scales, "float8 or uint8")
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
    return CsfStreams(fmt, rows, cols, fixed, _QueuedExceptions(scales, masks, counts, totals, shape))


def _parts(size: int, part: int) -> int:
    """Number of parts of `part` in `size`, rounded up. triton.cdiv takes 10 us, as long as a launch."""
    return -(-size // part)
