"""The Triton kernels that encode a stack: find the row bases, pack the codes, write the exceptions.

The base of a row is the lowest one whose window covers the most of its scales. `find_bases` gives each
thread a row. A *look* at a row counts how often each of 32 neighbouring values occurs, in counters that are
packed into registers, and so finds the best of the 16 windows that begin in the first half of them. The
first look is around the mean. What it counted bounds all other windows, and for ordinary rows that proves
it right. Where a row of the program needs more, the row's scales are counted by their high nibbles: a window
that begins in nibble bin n lies in the bins n and n + 1, and bins are looked at as long as they could win.

`pack` writes the codes and, as a bit for each scale, which are exceptions; `write_exceptions` follows these.

Pointers: scales uint8 `[experts, rows, cols]`, fixed uint8 `[experts, fixed bytes of a plane]`, masks int16
`[experts, units of a plane]`: a *unit* is up to 16 scales of a row whose codes fill 1, 2, 4 or 8 bytes.
"""

import triton
import triton.language as tl

from csf_tool.codec import formats

_SLAB_ROWS = tl.constexpr(formats.SLAB_ROWS)
_POSITION_BITS = tl.constexpr(formats.POSITION_BITS)

_STEP = tl.constexpr(8)
"""Columns that are counted at once, in counters of 4 bits."""

_SEGMENT = tl.constexpr(240)
"""Columns after which counters of 8 bits are moved on to counters of 16: 240 fits 8 bits."""

_NOTHING = tl.constexpr(1 << 16)
"""Stands where a row has no more scales: a value in no bin."""


@triton.jit
def _load_step(scales, row, col, mask, COLS: tl.constexpr):
    """Scales [rows, 8] from column `col`, as int32."""
    col = col + tl.arange(0, _STEP)[None, :]
    at = row.to(tl.int64)[:, None] * COLS + col
    if COLS % 8 == 0:
        value = tl.load(scales + at, mask=mask[:, None], other=0).to(tl.int32)
    else:
        inside = mask[:, None] & (col < COLS)
        value = tl.where(inside, tl.load(scales + at, mask=inside, other=0).to(tl.int32), _NOTHING)
    return value


@triton.jit
def _ones(nibble):
    """A 1 in the 4-bit counter of each nibble, of 16 counters in an int64."""
    return tl.full((1, 1), 1, tl.int64) << (nibble * 4).to(tl.int64)


@triton.jit
def _even(counts):
    """Counters 0, 2, .. of 4 bits as counters of 8 bits."""
    return counts & 0x0F0F0F0F0F0F0F0F


@triton.jit
def _odd(counts):
    """Counters 1, 3, .. of 4 bits as counters of 8 bits."""
    return (counts >> 4) & 0x0F0F0F0F0F0F0F0F


@triton.jit
def _low(counts):
    """Counters 0, 2, .. of 8 bits as counters of 16 bits."""
    return counts & 0x00FF00FF00FF00FF


@triton.jit
def _high(counts):
    """Counters 1, 3, .. of 8 bits as counters of 16 bits."""
    return (counts >> 8) & 0x00FF00FF00FF00FF


