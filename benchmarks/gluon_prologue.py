"""A product whose programs decode their strip of scales into shared memory before they multiply, in Gluon.

    python benchmarks/gluon_prologue.py --json FILE    # on a GPU: values against dense scales, then times
    python benchmarks/gluon_prologue.py --compile      # anywhere: registers and spills for sm_90

The first weights are on their way to shared memory by asynchronous copies while the strip is decoded, so that the
decode's loads and the weights' overlap; the loop reads scales from shared memory alone. Exceptions: two leads for each
64 scales are merged at once, and the few others by comparing, for Gluon scatters nothing into shared memory.
Gluon is not interpreted, so this has been compiled alone until it ran on a card.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from csf_tool.bench.gemm import STACKS, Tile, _Layer
from csf_tool.bench.gemm_kernels import _UNPACK
from csf_tool.bench.timing import time_graph
from csf_tool.bench.workloads import ACTIVE_EXPERTS, make_streams

_ASM = gl.constexpr(_UNPACK.value)
_FACTOR, _REST = gl.constexpr(2.0**119), gl.constexpr(2.0**7)
copy_async = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
"""Its name before Triton 3.7 and since."""

GROUP, COLUMNS, STEP = 64, 64, 8
"""Scales with two leads, columns of a program, and scales of a row in a step: 128 weights."""


@gluon.jit
def prologue(
    x, weight, fixed, leads, rest, rest_starts, out, starts,
    N: gl.constexpr, K: gl.constexpr, TOKENS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One expert (axis 1), 64 columns (axis 0), 16 rows (axis 2). `tables` says what leads and rest are."""
    COLS: gl.constexpr = K // 16
    ROW_BYTES: gl.constexpr = COLS // 2
    SLAB: gl.constexpr = 16 * (1 + ROW_BYTES)
    STEPS: gl.constexpr = K // 128
    ROOM: gl.constexpr = 8 if STEPS <= 8 else 32
    wide: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])  # weights [64, 64] bytes
    strip: gl.constexpr = gl.BlockedLayout([1, 4], [16, 2], [4, 1], [1, 0])  # scales [64, 8]
    column: gl.constexpr = gl.SliceLayout(1, strip)
    spread: gl.constexpr = gl.BlockedLayout([1, 1, 8], [8, 4, 1], [4, 1, 1], [2, 1, 0])  # [64, 8, 8]
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, 4], [16, 8])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    b_layout: gl.constexpr = gl.DotOperandLayout(1, mma, 2)

    expert = gl.program_id(1)
    if starts is None:
        begin, end = expert * TOKENS, (expert + 1) * TOKENS
    else:
        begin, end = gl.load(starts + expert), gl.load(starts + expert + 1)
    begin += gl.program_id(2) * 16
    if begin < end:
        first = gl.program_id(0) * 64
        codes = gl.allocate_shared_memory(gl.uint8, [STAGES, 64, 64], gl.SwizzledSharedLayout(16, 1, 4, [1, 0]))
        scales = gl.allocate_shared_memory(gl.uint8, [ROOM, 64, 8], gl.SwizzledSharedLayout(8, 1, 1, [1, 0]))
        line = expert.to(gl.int64) * N + first + gl.arange(0, 64, gl.SliceLayout(1, wide))
        source = weight + line[:, None] * (K // 2) + gl.arange(0, 64, gl.SliceLayout(0, wide))[None, :]
        for stage in gl.static_range(STAGES - 1):
            copy_async(codes.index(stage), source + stage * 64)
            async_copy.commit_group()

        own = gl.arange(0, 64, column)
        row = first + own
        j = gl.arange(0, 8, gl.SliceLayout(0, strip))
        plane = fixed + expert.to(gl.int64) * (N // 16 * SLAB)
        base = gl.load(plane + row // 16 * SLAB + row % 16).to(gl.uint32)
        words = (plane + row // 16 * SLAB + 16 + row % 16 * ROW_BYTES).to(gl.pointer_type(gl.uint32), bitcast=True)
        leads += expert.to(gl.int64) * (N * COLS // 64)
        part = expert * (N // 64) + gl.program_id(0)
        at, stop = gl.load(rest_starts + part), gl.load(rest_starts + part + 1)
        current = gl.load(rest + at)
        current = gl.where(at < stop, current, 0x7FFFFFFF)
        for step in range(STEPS):
            packed = gl.load(words + step)
            position = row * COLS + step * 8
            lead = gl.load(leads + position // 64)
            value = ((packed[:, None] >> (4 * j).to(gl.uint32)[None, :]) & 15) + base[:, None]
            inside = (position % 64)[:, None] + j[None, :]
            low, high = lead & 0xFFFF, lead >> 16
            value = gl.where((low & 0xFF).to(gl.int32)[:, None] == inside, (low >> 8)[:, None], value)
            value = gl.where((high & 0xFF).to(gl.int32)[:, None] == inside, (high >> 8)[:, None], value)
            while (current >> 20) == step:
                hit = (own[:, None] == ((current >> 11) & 511)) & (j[None, :] == ((current >> 8) & 7))
                value = gl.where(hit, (current & 255).to(gl.uint32), value)
                at += 1
                current = gl.where(at < stop, gl.load(rest + at), 0x7FFFFFFF)
            scales.index(step).store(value.to(gl.uint8))

        token = begin + gl.arange(0, 16, gl.SliceLayout(1, a_layout))
        k = gl.arange(0, 64, gl.SliceLayout(0, a_layout))
        tokens = x + token.to(gl.int64)[:, None] * K + 2 * k[None, :]
        there = (token < end)[:, None]
        total = gl.zeros([16, 64], gl.float32, mma)
        for step in range(STEPS):
            ahead = step + STAGES - 1
            copy_async(codes.index(ahead % STAGES), source + ahead * 64, mask=ahead < STEPS)
            async_copy.commit_group()
            async_copy.wait_group(STAGES - 1)
            even_tokens = gl.load(tokens + step * 128, mask=there, other=0.0)
            odd_tokens = gl.load(tokens + step * 128 + 1, mask=there, other=0.0)
            packed = codes.index(step % STAGES).permute((1, 0)).load(b_layout)
            e4m3 = scales.index(step).load(gl.SliceLayout(2, spread)).to(gl.float8e4nv, bitcast=True)
            factor = (e4m3.to(gl.float32) * _FACTOR).to(gl.bfloat16)[:, :, None]
            factor = factor.broadcast_to([64, 8, 8]).reshape([64, 64]).permute((1, 0))
            even, odd = gl.inline_asm_elementwise(
                _ASM, "=r,=r,=r,=r,r,r,r", [packed, gl.convert_layout(factor, b_layout)],
                (gl.bfloat16, gl.bfloat16), is_pure=True, pack=4,
            )  # fmt: skip
            total = mma_v2(even_tokens, even, total)
            total = mma_v2(odd_tokens, odd, total)
        row_out = begin + gl.arange(0, 16, gl.SliceLayout(1, mma))
        col_out = first + gl.arange(0, 64, gl.SliceLayout(0, mma))
        gl.store(
            out + row_out.to(gl.int64)[:, None] * N + col_out[None, :],
            (total * _REST).to(gl.bfloat16),
            mask=(row_out < end)[:, None],
        )


def tables(layer: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Leads, uint32 `[experts, groups]`, two of `value << 8 | position in the group` in each; the rest, int32, each
    `step << 20 | row of the strip << 11 | column of the step << 8 | value`, strip by strip; and where strips begin.
    """
    stack, streams, device = layer.stack, layer.streams, layer.device
    rows, cols, experts = stack.rows, stack.cols, stack.experts
    words, plane = streams.words.long() & 0xFFFFFFFF, streams.plane_of_each()
    position, value = words & 0xFFFFFF, words >> 24
    groups = rows * cols // GROUP
    key = plane * groups + position // GROUP
    index = torch.arange(len(key), device=device)
    first = torch.ones_like(key, dtype=torch.bool)
    first[1:] = key[1:] != key[:-1]
    rank = index - torch.cummax(torch.where(first, index, 0), 0).values
    lead = torch.full((experts * groups, 2), 0xFF, dtype=torch.int64, device=device)
    for which in (0, 1):
        mine = rank == which
        lead[key[mine], which] = value[mine] << 8 | position[mine] % GROUP
    both = lead[:, 0] | lead[:, 1] << 16
    leads = torch.where(both >= 2**31, both - 2**32, both).int().view(torch.uint32)
    others = rank >= 2
    row, col = position[others] // cols, position[others] % cols
    strip = plane[others] * (rows // COLUMNS) + row // COLUMNS
    word = (col // STEP) << 20 | (row % COLUMNS) << 11 | (col % STEP) << 8 | value[others]
    order = torch.argsort(strip * 4096 + col // STEP, stable=True)
    every = torch.arange(experts * (rows // COLUMNS) + 1, device=device)
    starts = torch.searchsorted(strip[order].contiguous(), every, out_int32=True)
    end = torch.full((1,), 2**31 - 1, dtype=torch.int32, device=device)  # read where a strip has none, and not used
    return leads, torch.cat([word[order].int(), end]), starts


def launch(case: Any, made: tuple[torch.Tensor, ...], stages: int) -> None:
    experts, columns, half = case.layer.weight.shape
    leads, rest, rest_starts = made
    prologue[(columns // COLUMNS, experts, triton.cdiv(case.tokens, 16))](
        case.x, case.layer.weight, case.layer.scales._tables.fixed, leads, rest, rest_starts, case.out, case.starts,
        N=columns, K=2 * half, TOKENS=case.tokens, STAGES=stages, num_warps=4,
    )  # fmt: skip


def run(note: Any, repeats: int, seconds: float) -> None:
    """Values against dense scales (sums are added up in another order), then times beside dense and staged."""
    begun, device = time.monotonic(), torch.device("cuda")
    for stack in STACKS:
        streams = make_streams(stack, device)
        layer: Any = _Layer(stack, streams, device)
        layer.streams = streams
        made = tables(layer)
        nbytes = sum(each.nbytes for each in made) + layer.scales._tables.fixed.nbytes
        note(stack=stack.name, bytes_of_dense=round(nbytes / layer.dense.nbytes, 4))
        for tokens, active in ((1, ACTIVE_EXPERTS), (1, stack.experts), (16, ACTIVE_EXPERTS), (16, stack.experts)):
            if time.monotonic() - begun > seconds:
                return
            time_ways(layer, made, tokens, active, note, repeats)


def time_ways(layer: Any, made: tuple[torch.Tensor, ...], tokens: int, active: int, note: Any, repeats: int) -> None:
    """One product: with dense scales, decoded first, and this kernel with two numbers of stages."""
    from fused import cases_of, dense, staged

    cases, tile, plain = cases_of(layer, tokens, active), Tile(16, 64, 128, 4, 3), 0.0
    dense(cases[0], tile)
    want = cases[0].out.clone()
    ways = {
        "dense": lambda case: dense(case, tile),
        "staged": lambda case: staged(case, tile),
        "prologue, 4 stages": lambda case: launch(case, made, 4),
        "prologue, 8 stages": lambda case: launch(case, made, 8),
    }
    for name, way in ways.items():
        try:
            cases[0].out.zero_()
            way(cases[0])
            torch.testing.assert_close(cases[0].out, want, rtol=2e-2, atol=1e-2, equal_nan=True)
        except Exception as error:
            note(stack=layer.stack.name, tokens=tokens, active=active, name=name, error=repr(error)[:300])
            continue
        timing = time_graph(lambda i, way=way: way(cases[i % len(cases)]), launches=max(4, len(cases)), repeats=repeats)
        plain = plain or timing.median_us
        note(
            stack=layer.stack.name, tokens=tokens, active=active, name=name, us=round(timing.median_us, 2),
            of_dense=round(timing.median_us / plain, 4),
        )  # fmt: skip


def compile_all() -> None:
    from offline import resources

    types = {
        "x": "*bf16", "weight": "*u8", "fixed": "*u8", "leads": "*u32", "rest": "*i32", "rest_starts": "*i32",
        "out": "*bf16", "starts": "*i32",
    }  # fmt: skip
    for stack in STACKS:
        for stages in (4, 8):
            own = {"N": stack.rows, "K": stack.cols * 16, "TOKENS": 1, "STAGES": stages}
            print(stack.name, stages, resources(prologue, types, own, num_warps=4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.compile:
        compile_all()
        return
    from fused import Note

    note = Note(options.json)
    run(note, options.repeats, options.seconds)
    sys.exit(1 if note.wrong else 0)


if __name__ == "__main__":
    main()
