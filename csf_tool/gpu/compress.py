"""Encode dense scales to CSF streams on the GPU: byte for byte what `codec.reference.encode` gives."""

import math
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise

import torch
import triton
import triton.language as tl

from csf_tool.codec import formats
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.gpu import encode_kernels
from csf_tool.gpu.launching import INTERPRETED, launching_at, require_gpu

# Few rows share a program, because all of them take the slow way when one does. The interpreter's cost is by program.
_ROWS_PER_PROGRAM = 1024 if INTERPRETED else 32
_UNITS_PER_PROGRAM = 512
_MAX_UNIT = 16
"""Most scales that a thread packs at once, read with one load."""

_EXPECTED_SHARE = 1 / 32
"""Exceptions for which there is room at first, as a share of the scales."""

_INTEGERS = {8: tl.uint8, 16: tl.uint16, 32: tl.uint32, 64: tl.uint64}


class CsfStreams:
    """The streams of a stack, on the device where its dense scales are.

    Encoding only queues work: the first look at `ends`, `counts`, `exceptions` or `planes` waits for it, so
    several stacks can be queued before. Until then the dense scales must stay as they are.

    They are what `prepare_csf_scales` takes: `prepare_csf_scales(s.format, s.fixed, s.exceptions, s.counts,
    rows=s.rows, cols=s.cols, validate=False)`.
    """

    def __init__(
        self,
        fmt: CsfFormat,
        rows: int,
        cols: int,
        fixed: torch.Tensor,
        ends: torch.Tensor,
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
        self._ends = ends  # read when asked for: pinned memory for a copy would cost more than all the kernels
        self._done = torch.cuda.Event() if ends.is_cuda else None
        if self._done is not None:
            self._done.record()

    @cached_property
    def ends(self) -> list[int]:
        """How many exceptions there are up to and with each plane."""
        if self._done is not None:
            self._done.synchronize()
        return self._ends.tolist()

    @property
    def counts(self) -> list[int]:
        """How many exceptions each plane has."""
        return [end - begin for begin, end in pairwise([0, *self.ends])]

    @cached_property
    def exceptions(self) -> torch.Tensor:
        """The exception words of all planes, plane after plane: uint32 `[n]`."""
        total = self.ends[-1]
        words = self._words if total <= len(self._words) else self._write_exceptions(total)
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
        ValueError: the format has no planes of this geometry, or they are not contiguous.
    """
    return _compress(NVFP4, scales)


def compress_mxfp4_scales(scales: torch.Tensor) -> CsfStreams:
    """Encode MXFP4 block scales, float8_e8m0fnu or its bits as uint8: as `compress_nvfp4_scales`."""
    return _compress(MXFP4, scales)


def _compress(fmt: CsfFormat, scales: torch.Tensor) -> CsfStreams:
    if not isinstance(scales, torch.Tensor) or scales.dtype.itemsize != 1:
        kind = scales.dtype if isinstance(scales, torch.Tensor) else type(scales).__name__
        raise TypeError(f"scales must be a tensor of bytes (float8 or uint8), not {kind}")
    if scales.ndim not in (2, 3) or not scales.is_contiguous():
        raise ValueError("scales must be contiguous, [experts, rows, cols] or [rows, cols]")
    require_gpu(scales)
    *stack, rows, cols = scales.shape
    if fault := fmt.geometry_fault(rows, cols):
        raise ValueError(f"{fmt.title} CSF cannot hold the planes: {fault}")
    with launching_at(scales):
        return _encode(fmt, scales.view(torch.uint8), stack[0] if stack else 1, rows, cols)


def _encode(fmt: CsfFormat, scales: torch.Tensor, experts: int, rows: int, cols: int) -> CsfStreams:
    row_bytes, slab_bytes = fmt.row_bytes(cols), fmt.slab_bytes(cols)
    device = scales.device
    fixed = torch.empty(experts, rows // formats.SLAB_ROWS, slab_bytes, dtype=torch.uint8, device=device)
    encode_kernels.find_bases[(triton.cdiv(experts * rows, _ROWS_PER_PROGRAM),)](
        scales,
        fixed,
        experts * rows,
        COLS=cols,
        WINDOW=fmt.window,
        SLAB_BYTES=slab_bytes,
        THREADS=_ROWS_PER_PROGRAM,
        num_warps=_ROWS_PER_PROGRAM // 32,
    )
    unit = math.gcd(row_bytes, _MAX_UNIT * fmt.code_bits // 8) * 8 // fmt.code_bits
    units = rows * row_bytes * 8 // fmt.code_bits // unit
    parts = triton.cdiv(units, _UNITS_PER_PROGRAM)
    shape = {"ROWS": rows, "COLS": cols, "UNIT": unit, "ROW_UNITS": units // rows, "SIZE": _UNITS_PER_PROGRAM}
    masks = torch.empty(experts, units, dtype=torch.int16, device=device)
    counts = torch.empty(experts * parts, dtype=torch.int64, device=device)
    encode_kernels.pack[(parts, experts)](
        scales,
        fixed,
        masks,
        counts,
        BITS=fmt.code_bits,
        SLAB_BYTES=slab_bytes,
        CODES=_INTEGERS[unit * fmt.code_bits],
        **shape,
    )
    ends = counts.cumsum(0)

    def write_exceptions(room: int) -> torch.Tensor:
        words = torch.empty(room, dtype=torch.int32, device=device)
        with launching_at(scales):
            encode_kernels.write_exceptions[(parts, experts)](scales, masks, ends, words, room, **shape)
        return words

    return CsfStreams(fmt, rows, cols, fixed, ends[parts - 1 :: parts], write_exceptions)
