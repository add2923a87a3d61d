"""The Triton kernels that encode a stack: `encode` writes the fixed streams, `write_exceptions` the exceptions.

The base of a row is the lowest one whose window covers the most of its scales. To find it, `encode` gives each
thread a row. A *look* at a row counts, for 31 neighbouring values at once, how many of its scales are less than
each. A scale becomes a word that has a bit for each of the values, and words are added digit by digit: digit p of
all counters is one word again. What a window covers is the difference of two counters, so a few operations on
words compare all windows of a look. The look counts as well what windows further down or up can cover at most:
that proves its best one right, or says in which direction to look again. It begins near the middle of a few of the
row's scales; where the scales are one hump, that is nearly always the only look.

Then `encode` packs the codes, and marks the exceptions as a bit for each scale; `write_exceptions` follows these.

Pointers: scales uint8 `[experts, rows, cols]` at a multiple of 8, fixed uint8 `[experts, fixed bytes of a plane]`,
masks int16 `[experts, units of a plane]`, counts int32 `[experts, chunks of a plane]`, totals int32 `[experts]`.
A *unit* is up to 16 scales of a row whose codes fill 1, 2, 4 or 8 bytes; a *chunk* is as many units as a program of
`encode` has threads.
"""

import triton
import triton.language as tl

from csf_tool.codec import formats
from csf_tool.gpu.decode_kernels import ALL_BITS

_SLAB_ROWS = tl.constexpr(formats.SLAB_ROWS)
_POSITION_BITS = tl.constexpr(formats.POSITION_BITS)

_SAMPLES = tl.constexpr(8)
"""Scales of a row that are sampled to place the first look."""

_LANES = tl.constexpr(512)
"""Counts that a program sums at once."""


