"""Places of dense scales in memory: the layouts, the order of rows in them, and a table that bytes go through.

A layout is a *form* and what is done to rows and bytes before. `layouts.py` says what they are for.

- LINEAR: row-major.
- SWIZZLED: the 128x4 layout.
- MARLIN: columns first, and inside 64 rows of a column the order in which Marlin's threads take them.

Rows are *moved*: to `destinations`, or, without, SWAP exchanges the halves, and TURNS has the halves take turns by so
many rows. The rows that a program reads, and so its exceptions, do not depend on it.
"""

import triton
import triton.language as tl

from csf_tool.codec import formats, tiles

LINEAR, SWIZZLED, MARLIN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)

TABLE_ENTRIES = tl.constexpr(256)
"""Entries of a table. Behind them stand the first and the last byte of those that it merely shifts, and the entry of
the first: a byte's entry is a load, and nearly all bytes are shifted, which is one addition for four of them."""

MARLIN_ROWS = 64
"""Rows inside which Marlin has an order of its own."""

_POSITION_BITS = tl.constexpr(formats.POSITION_BITS)
_POSITION_MASK = tl.constexpr(formats.POSITION_MASK)
_TILE_ROWS = tl.constexpr(tiles.TILE_ROWS)
_TILE_BYTES = tl.constexpr(tiles.TILE_BYTES)
_MARLIN_ROWS = tl.constexpr(MARLIN_ROWS)

_RUN_ROWS = tl.constexpr(4)
"""Rows through which runs of the 128x4 layout count before they go on to the next columns: two whole sectors of it."""

