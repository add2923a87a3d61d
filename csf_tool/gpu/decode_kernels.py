"""The Triton kernel that decodes a stack: fixed stream and exceptions, in one launch.

Decoding is bound by writing: every byte should be written once, and no store should wait for a chain of
loads. So `decode.py` splits a plane's exceptions once, when it prepares a stack:

- *leads*: the first exception of each group of GROUP scales, `value << 8 | position in the group`, in a
  table with a place for every group (position 255: none). Its address is known at once, and the lead is
  merged into the words before they are stored.
- *rest*: all others, as exception words. The program that wrote a part of the output stores them over it,
  after a barrier. A stack with few exceptions has no leads (GROUP is 0): storing them over is cheaper.

Dense bytes are made as 32-bit *words* of four scales, four words a *chunk*: 16 bytes, a thread's widest
store. A scale is `base + code` with a code of BITS bits, so one source serves every format.

Pointers: fixed uint8, leads int16, rest int32, starts int32, out uint8 at any byte, all contiguous. Offsets
inside a plane fit 32 bits; those of planes take 64. LANES is the number of threads of a program.
"""

import triton
import triton.language as tl

from csf_tool.codec import formats, tiles
from csf_tool.gpu.layout_kernels import (
    LINEAR,
    MARLIN,
    MARLIN_ROWS,
    first_quad,
    first_row,
    looked_up,
    not_shifted,
    shifted,
    store_columns,
    store_exceptions,
    store_moved,
    store_moved_bytes,
    store_words,
    swapped,
)
from csf_tool.gpu.routing_kernels import GROUP_EXPERTS, active_experts, comes_first, count_bits, either

ALL_BITS = tl.constexpr(0xFFFFFFFF)
"""All bits of a uint32: `x ^ ALL_BITS` is `~x`, which triton 3.6 and 3.7 do not interpret for unsigned numbers."""

NO_LEAD = 255
"""Position in the group that stands for "this group has no exception". Groups are smaller."""

_SLAB_ROWS = tl.constexpr(formats.SLAB_ROWS)
_TILE_ROWS = tl.constexpr(tiles.TILE_ROWS)
_TILE_BYTES = tl.constexpr(tiles.TILE_BYTES)
_MARLIN_ROWS = tl.constexpr(MARLIN_ROWS)


@triton.jit
def _spread(codes, BITS: tl.constexpr):
    """Four codes of BITS bits, packed in the low bits of uint32, to the four bytes of a word."""
    PAIR: tl.constexpr = (1 << 2 * BITS) - 1
    ONE: tl.constexpr = (1 << BITS) - 1
    pairs = (codes | (codes << (16 - 2 * BITS))) & (PAIR * 0x10001)
    return (pairs | (pairs << (8 - BITS))) & (ONE * 0x01010101)