@triton.jit
def _popcount(x):
    """Set bits of uint32 `x`. The compiler knows this idiom and emits one POPC."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * 0x01010101) >> 24


@triton.jit
def _below_lowest(x):
    """Number of bits of uint32 `x` below its lowest set bit."""
    return _popcount((x & ((x ^ ALL_BITS) + 1)) - 1).to(tl.int32)


@triton.jit
def _add(a, b, c):
    """Add three bits, in each of 32 places: their sum and their carry."""
    differ = a ^ b
    return differ ^ c, (a & b) | (c & differ)


@triton.jit
def _less(scales, n: tl.constexpr, before, all_bits, WIDTH: tl.constexpr):
    """Bit j: whether scale `n` of those packed in `scales` is at most `before` + j, for j < 31. Bit 31 is set."""
    if n < WIDTH:
        place = ((scales >> (8 * n)) & 0xFF).to(tl.int32) - before
        bits = all_bits << tl.minimum(tl.maximum(place, 0), 31).to(tl.uint32)
    else:  # no such scale
        bits = all_bits ^ all_bits
    return bits


@triton.jit
def _count_less(scales, row, mask, first, COLS: tl.constexpr, DIGITS: tl.constexpr, SCALES: tl.constexpr):
    """Counter j: how many scales of the row are less than `first` + j, for j < 31.

    The counters are returned as their binary digits: word p has digit p of counter j as bit j. The scales are loaded
    as integers of type SCALES, of up to 8 bytes.
    """
    WIDTH: tl.constexpr = SCALES.primitive_bitwidth // 8
    scales = scales.to(tl.pointer_type(SCALES)) + row * (COLS // WIDTH)
    before = first - 1
    zero = tl.zeros_like(first).to(tl.uint32)
    ones = zero ^ ALL_BITS
    digits: tl.tuple = ()
    for _ in tl.static_range(DIGITS):
        digits = digits + (zero,)  # noqa: RUF005 (Triton unpacks no tuples)
    for at in range(COLS // WIDTH):
        eight = tl.load(scales + at, mask=mask, other=0)
        # Each addition takes three digits of one weight to one of this weight and one of the next.
        b0, a = _add(digits[0], _less(eight, 0, before, ones, WIDTH), _less(eight, 1, before, ones, WIDTH))
        b0, b = _add(b0, _less(eight, 2, before, ones, WIDTH), _less(eight, 3, before, ones, WIDTH))
        b1, c = _add(digits[1], a, b)
        b0, a = _add(b0, _less(eight, 4, before, ones, WIDTH), _less(eight, 5, before, ones, WIDTH))
        b0, b = _add(b0, _less(eight, 6, before, ones, WIDTH), _less(eight, 7, before, ones, WIDTH))
        b1, d = _add(b1, a, b)
        b2, carry = _add(digits[2], c, d)
        sums: tl.tuple = (b0, b1, b2)
        for p in tl.static_range(3, DIGITS):
            sums = sums + (digits[p] ^ carry,)  # noqa: RUF005 (Triton unpacks no tuples)
            carry = digits[p] & carry
        digits = sums
    return digits


@triton.jit
def _counter(digits, n: tl.constexpr, DIGITS: tl.constexpr):
    """Counter `n` of those whose digits these are."""
    count = ((digits[0] >> n) & 1).to(tl.int32)
    for p in tl.static_range(1, DIGITS):
        count += ((digits[p] >> n) & 1).to(tl.int32) << p
    return count


@triton.jit
def _best_window(digits, WINDOW: tl.constexpr, DIGITS: tl.constexpr):
    """The first of the 31 - WINDOW windows that covers the most, and how many scales that is."""
    covers: tl.tuple = ()
    borrow = tl.zeros_like(digits[0])
    for p in tl.static_range(DIGITS):  # counter j + WINDOW less counter j, in place j
        inverse, borrow = _add((digits[p] >> WINDOW) ^ ALL_BITS, digits[p], borrow)
        covers = covers + (inverse ^ ALL_BITS,)  # noqa: RUF005 (Triton unpacks no tuples)
    best = tl.zeros_like(digits[0]) | ((1 << (31 - WINDOW)) - 1)  # bit j: as far as known, window j
    covered = tl.zeros_like(digits[0]).to(tl.int32)
    for p in tl.static_range(DIGITS - 1, -1, -1):
        better = best & covers[p]
        best = tl.where(better != 0, better, best)
        covered += tl.where(better != 0, 1 << p, 0)
    return _below_lowest(best), covered


@triton.jit
def _first_look(scales, row, mask, COLS: tl.constexpr, WINDOW: tl.constexpr):
    """The first value of the first look, whose middle window lies around the mean of some of the row's scales."""
    total = tl.zeros_like(row)
    lowest, highest = total + 255, total
    for n in tl.static_range(_SAMPLES):
        scale = tl.load(scales + row * COLS + n * COLS // _SAMPLES, mask=mask, other=0).to(tl.int32)
        total += scale
        lowest, highest = tl.minimum(lowest, scale), tl.maximum(highest, scale)
    mean = (total - lowest - highest) // (_SAMPLES - 2)  # a stray at either end does no harm
    return tl.minimum(tl.maximum(mean - WINDOW // 2 - (31 - WINDOW) // 2, 0), 256 - WINDOW)


@triton.jit
def _find_bases(
    scales, row, mask, COLS: tl.constexpr, WINDOW: tl.constexpr, DIGITS: tl.constexpr, SCALES: tl.constexpr
):
    """The base of each row. The looks go on until no row needs another one."""
    STEP: tl.constexpr = 31 - WINDOW  # windows of a look
    LAST: tl.constexpr = 256 - WINDOW  # the highest base
    first = _first_look(scales, row, mask, COLS, WINDOW)
    lowest, highest = first, first  # looks so far, without a gap between them
    lower, upper = tl.zeros_like(row), tl.zeros_like(row)  # what windows below and above these can cover
    base, best = tl.zeros_like(row), tl.zeros_like(row) - 1
    looking = True
    while looking:
        digits = _count_less(scales, row, mask, first, COLS, DIGITS, SCALES)
        window, covered = _best_window(digits, WINDOW, DIGITS)
        better = (covered > best) | ((covered == best) & (first + window < base))
        best, base = tl.where(better, covered, best), tl.where(better, first + window, base)
        lower = tl.where(first == lowest, _counter(digits, WINDOW - 1, DIGITS), lower)
        upper = tl.where(first == highest, COLS - _counter(digits, STEP, DIGITS), upper)
        down = (lower >= best) & (lowest > 0)  # of windows that cover as much, the lowest wins
        up = (upper > best) & (highest <= LAST - STEP)
        lowest = tl.where(down, tl.maximum(lowest - STEP, 0), lowest)
        highest = tl.where(up & ~down, tl.minimum(highest + STEP, LAST), highest)
        first = tl.where(down, lowest, highest)  # a row that is done repeats a look
        looking = tl.max((mask & (down | up)).to(tl.int32), 0) > 0
    return base


@triton.jit
def _squeeze(spread, BITS: tl.constexpr):
    """Four values of BITS bits in the bytes of a uint32 word, to the low bits of it. The inverse of a spread."""
    pairs = (spread | (spread >> (8 - BITS))) & (((1 << 2 * BITS) - 1) * 0x10001)
    return (pairs | (pairs >> (16 - 2 * BITS))) & ((1 << 4 * BITS) - 1)


@triton.jit
def _load_units(scales, unit, row, mask, base, COLS: tl.constexpr, UNIT: tl.constexpr, ROW_UNITS: tl.constexpr):
    """The scales of units, up to four in a word: uint32 [units, words]. Past the last column they are the base."""
    WIDTH: tl.constexpr = min(UNIT, 4)
    WORDS: tl.constexpr = UNIT // WIDTH
    if COLS % UNIT == 0:
        if WIDTH == 4:
            scales = scales.to(tl.pointer_type(tl.uint32))
        else:  # a row of two scales has no more
            scales = scales.to(tl.pointer_type(tl.uint16))
        at = unit[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
        words = tl.load(scales + at, mask=mask[:, None], other=0).to(tl.uint32)
    else:
        col = (unit % ROW_UNITS * UNIT)[:, None] + tl.arange(0, UNIT)[None, :]
        inside = mask[:, None] & (col < COLS)
        scale = tl.load(scales + row[:, None] * COLS + col, mask=inside, other=0)
        scale = tl.where(inside, scale, base[:, None]).to(tl.uint32)
        slot = (tl.arange(0, UNIT) % WIDTH * 8).to(tl.uint32)
        words = tl.sum(tl.reshape(scale << slot[None, :], (unit.shape[0], WORDS, WIDTH)), 2)
    return words


@triton.jit
def _codes_and_strays(words, base, BITS: tl.constexpr, WIDTH: tl.constexpr):
    """Codes in the bytes of words, 0 where a scale is outside the window, and there bit 7 of a byte of the second."""
    LOW: tl.constexpr = ((1 << BITS) - 1) * 0x01010101
    HIGH: tl.constexpr = (0x80 - (1 << BITS)) * 0x01010101
    # Subtract the base from the bytes of a word, without borrows between them.
    bases = (base.to(tl.uint32) * (0x01010101 & ((1 << 8 * WIDTH) - 1)))[:, None]
    code = ((words | 0x80808080) - (bases & 0x7F7F7F7F)) ^ ((words ^ bases ^ ALL_BITS) & 0x80808080)
    strays = (((code & HIGH) + HIGH) | code) & 0x80808080
    return code & LOW & ((strays >> 7) * ((1 << BITS) - 1) ^ ALL_BITS), strays


@triton.jit
def encode(
    scales, fixed, masks, counts, totals,
    ROWS: tl.constexpr, COLS: tl.constexpr, BITS: tl.constexpr, UNIT: tl.constexpr, ROW_UNITS: tl.constexpr,
    THREADS: tl.constexpr, DIGITS: tl.constexpr, SCALES: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    """Write fixed streams and masks of rows [axis 0 * THREADS, + THREADS) of plane axis 1; count their exceptions.

    `counts` are those of each chunk; to `totals`, zero before, they are added by plane. DIGITS is how many bits COLS
    has. Scales are loaded as integers of type SCALES; the codes of a unit are one of type CODES.
    """
    WIDTH: tl.constexpr = min(UNIT, 4)
    SLAB_UNITS: tl.constexpr = _SLAB_ROWS * ROW_UNITS
    UNIT_BYTES: tl.constexpr = UNIT * BITS // 8
    SLAB_BYTES: tl.constexpr = _SLAB_ROWS + SLAB_UNITS * UNIT_BYTES

    plane = tl.program_id(1).to(tl.int64)
    scales += plane * (ROWS * COLS)
    fixed += plane * (ROWS // _SLAB_ROWS * SLAB_BYTES)
    masks += plane * (ROWS * ROW_UNITS)
    counts += (plane * tl.num_programs(0) + tl.program_id(0)) * ROW_UNITS
    row = tl.program_id(0) * THREADS + tl.arange(0, THREADS)
    bases = _find_bases(scales, row, row < ROWS, COLS, 1 << BITS, DIGITS, SCALES)
    tl.store(fixed + row // _SLAB_ROWS * SLAB_BYTES + row % _SLAB_ROWS, bases.to(tl.uint8), mask=row < ROWS)
    tl.debug_barrier()  # from here on, a thread needs the bases that others found

    total = tl.zeros((THREADS,), tl.int32)
    at_word = tl.arange(0, UNIT // WIDTH)[None, :]
    for chunk in range(ROW_UNITS):
        unit = (tl.program_id(0) * ROW_UNITS + chunk) * THREADS + tl.arange(0, THREADS)
        row = unit // ROW_UNITS
        mask = row < ROWS
        base = tl.load(fixed + row // _SLAB_ROWS * SLAB_BYTES + row % _SLAB_ROWS, mask=mask, other=0)
        words = _load_units(scales, unit, row, mask, base, COLS, UNIT, ROW_UNITS)
        code, strays = _codes_and_strays(words, base, BITS, WIDTH)
        codes = tl.sum(_squeeze(code, BITS).to(tl.uint64) << (at_word * (WIDTH * BITS)).to(tl.uint64), 1)
        # The product moves bit 7 of each byte up to the highest four.
        bits = tl.sum(((strays * 0x00204081) >> 28) << (at_word * WIDTH).to(tl.uint32), 1)
        at = unit * UNIT_BYTES + (unit // SLAB_UNITS + 1) * _SLAB_ROWS
        tl.store((fixed + at).to(tl.pointer_type(CODES)), codes.to(CODES), mask=mask)
        tl.store(masks + unit, bits.to(tl.int16), mask=mask)
        count = tl.where(mask, _popcount(bits), 0).to(tl.int32)
        tl.store(counts + chunk, tl.sum(count, 0))
        total += count
    tl.atomic_add(totals + plane, tl.sum(total, 0), sem="relaxed")


@triton.jit
def _add_up(sums, values, count):
    """`sums` and the first `count` of `values`, spread over the lanes."""
    lane = tl.arange(0, _LANES)
    for at in range(0, count, _LANES):
        sums += tl.load(values + at + lane, mask=at + lane < count, other=0)
    return sums


@triton.jit(do_not_specialize=["room", "chunks"])
def write_exceptions(
    scales, masks, counts, totals, exceptions, room, chunks,
    ROWS: tl.constexpr, COLS: tl.constexpr, UNIT: tl.constexpr, ROW_UNITS: tl.constexpr,
    SIZE: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Write the exceptions of units [axis 0 * SIZE, + SIZE) of plane axis 1, as far as there is `room`.

    A plane has `chunks` chunks of THREADS units, SIZE is a multiple of these.
    """
    plane = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    bits = tl.load(masks + plane * (ROWS * ROW_UNITS) + unit, mask=unit < ROWS * ROW_UNITS, other=0)
    before = tl.zeros((_LANES,), tl.int64)  # exceptions of earlier planes, and of earlier chunks of this one
    before = _add_up(before, totals, plane)
    before = _add_up(before, counts + plane * chunks, tl.program_id(0) * (SIZE // THREADS))
    begin = tl.sum(before, 0)
    bits = bits.to(tl.uint32) & 0xFFFF
    count = _popcount(bits).to(tl.int32)
    at = begin + tl.cumsum(count, 0) - count
    scales += plane * (ROWS * COLS)
    position = unit // ROW_UNITS * COLS + unit % ROW_UNITS * UNIT
    for nth in range(tl.max(count, 0)):  # the nth exception of every unit
        present = bits != 0
        place = position + _below_lowest(bits)
        scale = tl.load(scales + place, mask=present, other=0).to(tl.uint32)
        word = (scale << _POSITION_BITS) | place.to(tl.uint32)
        tl.store(exceptions + at + nth, word.to(tl.int32, bitcast=True), mask=present & (at + nth < room))
        bits &= bits - 1
