"""Decode, encode and check one plane in numpy: the executable form of the format.

Everything is integer arithmetic on bytes. E4M3 and UE8M0 values are never interpreted, so NaN bytes, sign
bits and zeros pass like any other byte. Both formats run through the same code; what differs between them
is data (`formats.CsfFormat`).

Shapes used throughout, for a plane of `rows` x `cols` scales:

- dense: `[rows, cols]` uint8, row-major;
- fixed stream: `rows / 16` slabs of `CsfFormat.slab_bytes(cols)` uint8, in any shape of that many bytes;
- exceptions: `[n]` little-endian uint32, `value << 24 | position`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from csf_tool.codec.formats import EXCEPTION_BYTES, POSITION_BITS, POSITION_MASK, SLAB_ROWS, CsfFormat
from csf_tool.codes import Code
from csf_tool.errors import StreamError

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]

# Work on this many dense bytes at a time, so that the words of a block stay in the L2 cache.
_BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True)
class StreamFault:
    """One kind of fault in a plane's streams, with its first place and how often it occurs.

    `decodable` faults are oddities: the bytes decode exactly, but no encoder of the format writes them.
    """

    problem: str
    code: Code
    count: int = 1
    row: int | None = None
    col: int | None = None
    decodable: bool = False

    def __str__(self) -> str:
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return self.problem + more


def decode(fmt: CsfFormat, fixed: Bytes, exceptions: Words, *, rows: int, cols: int) -> Bytes:
    """The dense `[rows, cols]` uint8 scales of one plane.

    The streams are trusted beyond their sizes: run `check` first on bytes from a file.

    Raises:
        StreamError: the geometry or a stream's size is impossible, or a position lies outside the plane.
    """
    slabs = _slabs(fmt, fixed, rows, cols)
    out = np.empty((rows, cols), np.uint8)
    _decode_slabs(fmt, slabs, out)
    _apply_exceptions(exceptions, out)
    return out


def _decode_slabs(fmt: CsfFormat, slabs: Bytes, out: Bytes) -> None:
    """Decode slabs `[n, slab bytes]` of one plane, or several of one width, to `[.., cols]`; without exceptions."""
    cols = out.shape[-1]
    bases = slabs[:, :SLAB_ROWS]
    codes = slabs[:, SLAB_ROWS:].reshape(-1, SLAB_ROWS, fmt.row_bytes(cols))
    dense = out.reshape(-1, SLAB_ROWS, cols)
    step = max(1, _BLOCK_BYTES // (SLAB_ROWS * cols))
    for at in range(0, len(slabs), step):
        part = slice(at, at + step)
        words = _spread(fmt, codes[part])
        each = bases[part, :, None] * words.dtype.type(int.from_bytes(b"\1" * words.itemsize, "little"))
        if cols % words.itemsize:
            words += each
            dense[part] = words.view(np.uint8)[..., :cols]
        else:
            np.add(words, each, out=dense[part].view(words.dtype))


def decode_stack(fmt: CsfFormat, fixed: Bytes, exceptions: Words, counts: Sequence[int], out: Bytes) -> bool:
    """Check planes of one geometry and decode them to `[n, rows, cols]`; False where one breaks a rule of `check`.

    Which plane that is, and what it breaks, `check` says; exceptions inside their windows are no fault here.

    Args:
        fmt: the format of all.
        fixed: the fixed streams `[n, fixed_bytes]`.
        exceptions: the exceptions of all, plane by plane.
        counts: how many exceptions each plane has.
        out: takes the scales, side by side in memory. Some of it may be written where a rule is broken.
    """
    planes, rows, cols = out.shape
    if fmt.geometry_fault(rows, cols):
        return False
    slabs = fixed.reshape(-1, fmt.slab_bytes(cols))
    positions = (exceptions & np.uint32(POSITION_MASK)).astype(np.int64)
    if _fixed_faults(fmt, slabs, cols) or (positions >= rows * cols).any():
        return False
    positions += np.repeat(np.arange(planes) * (rows * cols), counts)
    if (positions[1:] <= positions[:-1]).any():
        return False
    _decode_slabs(fmt, slabs, out)
    out.reshape(-1)[positions] = exceptions >> np.uint32(POSITION_BITS)
    return True


def encode(fmt: CsfFormat, scales: Bytes) -> tuple[Bytes, Words]:
    """The streams of dense `[rows, cols]` uint8 scales: fixed `[rows / 16, slab bytes]` and exceptions `[n]`.

    A row's base is the lowest whose window covers most of the row. The code under an exception is 0.

    Raises:
        StreamError: the format has no planes of this geometry.
    """
    rows, cols = scales.shape
    if fault := fmt.geometry_fault(rows, cols):
        raise StreamError(f"{fmt.title} CSF cannot store the plane: {fault}", Code.GEOMETRY_IMPOSSIBLE)
    bases = row_bases(fmt, scales)
    codes = scales - bases[:, None]  # wraps below the base: then it is outside the window as well
    outside = codes >= fmt.window
    codes[outside] = 0
    fixed = np.empty((rows // SLAB_ROWS, fmt.slab_bytes(cols)), np.uint8)
    fixed[:, :SLAB_ROWS] = bases.reshape(-1, SLAB_ROWS)
    fixed[:, SLAB_ROWS:] = _pack(fmt, codes).reshape(len(fixed), -1)
    positions = np.flatnonzero(outside).astype(np.uint32)
    return fixed, scales.reshape(-1)[positions].astype(np.uint32) << np.uint32(POSITION_BITS) | positions


def row_bases(fmt: CsfFormat, scales: Bytes) -> Bytes:
    """The base `[rows]` uint8 of every row of `[rows, cols]` scales: the lowest that covers most of the row."""
    rows, cols = scales.shape
    bases = np.empty(rows, np.uint8)
    step = max(1, 4 * _BLOCK_BYTES // max(cols, 256))
    for at in range(0, rows, step):
        bases[at : at + step] = _block_bases(fmt, scales[at : at + step])
    return bases


def _block_bases(fmt: CsfFormat, block: Bytes) -> NDArray[np.intp]:
    """Row bases by counting each row's values: a window's cover is a difference of cumulative counts.

    Only bases whose windows meet the block's values are tried; all others cover nothing.
    """
    rows, cols = block.shape
    first = max(0, int(block.min()) - fmt.window + 1)
    last = min(fmt.max_base, int(block.max()))
    width = last + fmt.window - first
    keys = block.astype(np.int32)
    keys += (np.arange(rows, dtype=np.int32) * width - first)[:, None]
    counts = np.bincount(keys.reshape(-1), minlength=rows * width).reshape(rows, width)
    count_dtype = np.uint16 if cols < 1 << 16 else np.uint32
    below = np.zeros((rows, width + 1), count_dtype)  # how many of the row are less than first + v
    np.cumsum(counts, axis=1, out=below[:, 1:], dtype=count_dtype)
    covered = below[:, fmt.window :] - below[:, : -fmt.window]
    bases: NDArray[np.intp] = covered.argmax(axis=1) + first  # the first maximum: the lowest base
    return bases


def check(fmt: CsfFormat, fixed: Bytes, exceptions: Words, *, rows: int, cols: int) -> list[StreamFault]:
    """Every fault of a plane's streams; empty when they are what an encoder of the format writes."""
    if fault := fmt.geometry_fault(rows, cols):
        return [StreamFault(f"{fmt.title} CSF cannot store the plane: {fault}", Code.GEOMETRY_IMPOSSIBLE)]
    if fault := _size_fault(fmt, fixed.nbytes, rows, cols):
        return [StreamFault(fault, Code.STREAM_SIZE)]
    faults = _fixed_faults(fmt, _slabs(fmt, fixed, rows, cols), cols)
    position_faults = _position_faults(exceptions, rows * cols, cols)
    if not faults and not position_faults:
        return _window_faults(fmt, fixed, exceptions, rows, cols)
    return faults + position_faults