@triton.jit
def _code_words(codes, word, first, mask, BITS: tl.constexpr):
    """The spread codes of words `word` [n, m], counted from where `codes` points; 0 where masked off.

    `first` is `word`, or the first of each m [n, 1], which then come by one load if their codes are whole bytes.
    """
    NUMBER: tl.constexpr = word.shape[1] // first.shape[1]
    ONE: tl.constexpr = (1 << 4 * BITS) - 1
    if BITS == 4:  # a word's codes are two whole bytes, and neighbours are loaded together
        packed = tl.load(codes.to(tl.pointer_type(tl.uint16)) + word, mask=mask, other=0).to(tl.uint32)
    elif NUMBER * BITS % 2 == 0:
        BYTES: tl.constexpr = NUMBER * BITS // 2
        kind: tl.constexpr = tl.uint8 if BYTES == 1 else (tl.uint16 if BYTES == 2 else tl.uint32)
        packed = tl.load((codes + first * BITS // 2).to(tl.pointer_type(kind)), mask=mask, other=0).to(tl.uint32)
        packed = (packed >> ((word - first) * (4 * BITS)).to(tl.uint32)) & ONE
    else:  # a byte holds the codes of 2 / BITS words
        packed = tl.load(codes + word * BITS // 2, mask=mask, other=0).to(tl.uint32)
        packed = (packed >> (word * BITS % 2 * 4)) & ONE
    return _spread(packed, BITS)


@triton.jit
def _bases(fixed, row, mask, SLAB_BYTES: tl.constexpr):
    """The bases of rows `row`, as uint32; 0 where masked off."""
    at = row // _SLAB_ROWS * SLAB_BYTES + row % _SLAB_ROWS
    return tl.load(fixed + at, mask=mask, other=0).to(tl.uint32)


@triton.jit
def _codes_at(row, SLAB_BYTES: tl.constexpr, ROW_BYTES: tl.constexpr):
    """Offset in the fixed stream of the codes of rows `row`."""
    return row // _SLAB_ROWS * SLAB_BYTES + _SLAB_ROWS + row % _SLAB_ROWS * ROW_BYTES


@triton.jit
def _fixed_words(
    fixed, word, first, slab, row, quad, base_row, mask,
    COLS: tl.constexpr, BITS: tl.constexpr, ROW_BYTES: tl.constexpr, SLAB_BYTES: tl.constexpr,
):  # fmt: skip
    """Words [n, m] of the fixed stream where a row is whole words; 0 where masked off.

    `word` counts them through the plane, `first` as in `_code_words`; each is column quad `quad` of row `row`, in slab
    `slab` [n, 1]. `base_row` is `row`, or [n, 1] where all m lie in one row and so need one base.
    """
    if COLS * BITS % 8 == 0:
        # No padding bits: the codes of a slab are one run of words, which wide loads can follow.
        words = _code_words(fixed + (slab + 1) * _SLAB_ROWS, word, first, mask, BITS)
    else:
        words = _code_words(fixed + _codes_at(row, SLAB_BYTES, ROW_BYTES), quad, quad, mask, BITS)
    return words + _bases(fixed, base_row, mask, SLAB_BYTES) * 0x01010101


@triton.jit
def _fixed_scale(fixed, row, col, mask, BITS: tl.constexpr, ROW_BYTES: tl.constexpr, SLAB_BYTES: tl.constexpr):
    """Single scales of the fixed stream, as uint32, for rows that are not whole words; 0 where masked off."""
    at = _codes_at(row, SLAB_BYTES, ROW_BYTES) + col * BITS // 8
    packed = tl.load(fixed + at, mask=mask, other=0).to(tl.uint32)
    code = (packed >> (col * BITS % 8)) & ((1 << BITS) - 1)
    return code + _bases(fixed, row, mask, SLAB_BYTES)


@triton.jit
def _merge_leads(words, leads, word, unit, mask, GROUP: tl.constexpr):
    """`words` [chunks, 4] with the leads that fall into them put in place.

    `word` counts them through the plane; `unit` is `word`, or [chunks, 1] where a chunk lies in one group.
    """
    lead = tl.load(leads + unit // (GROUP // 4), mask=mask, other=0).to(tl.uint32)
    shift = (lead & 3) * 8
    hole = tl.full((1, 1), 0xFF, tl.uint32) << shift
    value = ((lead >> 8) & 0xFF) << shift
    hit = ((lead & 0xFF) >> 2).to(tl.int32) == word % (GROUP // 4)
    return tl.where(hit, (words & (hole ^ ALL_BITS)) | value, words)


@triton.jit
def _any(bits):
    """Whether any of uint32s [m, n] is other than 0."""
    return tl.reduce(tl.reduce(bits, 1, either), 0, either) != 0


@triton.jit
def _load_exceptions(exceptions, at, end):
    return tl.load(exceptions + at, mask=at < end, other=0).to(tl.uint32, bitcast=True)


@triton.jit
def _overwrite(
    out, exceptions, early, begin, end, item, destinations, table,
    ROWS: tl.constexpr, COLS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
    FORM: tl.constexpr, SWAP: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Store exceptions [begin, end) over what this whole program stored; `early` holds the first LANES of them."""
    lane = tl.arange(0, LANES)
    if begin < end:
        tl.debug_barrier()  # orders the stores so far, of all threads of this program, before the ones below
        store_exceptions(
            out, early, begin + lane < end, item, destinations, table, ROWS, COLS, SIZE, WIDTH, FORM, SWAP, TURNS
        )
        for at in range(begin + LANES, end, LANES):
            late = _load_exceptions(exceptions, at + lane, end)
            store_exceptions(
                out, late, at + lane < end, item, destinations, table, ROWS, COLS, SIZE, WIDTH, FORM, SWAP, TURNS
            )


@triton.jit
def _decode_piece(
    fixed, leads, rest, starts, out, item, destinations, table,
    ROWS: tl.constexpr, COLS: tl.constexpr, BITS: tl.constexpr, ROW_BYTES: tl.constexpr, SLAB_BYTES: tl.constexpr,
    GROUP: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr, SWAP: tl.constexpr, TURNS: tl.constexpr,
    WORD_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Write what are the row-major bytes [item * SIZE, + SIZE) of the plane to which the pointers point."""
    # What is stored last is loaded first, so that its latency is not added at the end.
    begin = tl.load(starts + item)
    end = tl.load(starts + item + 1)
    early = _load_exceptions(rest, begin + tl.arange(0, LANES), end)

    chunk = item * (SIZE // 16) + tl.arange(0, SIZE // 16)[:, None]  # [chunks, 1]
    word = chunk * 4 + tl.arange(0, 4)[None, :]  # [chunks, 4]
    mask = chunk < ROWS * COLS // 16
    if COLS % 4 == 0:
        QUADS: tl.constexpr = COLS // 4
        row = word // QUADS
        base_row = chunk // (COLS // 16) if COLS % 16 == 0 else row
        words = _fixed_words(
            fixed, word, chunk * 4, chunk // COLS, row, word % QUADS, base_row, mask,
            COLS, BITS, ROW_BYTES, SLAB_BYTES,
        )  # fmt: skip
    else:
        words = tl.zeros_like(word).to(tl.uint32)
        for byte in tl.static_range(4):
            at = word * 4 + byte
            words |= _fixed_scale(fixed, at // COLS, at % COLS, mask, BITS, ROW_BYTES, SLAB_BYTES) << (8 * byte)
    if GROUP:
        words = _merge_leads(words, leads, word, chunk * 4, mask, GROUP)
    if table is not None:
        if _any(not_shifted(words, table, mask)):
            words = looked_up(words, table, tl.zeros_like(word), mask, 4)
        else:
            words = shifted(words, table, mask)
    if not (SWAP or TURNS or destinations is not None):
        store_words(out, word, words, mask, WORD_ALIGNED)
    elif COLS % 4 == 0:
        store_moved(
            out, words, base_row, word % QUADS, mask, destinations, ROWS, COLS, LINEAR, SWAP, TURNS, WORD_ALIGNED
        )
    else:
        store_moved_bytes(out, words, word * 4, mask, destinations, ROWS, COLS, SWAP, TURNS)
    _overwrite(
        out, rest, early, begin, end, item, destinations, table,
        ROWS, COLS, SIZE, 0, LANES, LINEAR, SWAP, TURNS,
    )  # fmt: skip


@triton.jit
def _row_words(
    fixed, leads, row, first_quad, quad,
    ROWS: tl.constexpr, COLS: tl.constexpr, BITS: tl.constexpr, ROW_BYTES: tl.constexpr, SLAB_BYTES: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Words [runs, width] of column quads `quad` in rows `row` [runs, 1], leads merged; 0 past the plane."""
    mask = row < ROWS
    if COLS % 4 == 0:
        QUADS: tl.constexpr = COLS // 4
        word = row * QUADS + quad
        # Each word by a load of its own: one for all of a run would wait for one after the other, which is 2% slower.
        words = _fixed_words(
            fixed, word, word, row // _SLAB_ROWS, row, quad, row, mask, COLS, BITS, ROW_BYTES, SLAB_BYTES
        )
    else:
        words = tl.zeros_like(row + quad).to(tl.uint32)
        for byte in tl.static_range(4):
            col = quad * 4 + byte
            inside = mask & (col < COLS)
            words |= _fixed_scale(fixed, row, col, inside, BITS, ROW_BYTES, SLAB_BYTES) << (8 * byte)
    if GROUP:  # only where a row is whole words
        unit = row * QUADS + first_quad if COLS % 16 == 0 else word
        words = _merge_leads(words, leads, word, unit, mask, GROUP)
    return words


@triton.jit
def _decode_runs(
    fixed, leads, rest, starts, out, item, destinations, table,
    ROWS: tl.constexpr, COLS: tl.constexpr, BITS: tl.constexpr, ROW_BYTES: tl.constexpr, SLAB_BYTES: tl.constexpr,
    GROUP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
    FORM: tl.constexpr, SWAP: tl.constexpr, TURNS: tl.constexpr, WORD_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Write runs [item * SIZE, + SIZE) of the plane, in the 128x4 layout with zeros for its padding, or in Marlin's.

    In the 128x4 layout, a column quad of four rows that lie 32 apart is 16 bytes in a row; in Marlin's, a column of
    four rows that lie 8 apart is 4. A *run* is WIDTH quads of four such rows: a thread reads each row with one wide
    load, and needs no exchange with others. Runs count through a few rows, then through the columns of these rows, so
    that neighbouring threads store to neighbouring places and a program reads whole rows.
    """
    QUADS: tl.constexpr = (COLS + 3) // 4
    PARTS: tl.constexpr = QUADS // WIDTH  # runs of a row
    BLOCK_RUNS: tl.constexpr = PARTS * 32  # runs of a block of 128 rows
    BLOCKS: tl.constexpr = (ROWS + _TILE_ROWS - 1) // _TILE_ROWS
    RUNS: tl.constexpr = ROWS // 4 * PARTS if FORM == MARLIN else BLOCKS * BLOCK_RUNS

    last_block = tl.minimum((item * SIZE + SIZE - 1) // BLOCK_RUNS, BLOCKS - 1)
    begin = tl.load(starts + item * SIZE // BLOCK_RUNS)
    end = tl.load(starts + last_block + 1)
    early = _load_exceptions(rest, begin + tl.arange(0, LANES), end)

    run = item * SIZE + tl.arange(0, SIZE)[:, None]  # [runs, 1]
    row = first_row(run, PARTS, FORM)
    first = first_quad(run, PARTS, WIDTH, FORM)
    quad = first + tl.arange(0, WIDTH)[None, :]  # [runs, width]
    row_b = row + (16 if FORM == MARLIN else 32)
    row_c = row + (8 if FORM == MARLIN else 64)
    row_d = row + (24 if FORM == MARLIN else 96)
    a = _row_words(fixed, leads, row, first, quad, ROWS, COLS, BITS, ROW_BYTES, SLAB_BYTES, GROUP)
    b = _row_words(fixed, leads, row_b, first, quad, ROWS, COLS, BITS, ROW_BYTES, SLAB_BYTES, GROUP)
    c = _row_words(fixed, leads, row_c, first, quad, ROWS, COLS, BITS, ROW_BYTES, SLAB_BYTES, GROUP)
    d = _row_words(fixed, leads, row_d, first, quad, ROWS, COLS, BITS, ROW_BYTES, SLAB_BYTES, GROUP)
    if table is not None:
        odd = not_shifted(a, table, row < ROWS) | not_shifted(b, table, row_b < ROWS)
        odd |= not_shifted(c, table, row_c < ROWS) | not_shifted(d, table, row_d < ROWS)
        if _any(odd) | (COLS % 4 != 0):
            a = looked_up(a, table, quad * 4, row < ROWS, COLS)
            b = looked_up(b, table, quad * 4, row_b < ROWS, COLS)
            c = looked_up(c, table, quad * 4, row_c < ROWS, COLS)
            d = looked_up(d, table, quad * 4, row_d < ROWS, COLS)
        else:
            a = shifted(a, table, row < ROWS)
            b = shifted(b, table, row_b < ROWS)
            c = shifted(c, table, row_c < ROWS)
            d = shifted(d, table, row_d < ROWS)
    PAIR_ROWS: tl.constexpr = 2 * (_MARLIN_ROWS if FORM == MARLIN else _TILE_ROWS)
    WHOLE: tl.constexpr = ROWS // PAIR_ROWS * PAIR_ROWS == ROWS  # halves are whole blocks
    if destinations is not None or TURNS or (SWAP and not WHOLE):
        mask = run < RUNS
        store_moved(out, a, row, quad, mask, destinations, ROWS, COLS, FORM, SWAP, TURNS, WORD_ALIGNED)
        store_moved(out, b, row_b, quad, mask, destinations, ROWS, COLS, FORM, SWAP, TURNS, WORD_ALIGNED)
        store_moved(out, c, row_c, quad, mask, destinations, ROWS, COLS, FORM, SWAP, TURNS, WORD_ALIGNED)
        store_moved(out, d, row_d, quad, mask, destinations, ROWS, COLS, FORM, SWAP, TURNS, WORD_ALIGNED)
    elif FORM == MARLIN:
        store_columns(out, a, b, c, d, run, quad, run < RUNS, ROWS, COLS, PARTS, SWAP, WORD_ALIGNED)
    else:
        words = tl.join(tl.join(a, b), tl.join(c, d))  # [runs, width, b or a, d or c]
        words = words.permute(1, 0, 3, 2).reshape(WIDTH * SIZE, 4)  # a chunk: a b c d
        at = tl.arange(0, WIDTH * SIZE)[:, None]
        run = item * SIZE + at % SIZE
        block = swapped(run // BLOCK_RUNS, BLOCKS) if SWAP else run // BLOCK_RUNS
        tile = block * QUADS + first_quad(run, PARTS, WIDTH, FORM) + at // SIZE
        word = (tile * 32 + first_row(run, PARTS, FORM) % _TILE_ROWS) * 4 + tl.arange(0, 4)[None, :]
        store_words(out, word, words, run < RUNS, WORD_ALIGNED)
    _overwrite(
        out, rest, early, begin, end, item, destinations, table,
        ROWS, COLS, SIZE, WIDTH, LANES, FORM, SWAP, TURNS,
    )  # fmt: skip


@triton.jit
def _decode_item(
    fixed, leads, rest, starts, out, expert, item, destinations, table,
    ROWS: tl.constexpr, COLS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    SIZE: tl.constexpr, LANES: tl.constexpr, FORM: tl.constexpr, SWAP: tl.constexpr, TURNS: tl.constexpr,
    WORD_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Write item `item` of the plane of `expert`."""
    ROW_BYTES: tl.constexpr = (COLS * BITS + 7) // 8
    SLAB_BYTES: tl.constexpr = _SLAB_ROWS * (1 + ROW_BYTES)
    plane = expert.to(tl.int64)
    fixed += plane * (ROWS // _SLAB_ROWS * SLAB_BYTES)
    if GROUP:
        leads += plane * ((ROWS * COLS + GROUP - 1) // GROUP)
    if WIDTH:
        BLOCKS: tl.constexpr = (ROWS + _TILE_ROWS - 1) // _TILE_ROWS
        PADDED: tl.constexpr = BLOCKS * ((COLS + 3) // 4) * _TILE_BYTES
        PLANE: tl.constexpr = ROWS * COLS if FORM == MARLIN else PADDED
        _decode_runs(
            fixed, leads, rest, starts + plane * BLOCKS, out + plane * PLANE, item, destinations, table,
            ROWS, COLS, BITS, ROW_BYTES, SLAB_BYTES, GROUP, SIZE, WIDTH, LANES, FORM, SWAP, TURNS, WORD_ALIGNED,
        )  # fmt: skip
    else:
        PIECES: tl.constexpr = (ROWS * COLS + SIZE - 1) // SIZE
        _decode_piece(
            fixed, leads, rest, starts + plane * PIECES, out + plane * (ROWS * COLS), item, destinations, table,
            ROWS, COLS, BITS, ROW_BYTES, SLAB_BYTES, GROUP, SIZE, LANES, SWAP, TURNS, WORD_ALIGNED,
        )  # fmt: skip


@triton.jit(do_not_specialize=["experts", "number", "offset"], do_not_specialize_on_alignment=["routing"])
def decode(
    fixed, leads, rest, starts, out, destinations, table, routing, number, offset, experts,
    ROWS: tl.constexpr, COLS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    SIZE: tl.constexpr, ITEMS: tl.constexpr, LANES: tl.constexpr, SLOTS: tl.constexpr, GROUPS: tl.constexpr,
    CHOICES: tl.constexpr, FORM: tl.constexpr, SWAP: tl.constexpr, TURNS: tl.constexpr, WORD_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Decode a stack. A plane is ITEMS items of SIZE: bytes of the row-major plane, or runs where WIDTH says so.

    `starts` says where in `rest` the exceptions begin of each piece (row-major) or block of 128 rows (runs).
    SLOTS: one program an item of each chosen expert, in axis 1; those of an expert that was chosen before leave.
    GROUPS: axis 0 is an item for each group of experts, axis 1 takes its active experts in turn. Programs with work
    come first, so that the others, which leave at once, start and end beside them; and where all experts are active,
    programs follow one another through memory. `active_experts` says what routing, number, offset and CHOICES are.
    Neither: one program an item.
    """
    if SLOTS:
        slot = tl.program_id(1)
        chosen = tl.load(routing + slot)
        expert = chosen.to(tl.int64) - offset
        if (expert >= 0) & (expert < experts) & comes_first(routing, slot, chosen):
            _decode_item(
                fixed, leads, rest, starts, out, expert.to(tl.int32), tl.program_id(0), destinations, table,
                ROWS, COLS, BITS, GROUP, WIDTH, SIZE, LANES, FORM, SWAP, TURNS, WORD_ALIGNED,
            )  # fmt: skip
    elif GROUPS:
        group = tl.program_id(0) // ITEMS
        lane = tl.arange(0, GROUP_EXPERTS).to(tl.uint32)
        active = active_experts(routing, group, number, experts, offset, GROUPS, CHOICES)
        before = tl.full((GROUP_EXPERTS,), 1, tl.uint32) << lane
        order = tl.where((active & before) != 0, count_bits(active & (before - 1)), -1)
        # The item is the same in each turn. Were it known to the compiler, it would keep more in registers than pays.
        first = tl.program_id(1) * ITEMS + tl.program_id(0) % ITEMS
        for work in range(first, count_bits(active) * ITEMS, tl.num_programs(1) * ITEMS):
            place = tl.sum(tl.where(order == work // ITEMS, lane, 0), 0).to(tl.int32)
            _decode_item(
                fixed, leads, rest, starts, out, place * GROUPS + group, work % ITEMS, destinations, table,
                ROWS, COLS, BITS, GROUP, WIDTH, SIZE, LANES, FORM, SWAP, TURNS, WORD_ALIGNED,
            )  # fmt: skip
    else:
        work = tl.program_id(0)
        _decode_item(
            fixed, leads, rest, starts, out, work // ITEMS, work % ITEMS, destinations, table,
            ROWS, COLS, BITS, GROUP, WIDTH, SIZE, LANES, FORM, SWAP, TURNS, WORD_ALIGNED,
        )  # fmt: skip
