"""A product whose programs decode their strip of scales into shared memory before they multiply, in Gluon.

    python benchmarks/gluon_prologue.py --compile      # anywhere: registers, spills and shared memory for sm_90

The first weights are on their way to shared memory by asynchronous copies while the strip is decoded, all its loads in
flight at once; the loop reads scales from shared memory alone. Without `rest`, `fixed` is dense scales, which are
copied with the weights: the same product, to compare with. benchmarks/fused.py runs and checks both.

A lane holds 8 bytes of codes in a row, which share a scale, so that scales need no exchange between threads. In shared
memory, the scales of four steps are one word, so that a lane reads one word in four steps.

Exceptions are stored over the decoded scales by assembly, for Gluon of Triton 3.6 stores to no computed places in
shared memory (3.7's can). The assembly must know where `scales` lies (`scales_at`).
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from csf_tool.bench.gemm import STACKS
from csf_tool.bench.gemm_kernels import _UNPACK

_ASM = gl.constexpr(_UNPACK.value)
_FACTOR, _REST = gl.constexpr(2.0**119), gl.constexpr(2.0**7)
copy_async = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
"""Its name since Triton 3.7, and before."""
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

# Codes of 8 scales in each of 4 steps, to 8 words: scale s of all four steps. Even s first, then odd s; plus the bases.
_TRANSPOSE = gl.constexpr("""{
    .reg .b32 e0, e1, e2, e3, a, b, c, d;
    and.b32 e0, $8, 0x0F0F0F0F; and.b32 e1, $9, 0x0F0F0F0F; and.b32 e2, $10, 0x0F0F0F0F; and.b32 e3, $11, 0x0F0F0F0F;
    prmt.b32 a, e0, e1, 0x5140; prmt.b32 b, e2, e3, 0x5140; prmt.b32 c, e0, e1, 0x7362; prmt.b32 d, e2, e3, 0x7362;
    prmt.b32 e0, a, b, 0x5410; prmt.b32 e1, a, b, 0x7632; prmt.b32 e2, c, d, 0x5410; prmt.b32 e3, c, d, 0x7632;
    add.u32 $0, e0, $12; add.u32 $1, e1, $13; add.u32 $2, e2, $14; add.u32 $3, e3, $15;
    shr.u32 e0, $8, 4; shr.u32 e1, $9, 4; shr.u32 e2, $10, 4; shr.u32 e3, $11, 4;
    and.b32 e0, e0, 0x0F0F0F0F; and.b32 e1, e1, 0x0F0F0F0F; and.b32 e2, e2, 0x0F0F0F0F; and.b32 e3, e3, 0x0F0F0F0F;
    prmt.b32 a, e0, e1, 0x5140; prmt.b32 b, e2, e3, 0x5140; prmt.b32 c, e0, e1, 0x7362; prmt.b32 d, e2, e3, 0x7362;
    prmt.b32 e0, a, b, 0x5410; prmt.b32 e1, a, b, 0x7632; prmt.b32 e2, c, d, 0x5410; prmt.b32 e3, c, d, 0x7632;
    add.u32 $4, e0, $12; add.u32 $5, e1, $13; add.u32 $6, e2, $14; add.u32 $7, e3, $15;
}""")

# Two pairs of an even and an odd column to two even ones and two odd ones.
_PAIRS = gl.constexpr("prmt.b32 $0, $2, $3, 0x5410; prmt.b32 $1, $2, $3, 0x7632;")

_SCATTER = gl.constexpr("""{
    .reg .pred p; .reg .u32 at;
    setp.ne.u32 p, $3, 0; mov.u32 at, global_smem; add.u32 at, at, $1;
    @p st.shared.u8 [at], $2; mov.u32 $0, 0;
}""")


SHAPES = ((16, 1, 8), (16, 2, 4), (16, 2, 8), (16, 4, 4), (32, 2, 4), (32, 4, 4), (64, 2, 4), (64, 4, 4))
"""Rows, warps and stages."""


@gluon.jit
def _copy_weights(
    weight, dense, codes, ring, line, step,
    STEPS: gl.constexpr, K: gl.constexpr, WARPS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Weights of step `step` of the loop on their way to its stage, and dense scales where there is a ring for them."""
    wide: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [WARPS, 1], [1, 0])
    eight: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [WARPS, 1], [1, 0])
    if step < STEPS:
        byte = gl.arange(0, 64, gl.SliceLayout(0, wide))
        n = gl.arange(0, 32 * WARPS, gl.SliceLayout(1, wide))
        source = weight + (line + n)[:, None] * (K // 2) + (step * 64 + byte)[None, :]
        copy_async(codes.index(step % STAGES), source)
        if ring is not None:
            n8 = gl.arange(0, 32 * WARPS, gl.SliceLayout(1, eight))
            j = gl.arange(0, 8, gl.SliceLayout(0, eight))
            copy_async(ring.index(step % STAGES), dense + (line + n8)[:, None] * (K // 16) + (step * 8 + j)[None, :])


@gluon.jit
def _copy_tokens(
    x, tokens, row, end, step,
    STEPS: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, WARPS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Tokens of step `step` on their way; with all copies since the last, they are a group, empty past the end."""
    words: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [WARPS, 1], [1, 0])
    if step < STEPS:
        m = row + gl.arange(0, ROWS, gl.SliceLayout(1, words))
        pair = gl.arange(0, 64, gl.SliceLayout(0, words))
        source = x.to(gl.pointer_type(gl.int32), bitcast=True)
        source += m.to(gl.int64)[:, None] * (K // 2) + (step * 64 + pair)[None, :]
        copy_async(tokens.index(step % STAGES), source, mask=(m < end)[:, None])
    async_copy.commit_group()


@gluon.jit
def _depend(value, ASM: gl.constexpr):
    """The same value, after an instruction about the kernels before or after this one."""
    return gl.inline_asm_elementwise(ASM + " mov.b32 $0, $1;", "=r,r", [value], gl.int32, is_pure=False, pack=1)


@gluon.jit
def _multiply_step(totals, tokens, codes, e4m3, stage, WARPS: gl.constexpr):
    """The sums of 16 rows each with one step more: 64 bytes of codes a column, and their scales, uint8 [8, columns]."""
    BN: gl.constexpr = 32 * WARPS
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, WARPS], [16, 8])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, mma, 8)
    b_layout: gl.constexpr = gl.DotOperandLayout(1, mma, 8)
    factor = (e4m3.to(gl.float8e4nv, bitcast=True).to(gl.float32) * _FACTOR).to(gl.bfloat16)
    factor = gl.expand_dims(factor, 1).broadcast_to([8, 8, BN]).reshape([64, BN])
    even, odd = gl.inline_asm_elementwise(
        _ASM, "=r,=r,=r,=r,r,r,r",
        [codes.index(stage).permute((1, 0)).load(b_layout), gl.convert_layout(factor, b_layout, assert_trivial=True)],
        (gl.bfloat16, gl.bfloat16), is_pure=True, pack=4,
    )  # fmt: skip
    result = ()
    for i in gl.static_range(len(totals)):
        pairs = tokens.index(stage).slice(16 * i, 16).load(a_layout)
        even_tokens, odd_tokens = gl.inline_asm_elementwise(
            _PAIRS, "=r,=r,r,r", [pairs], (gl.bfloat16, gl.bfloat16), is_pure=True, pack=2
        )
        result = result + (mma_v2(odd_tokens, odd, mma_v2(even_tokens, even, totals[i])),)  # noqa: RUF005
    return result


@gluon.jit
def _decode_strip(
    scales, fixed, rest, rest_starts, expert, strip,
    N: gl.constexpr, K: gl.constexpr, BN: gl.constexpr, WARPS: gl.constexpr, PLACE: gl.constexpr,
):  # fmt: skip
    """Scales of BN columns to shared memory, a word a column, scale of a step and four steps; `tables` says `rest`."""
    STEPS: gl.constexpr = K // 128
    ROW_BYTES: gl.constexpr = K // 32
    SLAB: gl.constexpr = 16 * (1 + ROW_BYTES)
    lines: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [WARPS, 1], [1, 0])
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    LANES: gl.constexpr = 64 * WARPS

    part = expert * (N // BN) + strip
    at, stop = gl.load(rest_starts + part), gl.load(rest_starts + part + 1)
    lane = gl.arange(0, LANES, flat)
    early = gl.load(rest + at + lane, mask=at + lane < stop, other=0)

    row = strip * BN + gl.arange(0, BN, gl.SliceLayout(1, lines))
    t = gl.arange(0, 4, gl.SliceLayout(0, lines))
    plane = fixed + expert.to(gl.int64) * (N // 16 * SLAB)
    base = gl.load(plane + row // 16 * SLAB + row % 16).to(gl.uint32) * 0x01010101
    base = gl.expand_dims(base, 1).broadcast_to([BN, 4])
    first = (plane + 16).to(gl.pointer_type(gl.uint32), bitcast=True)
    first += (row // 16 * (SLAB // 4) + row % 16 * (ROW_BYTES // 4))[:, None] + t[None, :]
    # All loads before the first store: they are in flight together.
    found = ()
    for quad in gl.static_range((STEPS + 3) // 4):
        if quad * 4 + 4 <= STEPS:
            found = found + (gl.load(first + quad * 4),)  # noqa: RUF005  (Gluon unpacks nothing)
        else:
            found = found + (gl.load(first + quad * 4, mask=(quad * 4 + t < STEPS)[None, :], other=0),)  # noqa: RUF005  (Gluon unpacks nothing)
    for quad in gl.static_range((STEPS + 3) // 4):
        even, odd = gl.inline_asm_elementwise(
            _TRANSPOSE, "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r", [found[quad], base],
            (gl.uint32, gl.uint32), is_pure=True, pack=4,
        )  # fmt: skip
        scales.index(quad).store(gl.convert_layout(gl.join(even, odd).reshape([BN, 8]), _eight_words(WARPS)))
    if at < stop:
        barrier()
        _scatter(early, at + lane < stop, PLACE)
        for more in range(at + LANES, stop, LANES):
            late = gl.load(rest + more + lane, mask=more + lane < stop, other=0)
            _scatter(late, more + lane < stop, PLACE)
    barrier()


@gluon.constexpr_function
def _eight_words(warps):
    return gl.BlockedLayout([1, 8], [32, 1], [warps, 1], [1, 0])


@gluon.jit
def _scatter(words, mask, PLACE: gl.constexpr):
    gl.inline_asm_elementwise(
        _SCATTER, "=r,r,r,r", [PLACE + (words >> 8), words & 255, mask.to(gl.int32)], gl.int32, is_pure=False, pack=1
    )


@gluon.jit(do_not_specialize=["quads"])
def prologue(
    x, weight, fixed, rest, rest_starts, out, blocks, quads,
    N: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, WARPS: gl.constexpr, STAGES: gl.constexpr,
    PLACE: gl.constexpr, AFTER: gl.constexpr,
):  # fmt: skip
    """A block of at most ROWS rows (axis 1) by 32 columns a warp (axis 0). PLACE: where `scales` lies; STAGES: 4 or 8.

    AFTER: other kernels overlap with this one; only the tokens wait for those before.
    quads is K // 512; as a constant, 1 of it makes Triton 3.6's compiler fail.
    """
    BN: gl.constexpr = 32 * WARPS
    STEPS: gl.constexpr = K // 128
    QUADS: gl.constexpr = (STEPS + 3) // 4
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, WARPS], [16, 8])
    warp_bases: gl.constexpr = [[0, 0, 8], [0, 0, 16]] if WARPS == 4 else ([[0, 0, 8]] if WARPS == 2 else [])
    spread: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1, 0], [0, 2, 0], [0, 4, 0], [4, 0, 0], [0, 0, 8 * WARPS], [0, 0, 16 * WARPS]],
        [[1, 0, 0], [2, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 4]], warp_bases, [], [8, 8, BN],
    )  # fmt: skip
    by_scale: gl.constexpr = gl.SliceLayout(1, spread)

    own = blocks + gl.program_id(1) * 3
    expert, row, end = gl.load(own), gl.load(own + 1), gl.load(own + 2)
    strip = gl.program_id(0)
    if AFTER:
        strip = _depend(strip, "griddepcontrol.launch_dependents;")
    line = expert.to(gl.int64) * N + strip * BN
    codes = gl.allocate_shared_memory(gl.uint8, [STAGES, BN, 64], gl.SwizzledSharedLayout(32, 2, 2, [1, 0]))
    tokens = gl.allocate_shared_memory(gl.int32, [STAGES, ROWS, 64], gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
    if rest is None:
        ring = gl.allocate_shared_memory(gl.uint8, [STAGES, BN, 8], gl.SwizzledSharedLayout(8, 1, 1, [1, 0]))
    else:
        ring: gl.constexpr = None
        scales = gl.allocate_shared_memory(gl.uint32, [QUADS, BN, 8], gl.SwizzledSharedLayout(4, 4, 2, [1, 0]))
    for early in gl.static_range(STAGES - 1):
        _copy_weights(weight, fixed, codes, ring, line, early, STEPS, K, WARPS, STAGES)
        if not AFTER:
            _copy_tokens(x, tokens, row, end, early, STEPS, K, ROWS, WARPS, STAGES)
    if rest is not None:
        _decode_strip(scales, fixed, rest, rest_starts, expert, strip, N, K, BN, WARPS, PLACE)
    if AFTER:
        row = _depend(row, "griddepcontrol.wait;")
        for early in gl.static_range(STAGES - 1):
            _copy_tokens(x, tokens, row, end, early, STEPS, K, ROWS, WARPS, STAGES)

    totals = ()
    for _ in gl.static_range(ROWS // 16):
        totals = totals + (gl.zeros([16, BN], gl.float32, mma),)  # noqa: RUF005
    for quad in range(quads):
        if rest is not None:
            words = scales.index(quad).permute((1, 0)).load(by_scale)
        for i in gl.static_range(4):
            step = quad * 4 + i
            async_copy.wait_group(STAGES - 2)
            ahead = step + STAGES - 1
            _copy_weights(weight, fixed, codes, ring, line, ahead, STEPS, K, WARPS, STAGES)
            _copy_tokens(x, tokens, row, end, ahead, STEPS, K, ROWS, WARPS, STAGES)
            if rest is None:
                e4m3 = ring.index(step % STAGES).permute((1, 0)).load(by_scale)
            else:
                e4m3 = ((words >> (8 * i)) & 255).to(gl.uint8)
            totals = _multiply_step(totals, tokens, codes, e4m3, step % STAGES, WARPS)
    if STEPS % 4:
        if rest is not None:
            words = scales.index(QUADS - 1).permute((1, 0)).load(by_scale)
        for i in gl.static_range(STEPS % 4):
            stage: gl.constexpr = (STEPS // 4 * 4 + i) % STAGES
            async_copy.wait_group(STAGES - 2 - i)
            if rest is None:
                e4m3 = ring.index(stage).permute((1, 0)).load(by_scale)
            else:
                e4m3 = ((words >> (8 * i)) & 255).to(gl.uint8)
            totals = _multiply_step(totals, tokens, codes, e4m3, stage, WARPS)
    for part in gl.static_range(ROWS // 16):
        row_out = row + part * 16 + gl.arange(0, 16, gl.SliceLayout(1, mma))
        col_out = strip * BN + gl.arange(0, BN, gl.SliceLayout(0, mma))
        gl.store(
            out + row_out.to(gl.int64)[:, None] * N + col_out[None, :],
            (totals[part] * _REST).to(gl.bfloat16),
            mask=(row_out < end)[:, None],
        )


def scales_at(columns: int, depth: int, rows: int, stages: int) -> int:
    """Where `scales` lies in a program's shared memory: Triton puts larger buffers first."""
    quads = (depth // 128 + 3) // 4
    return sum(size for size in (stages * columns * 64, stages * rows * 256) if size > quads * columns * 32)


def tables(streams: Any, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Exceptions, int32, each `byte of the strip's scales in shared memory << 8 | value`, strip by strip, and where
    the strips of `columns` rows begin.
    """
    words, plane = streams.words.long() & 0xFFFFFFFF, streams.plane_of_each()
    position, value = words & 0xFFFFFF, words >> 24
    row, col = position // streams.cols, position % streams.cols
    n, step, scale = row % columns, col // 8, col % 8
    word = (step // 4 * columns + n) * 8 + (scale ^ (n >> 2 & 1) << 2)  # as its layout swaps halves of lines
    strips = streams.rows // columns
    strip = plane * strips + row // columns
    every = torch.arange(streams.experts * strips + 1, device=strip.device)
    starts = torch.searchsorted(strip.contiguous(), every, out_int32=True)
    return ((word * 4 + step % 4) << 8 | value).int(), starts


def launch(
    x: torch.Tensor, weight: torch.Tensor, fixed: torch.Tensor, exceptions: tuple[torch.Tensor, torch.Tensor] | None,
    out: torch.Tensor, blocks: torch.Tensor, shape: tuple[int, int, int], *, after: bool, **options: bool,
) -> None:  # fmt: skip
    """The product from the fixed stream and `tables` for 32 columns a warp; without those, `fixed` is dense scales."""
    (_, columns, half), (rows, warps, stages) = weight.shape, shape
    prologue[(columns // (32 * warps), len(blocks))](
        x, weight, fixed.view(torch.uint8), *(exceptions or (None, None)), out, blocks, half // 256,
        N=columns, K=2 * half, ROWS=rows, WARPS=warps, STAGES=stages,
        PLACE=scales_at(32 * warps, 2 * half, rows, stages) if exceptions else 0, AFTER=after, num_warps=warps,
        **options,
    )  # fmt: skip


def compile_all() -> None:
    """Registers and spills, and whether `scales_at` is right."""
    from offline import compiled, describe

    plain = {"x": "*bf16", "weight": "*u8", "fixed": "*u8", "out": "*bf16", "blocks": "*i32", "quads": "i32"}
    for stack in STACKS:
        for rows, warps, stages in SHAPES:
            depth = stack.cols * 16
            place = scales_at(32 * warps, depth, rows, stages)
            own = {
                "N": stack.rows,
                "K": depth,
                "ROWS": rows,
                "WARPS": warps,
                "STAGES": stages,
                "PLACE": place,
                "AFTER": False,
            }
            made = compiled(prologue, plain | {"rest": "*i32", "rest_starts": "*i32"}, own, num_warps=warps)
            found = _first_wide_store(made.asm["llir"])
            print(stack.name, rows, warps, stages, "right" if found == place else f"WRONG: at {found}", describe(made))
            own["AFTER"] = True
            print(stack.name, rows, warps, stages, "dense", describe(compiled(prologue, plain, own, num_warps=warps)))


def _first_wide_store(llir: str) -> int:
    """The place in shared memory that decoded scales are stored to first: in 16 bytes, as nothing else is."""
    base = r"(%\d+) = getelementptr [^%]*getelementptr \(i8, ptr addrspace\(3\) @global_smem, i32 (\d+)\)"
    store = re.search(r"store <4 x i32> %\d+, ptr addrspace\(3\) (%\d+)", llir)
    return int(dict(re.findall(base, llir))[store[1]]) if store else -1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", required=True)
    parser.parse_args()
    compile_all()


if __name__ == "__main__":
    main()
