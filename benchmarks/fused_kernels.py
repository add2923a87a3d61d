"""Triton kernels of the products from compressed scales that `fused.py` times. A tile gives the bits of bench's."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from csf_tool.bench.gemm_kernels import _FACTOR, _REST, _weights
from csf_tool.gpu.decode_kernels import _decode_item, _fixed_words
from csf_tool.gpu.launching import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def _prefetch_weights(weight, line0, lines, ROWS: tl.constexpr, ROW_BYTES: tl.constexpr):
    """Bring the first `lines` lines of 128 bytes of ROWS rows of weights into the L2, and do not wait."""
    row = tl.arange(0, ROWS)[:, None]
    for first in range(0, lines, 8):
        line = first + tl.arange(0, 8)[None, :]
        inside = (line < lines) & (line * 128 < ROW_BYTES) & (row < ROWS)
        if not _INTERPRETED:
            tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.ne.u32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l,r",
                [(weight + (line0 + row) * ROW_BYTES + line * 128).to(tl.uint64), inside.to(tl.uint32)],
                tl.uint32, is_pure=False, pack=1,
            )  # fmt: skip


@triton.jit
def _multiply_tile(
    x, weight, scale, out, row, end, line, column,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The tile of bench's product: rows `row` below `end`, columns `column`; `line` are the weights' rows among all
    experts', and `scale` points to the scales of the first.
    """
    x += row.to(tl.int64)[:, None] * K + tl.arange(0, BLOCK_K)[None, :]
    weight += line[:, None] * (K // 2) + tl.arange(0, BLOCK_K // 2)[None, :]
    scale += tl.arange(0, BLOCK_N)[:, None] * (K // 16) + tl.arange(0, BLOCK_K // 16)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        tokens = tl.load(x + k, mask=row[:, None] < end, other=0)
        codes = tl.load(weight + k // 2)
        scales = tl.load(scale + k // 16)
        factor = tl.broadcast_to((scales.to(tl.float32) * _FACTOR)[:, :, None], (BLOCK_N, BLOCK_K // 16, 8))
        even, odd = _weights(codes, tl.reshape(factor, (BLOCK_N, BLOCK_K // 2)), tokens.dtype)
        even_tokens, odd_tokens = tl.split(tl.reshape(tokens, (BLOCK_M, BLOCK_K // 2, 2)))
        total = tl.dot(even_tokens, tl.trans(even), total)
        total = tl.dot(odd_tokens, tl.trans(odd), total)
    total *= _REST
    at = row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=row[:, None] < end)


@triton.jit
def _product(
    x, weight, scale, out, blocks, block, columns, lines,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """bench's product of a block of rows and columns, which brings its weights into the L2 before it waits."""
    blocks += block * 3
    expert, begin, end = tl.load(blocks), tl.load(blocks + 1), tl.load(blocks + 2)
    column0 = columns * BLOCK_N
    line0 = expert.to(tl.int64) * N + column0
    _prefetch_weights(weight, line0, lines, BLOCK_N, K // 2)
    if not _INTERPRETED:
        gdc_wait()
    lane = tl.arange(0, BLOCK_N)
    _multiply_tile(
        x, weight, scale + line0 * (K // 16), out, begin + tl.arange(0, BLOCK_M), end, line0 + lane, column0 + lane,
        N, K, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip


@triton.jit(do_not_specialize=["lines"])
def product_after(
    x, weight, scale, out, blocks, lines,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """bench's product, between kernels that overlap: lets the next one start, and waits for the one before."""
    if not _INTERPRETED:
        gdc_launch_dependents()
    _product(x, weight, scale, out, blocks, tl.program_id(1), tl.program_id(0), lines, N, K, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit
def _decode_active(
    fixed, leads, rest, starts, out, active, work,
    ROWS: tl.constexpr, COLS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, ITEMS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Item `work` of those of the experts in the list `active`."""
    _decode_item(
        fixed, leads, rest, starts, out, tl.load(active + work // ITEMS), work % ITEMS, None, None,
        ROWS, COLS, 4, GROUP, 0, SIZE, LANES, 0, False, 0, True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["first"])
def decode_stacks(
    fixed, leads, rest, starts, out, fixed_b, leads_b, rest_b, starts_b, out_b, active, first,
    ROWS: tl.constexpr, COLS: tl.constexpr, GROUP: tl.constexpr, ITEMS: tl.constexpr,
    ROWS_B: tl.constexpr, COLS_B: tl.constexpr, GROUP_B: tl.constexpr, ITEMS_B: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Active experts of two stacks in one launch, `first` items of the first; lets the next kernel start."""
    if not _INTERPRETED:
        gdc_launch_dependents()
    work = tl.program_id(0)
    if work < first:
        _decode_active(fixed, leads, rest, starts, out, active, work, ROWS, COLS, GROUP, SIZE, ITEMS, 128)
    else:
        _decode_active(
            fixed_b, leads_b, rest_b, starts_b, out_b, active, work - first,
            ROWS_B, COLS_B, GROUP_B, SIZE, ITEMS_B, 128,
        )  # fmt: skip


@triton.jit(do_not_specialize=["programs", "lines"])
def product_and_decode(
    x, weight, scale, out, blocks, programs, lines, fixed, leads, rest, starts, out_b, active,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, GROUP: tl.constexpr,
    SIZE: tl.constexpr, ITEMS: tl.constexpr, LANES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One stack's product in `programs` programs, and in those after them the other's scales, which wait for none."""
    if not _INTERPRETED:
        gdc_launch_dependents()
    pid = tl.program_id(0)
    if pid < programs:
        block, columns = pid // (N // BLOCK_N), pid % (N // BLOCK_N)
        _product(x, weight, scale, out, blocks, block, columns, lines, N, K, BLOCK_M, BLOCK_N, BLOCK_K)
    else:
        _decode_active(fixed, leads, rest, starts, out_b, active, pid - programs, ROWS, COLS, GROUP, SIZE, ITEMS, LANES)


@triton.jit(do_not_specialize=["lines"])
def strip(
    x, weight, fixed, rest, rest_starts, scratch, out, blocks, lines,
    N: tl.constexpr, K: tl.constexpr, LANES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """bench's product, whose programs first decode their strip of scales into a scratch of their own.

    rest: `value << 16 | position in the strip`, strip by strip as rest_starts says. CHUNKS: those of 16 scales, rounded
    up to a power of two: all of them are loaded at once.
    """
    COLS: tl.constexpr = K // 16
    SLAB_BYTES: tl.constexpr = 16 * (1 + COLS // 2)
    QUADS: tl.constexpr = COLS // 4
    own = blocks + tl.program_id(1) * 3
    expert, begin, end = tl.load(own), tl.load(own + 1), tl.load(own + 2)
    part = expert * (N // BLOCK_N) + tl.program_id(0)
    at, stop = tl.load(rest_starts + part), tl.load(rest_starts + part + 1)
    lane = tl.arange(0, LANES)
    early = tl.load(rest + at + lane, mask=at + lane < stop, other=0)

    column0 = tl.program_id(0) * BLOCK_N
    line0 = expert.to(tl.int64) * N + column0
    _prefetch_weights(weight, line0, lines, BLOCK_N, K // 2)
    fixed += line0 // 16 * SLAB_BYTES
    scratch += (tl.program_id(1) * (N // BLOCK_N) + tl.program_id(0)).to(tl.int64) * (BLOCK_N * COLS)
    chunk = tl.arange(0, CHUNKS)[:, None]
    word = chunk * 4 + tl.arange(0, 4)[None, :]
    mask = chunk < BLOCK_N * COLS // 16
    row = word // QUADS
    base_row = chunk // (COLS // 16) if COLS % 16 == 0 else row
    words = _fixed_words(
        fixed, word, chunk * 4, chunk // COLS, row, word % QUADS, base_row, mask, COLS, 4, COLS // 2, SLAB_BYTES
    )
    tl.store(scratch.to(tl.pointer_type(tl.uint32)) + word, words, mask=mask)
    tl.debug_barrier()
    if at < stop:
        bytes_of = scratch.to(tl.pointer_type(tl.uint8))
        tl.store(bytes_of + (early & 0xFFFF), (early >> 16).to(tl.uint8), mask=at + lane < stop)
        for more in range(at + LANES, stop, LANES):
            late = tl.load(rest + more + lane, mask=more + lane < stop, other=0)
            tl.store(bytes_of + (late & 0xFFFF), (late >> 16).to(tl.uint8), mask=more + lane < stop)
        tl.debug_barrier()
    lanes = tl.arange(0, BLOCK_N)
    scale = scratch.to(tl.pointer_type(tl.float8e4nv))
    _multiply_tile(
        x, weight, scale, out, begin + tl.arange(0, BLOCK_M), end, line0 + lanes, column0 + lanes,
        N, K, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