def _size_fault(fmt: CsfFormat, nbytes: int, rows: int, cols: int) -> str | None:
    expected = fmt.fixed_bytes(rows, cols)
    if nbytes == expected:
        return None
    return f"fixed stream has {nbytes} bytes, but a {rows}x{cols} plane needs {expected}"


def _slabs(fmt: CsfFormat, fixed: Bytes, rows: int, cols: int) -> Bytes:
    """The fixed stream as `[rows / 16, slab bytes]`."""
    if fault := fmt.geometry_fault(rows, cols):
        raise StreamError(fault, Code.GEOMETRY_IMPOSSIBLE)
    if fault := _size_fault(fmt, fixed.nbytes, rows, cols):
        raise StreamError(fault, Code.STREAM_SIZE)
    return fixed.reshape(-1, fmt.slab_bytes(cols))


def _spread(fmt: CsfFormat, codes: Bytes) -> NDArray[Any]:
    """Packed codes `[..., row_bytes]` to a byte each, in words of all the codes of one packed byte: `[..., row_bytes]`.

    The codes start side by side in the low byte. Each step moves the upper half of every group apart from its
    lower half, until every code has a byte of its own.
    """
    bits, per_byte = fmt.code_bits, 8 // fmt.code_bits
    words = codes.astype(f"<u{per_byte}")
    shifted = np.empty_like(words)
    half = per_byte // 2
    while half:
        group = (1 << half * bits) - 1
        mask = sum(group << 8 * first for first in range(0, per_byte, half))
        np.left_shift(words, words.dtype.type((8 - bits) * half), out=shifted)
        np.bitwise_or(words, shifted, out=words)
        np.bitwise_and(words, words.dtype.type(mask), out=words)
        half //= 2
    return words