_MARLIN_RUNS = tl.constexpr(MARLIN_ROWS // 4)
"""The same of Marlin's: a run writes four bytes a column, so that so many fill the 64 rows of it."""


@triton.jit
def _moved(row, destinations, ROWS: tl.constexpr, SWAP: tl.constexpr, TURNS: tl.constexpr):
    """The rows to which rows go; those past the plane, which are padding, stay."""
    HALF: tl.constexpr = ROWS // 2
    if destinations is not None:
        to = tl.load(destinations + row, mask=row < ROWS, other=0)
    else:
        to = row
        if SWAP:
            to = tl.where(row < HALF, row + HALF, row - HALF)
        if TURNS:
            to = (to % HALF // TURNS * 2 + to // HALF) * TURNS + to % HALF % TURNS
    return tl.where(row < ROWS, to, row)


@triton.jit
def swapped(block, BLOCKS: tl.constexpr):
    """The blocks of rows to which blocks go where halves of whole blocks are exchanged."""
    return tl.where(block < BLOCKS // 2, block + BLOCKS // 2, block - BLOCKS // 2)


@triton.jit
def _marlin_order(row):
    """The place of a row among the 64 of its group, in which Marlin's threads follow one another; four are a run."""
    place = row % 8 * 8 + row % _MARLIN_ROWS // 8
    return place // 4 * 4 + place % 2 * 2 + place % 4 // 2


@triton.jit
def _place(row, col, ROWS: tl.constexpr, COLS: tl.constexpr, FORM: tl.constexpr):
    """The byte of a plane at which a scale lies."""
    QUADS: tl.constexpr = (COLS + 3) // 4
    if FORM == SWIZZLED:
        tile = row // _TILE_ROWS * QUADS + col // 4
        at = tile * _TILE_BYTES + row % 32 * 16 + row % _TILE_ROWS // 32 * 4 + col % 4
    elif FORM == MARLIN:
        at = col * ROWS + row // _MARLIN_ROWS * _MARLIN_ROWS + _marlin_order(row)
    else:
        at = row * COLS + col
    return at


@triton.jit
def first_row(run, PARTS: tl.constexpr, FORM: tl.constexpr):
    """The first of the four rows of runs."""
    if FORM == MARLIN:
        lane = run % _MARLIN_RUNS
        row = run // (PARTS * _MARLIN_RUNS) * _MARLIN_ROWS + lane // 2 + lane % 2 * 32
    else:
        row = run // (PARTS * _RUN_ROWS) % (32 // _RUN_ROWS) * _RUN_ROWS + run % _RUN_ROWS
        row += run // (PARTS * 32) * _TILE_ROWS
    return row


@triton.jit
def first_quad(run, PARTS: tl.constexpr, WIDTH: tl.constexpr, FORM: tl.constexpr):
    """The first column quad of runs."""
    if FORM == MARLIN:
        part = run // _MARLIN_RUNS % PARTS
    else:
        part = run // _RUN_ROWS % PARTS
    return part * WIDTH


@triton.jit
def _run_of(row, quad, PARTS: tl.constexpr, WIDTH: tl.constexpr, FORM: tl.constexpr):
    """The run in which a column quad of a row lies."""
    if FORM == MARLIN:
        run = (row // _MARLIN_ROWS * PARTS + quad // WIDTH) * _MARLIN_RUNS + _marlin_order(row) // 4
    else:
        part = row // _TILE_ROWS * (32 // _RUN_ROWS) + row % 32 // _RUN_ROWS
        run = (part * PARTS + quad // WIDTH) * _RUN_ROWS + row % _RUN_ROWS
    return run


@triton.jit
def store_words(out, word, words, mask, WORD_ALIGNED: tl.constexpr):
    """Store uint32 `words` at word offsets `word`, byte by byte where `out` is not aligned to words."""
    if WORD_ALIGNED:
        tl.store(out.to(tl.pointer_type(tl.uint32)) + word, words, mask=mask)
    else:
        for byte in tl.static_range(4):
            tl.store(out + word * 4 + byte, (words >> (8 * byte)).to(tl.uint8), mask=mask)


@triton.jit
def not_shifted(words, table, mask):
    """Other than 0 for words of which a byte is not among those that the table merely shifts."""
    low = tl.load(table + TABLE_ENTRIES).to(tl.uint32)
    high = tl.load(table + TABLE_ENTRIES + 1).to(tl.uint32)
    even, odd = words & 0x00FF00FF, (words >> 8) & 0x00FF00FF
    from_low, past_high = (256 - low) * 0x00010001, (255 - high) * 0x00010001  # carry into bits 8 and 24
    reached = (even + from_low) & (odd + from_low)
    passed = (even + past_high) | (odd + past_high)
    return tl.where(mask, ((reached ^ 0x01000100) | passed) & 0x01000100, 0)


@triton.jit
def shifted(words, table, mask):
    """`words` with each byte's entry of the table in its place, where it merely shifts them; 0 past the plane."""
    low = tl.load(table + TABLE_ENTRIES).to(tl.uint32)
    entry = tl.load(table + TABLE_ENTRIES + 2).to(tl.uint32)
    return tl.where(mask, words + (entry - low) * 0x01010101, 0)


@triton.jit
def looked_up(words, table, col, mask, COLS: tl.constexpr):
    """The same for any bytes, each by a load; `col` is the column of the first byte."""
    entries = tl.zeros_like(words)
    for byte in tl.static_range(4):
        inside = mask & (col + byte < COLS)
        entry = tl.load(table + ((words >> (8 * byte)) & 0xFF).to(tl.int32), mask=inside, other=0)
        entries |= entry.to(tl.uint32) << (8 * byte)
    return entries


@triton.jit
def _transposed(a, b, c, d, byte: tl.constexpr):
    """A word of byte `byte` of each of four words."""
    low = ((a >> (8 * byte)) & 0xFF) | ((b >> (8 * byte)) & 0xFF) << 8
    high = ((c >> (8 * byte)) & 0xFF) | ((d >> (8 * byte)) & 0xFF) << 8
    return low | high << 16


@triton.jit
def store_columns(
    out, a, b, c, d, run, quad, mask,
    ROWS: tl.constexpr, COLS: tl.constexpr, PARTS: tl.constexpr, SWAP: tl.constexpr, WORD_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Store runs [runs, width] in Marlin's layout: a word of four rows for each of their columns."""
    group = run // (PARTS * _MARLIN_RUNS)
    if SWAP:
        group = swapped(group, ROWS // _MARLIN_ROWS)
    word = group * (_MARLIN_ROWS // 4) + run % _MARLIN_RUNS
    for byte in tl.static_range(4):
        col = quad * 4 + byte
        words = _transposed(a, b, c, d, byte)
        store_words(out, col * (ROWS // 4) + word, words, mask & (col < COLS), WORD_ALIGNED)


@triton.jit
def store_moved(
    out, words, row, quad, mask, destinations,
    ROWS: tl.constexpr, COLS: tl.constexpr, FORM: tl.constexpr, SWAP: tl.constexpr, TURNS: tl.constexpr,
    WORD_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Store words, each a column quad `quad` of a row, to where the row goes."""
    to = _moved(row, destinations, ROWS, SWAP, TURNS)
    if FORM == SWIZZLED:
        tile = to // _TILE_ROWS * ((COLS + 3) // 4) + quad
        store_words(out, tile * (_TILE_BYTES // 4) + to % 32 * 4 + to % _TILE_ROWS // 32, words, mask, WORD_ALIGNED)
    elif FORM == LINEAR and COLS % 4 == 0:
        store_words(out, to * (COLS // 4) + quad, words, mask, WORD_ALIGNED)
    else:
        for byte in tl.static_range(4):
            col = quad * 4 + byte
            at = _place(to, col, ROWS, COLS, FORM)
            tl.store(out + at, (words >> (8 * byte)).to(tl.uint8), mask=mask & (col < COLS))


@triton.jit
def store_moved_bytes(
    out, words, at, mask, destinations,
    ROWS: tl.constexpr, COLS: tl.constexpr, SWAP: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Store words row-major where a word's bytes, the first of them byte `at` of the plane, may be of two rows."""
    for byte in tl.static_range(4):
        to = _moved((at + byte) // COLS, destinations, ROWS, SWAP, TURNS)
        tl.store(out + to * COLS + (at + byte) % COLS, (words >> (8 * byte)).to(tl.uint8), mask=mask)


@triton.jit
def store_exceptions(
    out, words, mask, item, destinations, table,
    ROWS: tl.constexpr, COLS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, FORM: tl.constexpr,
    SWAP: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Store the values of exception words; where items are runs, only those that fall into runs of `item`."""
    at = (words & _POSITION_MASK).to(tl.int32)
    values = words >> _POSITION_BITS
    if table is not None:
        values = tl.load(table + values.to(tl.int32), mask=mask, other=0)
    row, col = at // COLS, at % COLS
    if WIDTH:
        PARTS: tl.constexpr = (COLS + 3) // 4 // WIDTH
        mask &= _run_of(row, col // 4, PARTS, WIDTH, FORM) // SIZE == item
    if FORM != LINEAR or SWAP or TURNS or destinations is not None:
        at = _place(_moved(row, destinations, ROWS, SWAP, TURNS), col, ROWS, COLS, FORM)
    tl.store(out + at, values.to(tl.uint8), mask=mask)