@triton.jit
def _counter(c0, c1, c2, c3, n: tl.constexpr):
    """Counter `n` of 16, held as four int64 of 16-bit counters: c0 has 0, 4, 8, 12, c1 has 1, 5, .."""
    if n % 4 == 0:
        c = c0
    elif n % 4 == 1:
        c = c1
    elif n % 4 == 2:
        c = c2
    else:
        c = c3
    return ((c >> (n // 4 * 16)) & 0xFFFF).to(tl.int32)


@triton.jit
def _mean(scales, row, mask, COLS: tl.constexpr):
    """The mean of each row, rounded down."""
    total = tl.zeros_like(row)
    for col in range(0, COLS, _STEP):
        value = _load_step(scales, row, col, mask, COLS)
        total += tl.sum(tl.where(value < _NOTHING, value, 0), 1)
    return total // COLS


@triton.jit
def _bin_sizes(scales, row, mask, COLS: tl.constexpr):
    """How many scales of each row have each high nibble: counters as `_counter` takes them."""
    zero = tl.zeros_like(row).to(tl.int64)
    n0, n1, n2, n3 = zero, zero, zero, zero
    for segment in range(0, COLS, _SEGMENT):
        even, odd = zero, zero
        for col in range(segment, tl.minimum(segment + _SEGMENT, COLS), _STEP):
            value = _load_step(scales, row, col, mask, COLS)
            tally = tl.sum(tl.where(value < _NOTHING, _ones((value >> 4) & 15), 0), 1)
            even += _even(tally)
            odd += _odd(tally)
        n0 += _low(even)
        n1 += _low(odd)
        n2 += _high(even)
        n3 += _high(odd)
    return n0, n1, n2, n3


@triton.jit
def _look(scales, row, mask, first, best, base, COLS: tl.constexpr, WINDOW: tl.constexpr):
    """Look at the windows that begin at `first` to `first` + 15, for one that covers more than `best`.

    One that covers as many wins as well, if it begins below `base`. Returns the new best and base, and how many
    scales are in `first` to `first` + 15 and in the 16 values above these.
    """
    zero = tl.zeros_like(row).to(tl.int64)
    a0, a1, a2, a3 = zero, zero, zero, zero  # the first 16 values
    b0, b1, b2, b3 = zero, zero, zero, zero  # the 16 above
    for segment in range(0, COLS, _SEGMENT):
        even_a, odd_a, even_b, odd_b = zero, zero, zero, zero
        for col in range(segment, tl.minimum(segment + _SEGMENT, COLS), _STEP):
            value = _load_step(scales, row, col, mask, COLS) - first[:, None]
            ones = _ones(value & 15)
            tally = tl.sum(tl.where(value >> 4 == 0, ones, 0), 1)
            even_a += _even(tally)
            odd_a += _odd(tally)
            tally = tl.sum(tl.where(value >> 4 == 1, ones, 0), 1)
            even_b += _even(tally)
            odd_b += _odd(tally)
        a0 += _low(even_a)
        a1 += _low(odd_a)
        a2 += _high(even_a)
        a3 += _high(odd_a)
        b0 += _low(even_b)
        b1 += _low(odd_b)
        b2 += _high(even_b)
        b3 += _high(odd_b)

    # Slide the window up. Its front moves before its back: the other way round, the compiler runs into its limit
    # while it simplifies a window of two values.
    covered, lower, upper = tl.zeros_like(row), tl.zeros_like(row), tl.zeros_like(row)
    for n in tl.static_range(WINDOW):
        covered += _counter(a0, a1, a2, a3, n)
    for n in tl.static_range(16):
        better = (covered > best) | ((covered == best) & (first + n < base))
        best = tl.where(better, covered, best)
        base = tl.where(better, first + n, base)
        if n + WINDOW < 16:
            covered += _counter(a0, a1, a2, a3, n + WINDOW)
        else:
            covered += _counter(b0, b1, b2, b3, n + WINDOW - 16)
        covered -= _counter(a0, a1, a2, a3, n)
        lower += _counter(a0, a1, a2, a3, n)
        upper += _counter(b0, b1, b2, b3, n)
    return best, base, lower, upper


@triton.jit
def find_bases(
    scales, fixed, rows, COLS: tl.constexpr, WINDOW: tl.constexpr, SLAB_BYTES: tl.constexpr, THREADS: tl.constexpr
):
    """Write the bases of rows [program * THREADS, + THREADS) of the stack's `rows` into the fixed streams."""
    row = tl.program_id(0) * THREADS + tl.arange(0, THREADS)
    mask = row < rows
    best = tl.zeros_like(row) - 1
    base = tl.zeros_like(row)
    # The window around the mean begins WINDOW / 2 below it; the look has as many windows below as above that.
    first = tl.maximum(_mean(scales, row, mask, COLS) - WINDOW // 2 - 8, 0)
    best, base, lower, upper = _look(scales, row, mask, first, best, base, COLS, WINDOW)
    # Windows that begin further down cover nothing of the upper values; those further up, nothing of the lower.
    proven = (best > COLS - upper) & (best >= COLS - lower)
    if tl.min(proven.to(tl.int32), 0) == 0:
        n0, n1, n2, n3 = _bin_sizes(scales, row, mask, COLS)
        seen = tl.zeros_like(row)  # bit n: windows that begin in bin n were looked at
        looking = True
        while looking:
            # Choose the bin with the highest bound, if it can win.
            highest = best
            chosen = tl.zeros_like(row) - 1
            for n in tl.static_range(16):
                bound = _counter(n0, n1, n2, n3, n)
                if n < 15:
                    bound += _counter(n0, n1, n2, n3, n + 1)
                wins = (bound > highest) | ((bound == highest) & (n * 16 < base) & (chosen < 0))
                wins &= ((seen >> n) & 1) == 0
                chosen = tl.where(wins, n, chosen)
                highest = tl.where(wins, bound, highest)
            looking = tl.max(tl.where(mask, chosen, -1), 0) >= 0
            if looking:
                chosen = tl.maximum(chosen, 0)  # rows that are done look at bin 0, which changes nothing
                best, base, _, _ = _look(scales, row, mask, chosen * 16, best, base, COLS, WINDOW)
                seen |= 1 << chosen
    at = (row // _SLAB_ROWS).to(tl.int64) * SLAB_BYTES + row % _SLAB_ROWS
    tl.store(fixed + at, base.to(tl.uint8), mask=mask)


@triton.jit
def _squeeze(spread, BITS: tl.constexpr):
    """Four values of BITS bits in the bytes of a uint32 word, to the low bits of it. The inverse of a spread."""
    pairs = (spread | (spread >> (8 - BITS))) & (((1 << 2 * BITS) - 1) * 0x10001)
    return (pairs | (pairs >> (16 - 2 * BITS))) & ((1 << 4 * BITS) - 1)


@triton.jit
def _popcount(x):
    """Set bits of uint32 `x`. The compiler knows this idiom and emits one POPC."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * 0x01010101) >> 24


@triton.jit
def pack(
    scales, fixed, masks, counts,
    ROWS: tl.constexpr, COLS: tl.constexpr, BITS: tl.constexpr, SLAB_BYTES: tl.constexpr,
    UNIT: tl.constexpr, ROW_UNITS: tl.constexpr, SIZE: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    """Write codes and masks of units [axis 0 * SIZE, + SIZE) of plane axis 1, and count their exceptions.

    A unit has UNIT scales; its codes are one integer of type CODES. Four scales at a time are handled as a word.
    """
    WIDTH: tl.constexpr = min(UNIT, 4)  # scales of a word: a row of two scales has no more
    LOW: tl.constexpr = (0xFF >> BITS) * 0x01010101

    plane = tl.program_id(1).to(tl.int64)
    scales += plane * (ROWS * COLS)
    fixed += plane * (ROWS // _SLAB_ROWS * SLAB_BYTES)
    unit = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    row = unit // ROW_UNITS
    mask = row < ROWS
    col = (unit % ROW_UNITS * UNIT)[:, None] + tl.arange(0, UNIT)[None, :]
    base = tl.load(fixed + row // _SLAB_ROWS * SLAB_BYTES + row % _SLAB_ROWS, mask=mask, other=0)
    if COLS % UNIT == 0:
        scale = tl.load(scales + row[:, None] * COLS + col, mask=mask[:, None], other=0)
    else:  # what is past the last column gets code 0
        inside = mask[:, None] & (col < COLS)
        scale = tl.load(scales + row[:, None] * COLS + col, mask=inside, other=0)
        scale = tl.where(inside, scale, base[:, None])
    slot = tl.arange(0, UNIT) % WIDTH * 8
    words = tl.sum(tl.reshape(scale.to(tl.uint32) << slot.to(tl.uint32)[None, :], (SIZE, UNIT // WIDTH, WIDTH)), 2)

    # Subtract the base from the bytes of a word, without borrows between them.
    bases = (base.to(tl.uint32) * (0x01010101 & ((1 << 8 * WIDTH) - 1)))[:, None]
    code = ((words | 0x80808080) - (bases & 0x7F7F7F7F)) ^ ((words ^ ~bases) & 0x80808080)
    outside = ((((code >> BITS) & LOW) + LOW) >> (8 - BITS)) & 0x01010101  # 1 where a byte has a higher bit
    code &= ~(outside * 0xFF) & (((1 << BITS) - 1) * 0x01010101)

    at_word = tl.arange(0, UNIT // WIDTH)[None, :]
    codes = tl.sum(_squeeze(code, BITS).to(tl.uint64) << (at_word * (WIDTH * BITS)).to(tl.uint64), 1)
    bits = tl.sum(_squeeze(outside, 1) << (at_word * WIDTH).to(tl.uint32), 1)
    at = row // _SLAB_ROWS * SLAB_BYTES + _SLAB_ROWS
    at += (row % _SLAB_ROWS * ROW_UNITS + unit % ROW_UNITS) * (UNIT * BITS // 8)
    tl.store((fixed + at).to(tl.pointer_type(CODES)), codes.to(CODES), mask=mask)
    tl.store(masks + plane * (ROWS * ROW_UNITS) + unit, bits.to(tl.int16), mask=mask)
    count = tl.sum(tl.where(mask, _popcount(bits), 0).to(tl.int32), 0)
    tl.store(counts + plane * tl.num_programs(0) + tl.program_id(0), count.to(tl.int64))


@triton.jit(do_not_specialize=["room"])
def write_exceptions(
    scales, masks, ends, exceptions, room,
    ROWS: tl.constexpr, COLS: tl.constexpr, UNIT: tl.constexpr, ROW_UNITS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Write the exceptions that `pack` counted in the same programs, as far as there is `room`.

    `ends` are the running sums of the counts.
    """
    plane = tl.program_id(1).to(tl.int64)
    program = plane * tl.num_programs(0) + tl.program_id(0)
    begin = tl.load(ends + program - 1, mask=program > 0, other=0)
    unit = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    bits = tl.load(masks + plane * (ROWS * ROW_UNITS) + unit, mask=unit < ROWS * ROW_UNITS, other=0)
    bits = bits.to(tl.uint32) & 0xFFFF
    count = _popcount(bits).to(tl.int32)
    at = begin + tl.cumsum(count, 0) - count
    scales += plane * (ROWS * COLS)
    position = unit // ROW_UNITS * COLS + unit % ROW_UNITS * UNIT
    for nth in range(tl.max(count, 0)):  # the nth exception of every unit
        there = bits != 0
        place = position + _popcount((bits & (~bits + 1)) - 1).to(tl.int32)
        scale = tl.load(scales + place, mask=there, other=0).to(tl.uint32)
        word = (scale << _POSITION_BITS) | place.to(tl.uint32)
        tl.store(exceptions + at + nth, word.to(tl.int32, bitcast=True), mask=there & (at + nth < room))
        bits &= bits - 1