def _pack(fmt: CsfFormat, codes: Bytes) -> Bytes:
    """Codes `[rows, cols]`, one byte each, to `[rows, row_bytes]`, least significant bits first."""
    per_byte = 8 // fmt.code_bits
    rows, cols = codes.shape
    padded = np.zeros((rows, fmt.row_bytes(cols) * per_byte), np.uint8)
    padded[:, :cols] = codes
    packed = padded[:, ::per_byte].copy()
    for i in range(1, per_byte):
        packed |= padded[:, i::per_byte] << np.uint8(i * fmt.code_bits)
    return packed


def _apply_exceptions(exceptions: Words, out: Bytes) -> None:
    positions = exceptions & np.uint32(POSITION_MASK)
    if len(positions) and int(positions.max()) >= out.size:
        problem = f"exception position {int(positions.max())} is outside the plane of {out.size} scales"
        raise StreamError(problem, Code.POSITION_OUTSIDE)
    out.reshape(-1)[positions] = exceptions >> np.uint32(POSITION_BITS)


def _fixed_faults(fmt: CsfFormat, slabs: Bytes, cols: int) -> list[StreamFault]:
    """Bases past the highest, and padding bits that are set."""
    faults = []
    bases = slabs[:, :SLAB_ROWS].reshape(-1)
    high = np.flatnonzero(bases > fmt.max_base)
    if len(high):
        row = int(high[0])
        problem = f"row {row}: base {bases[row]} is above {fmt.max_base}"
        faults.append(StreamFault(problem, Code.BASE_TOO_HIGH, len(high), row))
    used_bits = cols * fmt.code_bits % 8
    if used_bits:
        last = slabs[:, SLAB_ROWS:].reshape(len(bases), -1)[:, -1]
        padded = np.flatnonzero(last >> np.uint8(used_bits))
        if len(padded):
            row = int(padded[0])
            problem = f"row {row}: bits past the last column are not zero"
            faults.append(StreamFault(problem, Code.PADDING_BITS, len(padded), row))
    return faults


def _position_faults(exceptions: Words, elements: int, cols: int) -> list[StreamFault]:
    """Positions outside the plane, and positions that do not strictly increase."""
    faults = []
    positions = (exceptions & np.uint32(POSITION_MASK)).astype(np.int64)
    outside = np.flatnonzero(positions >= elements)
    if len(outside):
        i = int(outside[0])
        problem = f"exception {i}: position {positions[i]} is outside the plane of {elements} scales"
        faults.append(StreamFault(problem, Code.POSITION_OUTSIDE, len(outside)))
    unsorted = np.flatnonzero(positions[1:] <= positions[:-1]) + 1
    if len(unsorted):
        i = int(unsorted[0])
        row, col = divmod(int(positions[i]), cols)
        verb = "repeats" if positions[i] == positions[i - 1] else "is less than"
        problem = f"exception {i}: position {positions[i]} {verb} the one before, {positions[i - 1]}"
        problem += "; positions must strictly increase"
        faults.append(StreamFault(problem, Code.POSITION_ORDER, len(unsorted), row, col))
    return faults


def _window_faults(fmt: CsfFormat, fixed: Bytes, exceptions: Words, rows: int, cols: int) -> list[StreamFault]:
    """Exceptions that their row's window covers: they decode exactly, but the encoder rule writes none."""
    positions = (exceptions & np.uint32(POSITION_MASK)).astype(np.int64)
    bases = _slabs(fmt, fixed, rows, cols)[:, :SLAB_ROWS].reshape(-1)
    codes = (exceptions >> np.uint32(POSITION_BITS)).astype(np.uint8) - bases[positions // cols]
    inside = np.flatnonzero(codes < fmt.window)
    if not len(inside):
        return []
    i = int(inside[0])
    row, col = divmod(int(positions[i]), cols)
    problem = f"exception {i} at row {row}, column {col} is inside its row's window"
    return [StreamFault(problem, Code.NEEDLESS_EXCEPTION, len(inside), row, col, decodable=True)]


def exception_words(raw: bytes | bytearray | memoryview) -> Words:
    """An exception list's bytes as they stand in a file, at any alignment, as little-endian uint32 words.

    Raises:
        StreamError: the length is not a multiple of 4 bytes.
    """
    if len(raw) % EXCEPTION_BYTES:
        problem = f"exception list has {len(raw)} bytes, not a multiple of {EXCEPTION_BYTES}"
        raise StreamError(problem, Code.STREAM_SIZE)
    return np.frombuffer(raw, "<u4")
