"""Products from compressed scales: designs that decode just ahead of the product, beside dense scales and decode-first.

    python benchmarks/fused.py --json FILE                       # on a GPU: check and time, 8 active experts first
    python benchmarks/fused.py --compile                         # anywhere: registers and spills for sm_90
    TRITON_INTERPRET=1 python benchmarks/fused.py --check        # anywhere: bits, on small stacks

The layer is Qwen3.8's: gate and up as one stack, then down. Every design gives the bits of the product with dense
scales in the same launch shape, or is reported as wrong and not timed. Three designs:

- *flow*: one kernel. Its programs are, in turn, decode tasks of an expert and product tiles of the expert AHEAD places
  before; a tile prefetches its weights into the L2 and then waits for its expert's counter. Decoded scales go to a ring
  of as many experts as are under way, which stays in the L2 and is never written to memory while it is overwritten.
- *overlap*: the decode lets its dependent launch at once (programmatic dependent launch); the product prefetches its
  weights into the L2, and then waits for the decode.
- *chunks*: experts by so many, decoded on a side stream while the product of those before runs, in two small buffers.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from csf_tool.bench.gemm import STACKS, Tile, _few, _fits, _Layer, multiply
from csf_tool.bench.gemm_kernels import _FACTOR, _REST, _weights
from csf_tool.bench.timing import time_graph
from csf_tool.bench.workloads import ACTIVE_EXPERTS, expert_start, make_streams
from csf_tool.gpu.decode import EVERYONE
from csf_tool.gpu.decode_kernels import _decode_item
from csf_tool.gpu.launching import INTERPRETED, launching_at
from csf_tool.gpu.layouts import divide, layout_of
from csf_tool.gpu.scales import decompress_nvfp4_csf_scales

_INTERPRETED = tl.constexpr(INTERPRETED)

TILES = (
    Tile(16, 32, 128, 4, 4), Tile(16, 64, 128, 4, 3), Tile(16, 64, 128, 4, 4), Tile(16, 128, 128, 4, 3),
    Tile(16, 128, 128, 4, 4), Tile(64, 64, 128, 4, 3), Tile(64, 128, 128, 4, 3),
)  # fmt: skip


@triton.jit
def _prefetch(pointers, mask):
    """Bring the lines at byte pointers into the L2, and do not wait. The interpreter has nothing to bring."""
    if not _INTERPRETED:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.u32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
            "=r,l,r", [pointers.to(tl.uint64), mask.to(tl.uint32)], tl.uint32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def _prefetch_weights(weight, line0, ROWS: tl.constexpr, ROW_BYTES: tl.constexpr, LIMIT: tl.constexpr):
    """The first LIMIT bytes, at most, of ROWS rows of weights from row `line0` on, row by row through columns."""
    LINES: tl.constexpr = ROW_BYTES // 128 if LIMIT >= ROW_BYTES else LIMIT // 128
    at = tl.arange(0, ROWS)[:, None]
    for line in range(0, LINES, 8):
        column = line + tl.arange(0, 8)[None, :]
        pointers = weight + (line0 + at) * ROW_BYTES + column * 128
        _prefetch(pointers, (column < LINES) & (at < ROWS))


@triton.jit
def _multiply_tile(
    x, weight, scale, out, begin, end, line0, column0,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The tile of bench's product: rows [begin, + BLOCK_M) below `end`, and columns from `column0` on.

    `line0` is the first column's row among all experts' weights; `scale` points to its scales.
    """
    row = begin + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_N)
    x += row.to(tl.int64)[:, None] * K + tl.arange(0, BLOCK_K)[None, :]
    weight += (line0 + lane)[:, None] * (K // 2) + tl.arange(0, BLOCK_K // 2)[None, :]
    scale += lane[:, None] * (K // 16) + tl.arange(0, BLOCK_K // 16)[None, :]
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
    at = row.to(tl.int64)[:, None] * N + (column0 + lane)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=row[:, None] < end)


@triton.jit
def _wait_for(counter, target):
    """Wait until a counter has come to `target`; what was written before it was raised can be read then."""
    seen = tl.atomic_add(counter, 0, sem="acquire")
    while seen < target:
        seen = tl.atomic_add(counter, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def _raise(counter):
    """Count one task as done, after all its threads' stores."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")


@triton.jit
def _has_rows(starts, lane, mask):
    begin, end = tl.load(starts + lane, mask=mask, other=0), tl.load(starts + lane + 1, mask=mask, other=0)
    return (begin != end).to(tl.int32)


@triton.jit(do_not_specialize=["experts", "groups"])
def flow(
    x, weight, fixed, leads, rest, piece_starts, ring, counters, out, starts, experts, groups,
    N: tl.constexpr, K: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
    ITEMS: tl.constexpr, STRIDE: tl.constexpr, RING: tl.constexpr, AHEAD: tl.constexpr, EVERY: tl.constexpr,
    MBLOCKS: tl.constexpr, PREFETCH: tl.constexpr, DECODE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A group of programs decodes active expert g and multiplies by expert g - AHEAD; programs start in their order.

    counters: int32 `[2 * RING + 1]`, 0 before and after: decode tasks done in each place of the ring, tiles done there,
    and programs done, of which the last puts all back to 0. Every wait is for programs that have started before, and
    so ends. EVERY 0: all experts are active, with TOKENS rows each. Not DECODE: `ring` holds all dense scales.
    A decode task is STRIDE items.
    """
    COLS: tl.constexpr = K // 16
    TASKS: tl.constexpr = (ITEMS + STRIDE - 1) // STRIDE if DECODE else 0
    COLUMNS: tl.constexpr = N // BLOCK_N
    WORK: tl.constexpr = COLUMNS * MBLOCKS
    pid = tl.program_id(0)
    g, task = pid // (TASKS + WORK), pid % (TASKS + WORK)
    is_decode = task < TASKS
    place = g if is_decode else g - AHEAD
    active = experts
    expert = place
    if EVERY:
        lane = tl.arange(0, EVERY)
        mask = lane < experts
        has = (tl.load(starts + lane, mask=mask, other=0) != tl.load(starts + lane + 1, mask=mask, other=0)).to(
            tl.int32
        )
        active = tl.sum(has, 0)
        expert = tl.sum(tl.where(tl.cumsum(has, 0) * has == place + 1, lane, 0), 0)
    if (place >= 0) & (place < active):
        slot = place % RING
        turn = place // RING
        if is_decode:
            if turn > 0:
                _wait_for(counters + RING + slot, turn * WORK)
            # The item's plane is the expert's; its place in the ring is written as if it were that plane.
            target = ring.to(tl.pointer_type(tl.uint8)) + (slot - expert).to(tl.int64) * (N * COLS)
            for item in range(task * STRIDE, tl.minimum(task * STRIDE + STRIDE, ITEMS)):
                _decode_item(
                    fixed, leads, rest, piece_starts, target, expert, item, None, None,
                    N, COLS, 4, GROUP, 0, SIZE, 128, 0, False, 0, True,
                )  # fmt: skip
            _raise(counters + slot)
        else:
            tile = task - TASKS
            column0 = tile % COLUMNS * BLOCK_N
            line0 = expert.to(tl.int64) * N + column0
            if PREFETCH:
                _prefetch_weights(weight, line0, BLOCK_N, K // 2, PREFETCH)
            if EVERY:
                begin, end = tl.load(starts + expert), tl.load(starts + expert + 1)
            else:
                begin, end = expert * TOKENS, (expert + 1) * TOKENS
            begin += tile // COLUMNS * BLOCK_M
            if DECODE:
                _wait_for(counters + slot, (turn + 1) * TASKS)
                scale = ring + (slot * N + column0).to(tl.int64) * COLS
            else:
                scale = ring + line0 * COLS
            if begin < end:
                _multiply_tile(x, weight, scale, out, begin, end, line0, column0, N, K, BLOCK_M, BLOCK_N, BLOCK_K)
            if DECODE:
                _raise(counters + RING + slot)
    if DECODE:
        done = tl.atomic_add(counters + 2 * RING, 1, sem="acq_rel")
        if done == groups * (TASKS + WORK) - 1:
            for i in range(2 * RING + 1):
                tl.store(counters + i, 0)


@triton.jit(do_not_specialize=["experts"])
def decode_ahead(
    fixed, leads, rest, piece_starts, out, starts, experts,
    ROWS: tl.constexpr, COLS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, ITEMS: tl.constexpr,
    EVERY: tl.constexpr,
):  # fmt: skip
    """Decode the active experts, after letting the kernel that depends on it start."""
    if not _INTERPRETED:
        gdc_launch_dependents()
    if EVERY:
        lane = tl.arange(0, EVERY)
        mask = lane < experts
        has = (tl.load(starts + lane, mask=mask, other=0) != tl.load(starts + lane + 1, mask=mask, other=0)).to(
            tl.int32
        )
        order = tl.cumsum(has, 0) * has
        for work in range(tl.program_id(0), tl.sum(has, 0) * ITEMS, tl.num_programs(0)):
            expert = tl.sum(tl.where(order == work // ITEMS + 1, lane, 0), 0)
            _decode_item(
                fixed, leads, rest, piece_starts, out, expert, work % ITEMS, None, None,
                ROWS, COLS, 4, GROUP, 0, SIZE, 128, 0, False, 0, True,
            )  # fmt: skip
    else:
        work = tl.program_id(0)
        _decode_item(
            fixed, leads, rest, piece_starts, out, work // ITEMS, work % ITEMS, None, None,
            ROWS, COLS, 4, GROUP, 0, SIZE, 128, 0, False, 0, True,
        )  # fmt: skip


@triton.jit
def multiply_after(
    x, weight, scale, out, starts,
    N: tl.constexpr, K: tl.constexpr, TOKENS: tl.constexpr, PREFETCH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """bench's product, which brings its weights into the L2 before it waits for the kernel that it depends on."""
    expert = tl.program_id(1)
    column0 = tl.program_id(0) * BLOCK_N
    line0 = expert.to(tl.int64) * N + column0
    if starts is None:
        begin, end = expert * TOKENS, (expert + 1) * TOKENS
    else:
        begin, end = tl.load(starts + expert), tl.load(starts + expert + 1)
    begin += tl.program_id(2) * BLOCK_M
    if begin < end:
        if PREFETCH:
            _prefetch_weights(weight, line0, BLOCK_N, K // 2, PREFETCH)
        if not _INTERPRETED:
            gdc_wait()
        _multiply_tile(
            x, weight, scale + line0 * (K // 16), out, begin, end, line0, column0, N, K, BLOCK_M, BLOCK_N, BLOCK_K
        )


# --- launching ---


class Case(NamedTuple):
    """One stack's product: rows, where they begin (None: all experts alike), and tokens of an expert."""

    layer: Any
    x: torch.Tensor
    out: torch.Tensor
    starts: torch.Tensor | None
    active: int
    tokens: int


def counters_of(device: torch.device, ring: int) -> torch.Tensor:
    return torch.zeros(2 * ring + 1, dtype=torch.int32, device=device)


def run_flow(
    case: Case, tile: Tile, ring: torch.Tensor, counters: torch.Tensor, *, ahead: int, stride: int, prefetch: int,
    decode: bool = True,
) -> None:  # fmt: skip
    """`ring`: scales of as many experts as it has places; without `decode`, all dense scales."""
    tables, (experts, columns, half) = case.layer.scales._tables, case.layer.weight.shape
    places = len(ring) if decode else 1
    _, size, items = divide(0, columns, half // 8, 4, 128)
    blocks = triton.cdiv(case.tokens, tile.rows)
    # A decode waits for products of the group before its own, at the latest: else it would wait for programs to come.
    ahead = min(ahead, places - (places < case.active)) if decode else 0
    groups = case.active + ahead
    tasks = triton.cdiv(items, stride) if decode else 0
    every = 0 if case.starts is None else triton.next_power_of_2(experts)
    with launching_at(case.x):
        flow[(groups * (tasks + columns // tile.columns * blocks),)](
            case.x, case.layer.weight, tables.fixed, tables.leads, tables.rest, tables.piece_starts, ring, counters,
            case.out, case.starts, experts, groups,
            N=columns, K=2 * half, TOKENS=case.tokens, GROUP=tables.lead_group, SIZE=size, ITEMS=items, STRIDE=stride,
            RING=places, AHEAD=ahead, EVERY=every, MBLOCKS=blocks, PREFETCH=prefetch, DECODE=decode,
            BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


def run_overlap(case: Case, tile: Tile, *, per_sm: int, prefetch: int) -> None:
    tables, (experts, columns, half) = case.layer.scales._tables, case.layer.weight.shape
    _, size, items = divide(0, columns, half // 8, 4, 128)
    every = 0 if case.starts is None else triton.next_power_of_2(experts)
    grid = experts * items if case.starts is None else min(case.active * items, 132 * per_sm)
    pdl = {} if INTERPRETED else {"launch_pdl": True}
    with launching_at(case.x):
        decode_ahead[(grid,)](
            tables.fixed, tables.leads, tables.rest, tables.piece_starts, case.layer.workspace.view(torch.uint8),
            case.starts, experts, ROWS=columns, COLS=half // 8, GROUP=tables.lead_group, SIZE=size, ITEMS=items,
            EVERY=every, num_warps=4,
        )  # fmt: skip
        multiply_after[(columns // tile.columns, experts, triton.cdiv(case.tokens, tile.rows))](
            case.x, case.layer.weight, case.layer.workspace, case.out, case.starts, N=columns, K=2 * half,
            TOKENS=case.tokens, PREFETCH=prefetch, BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth,
            num_warps=tile.warps, num_stages=tile.stages, **pdl,
        )  # fmt: skip


def run_chunks(case: Case, tile: Tile, chunk: int, side: torch.cuda.Stream | None) -> None:
    """All experts, `chunk` at a time; `side` decodes the next while this stream multiplies."""
    layer, experts = case.layer, case.layer.stack.experts
    stack = layer.stack
    items = divide(0, stack.rows, stack.cols, 4, 128).items
    plain = layout_of("linear").arguments(stack.rows, stack.cols, layer.device)
    buffers = [layer.workspace[:chunk], layer.workspace[chunk : 2 * chunk]]
    main = torch.cuda.current_stream() if side else None
    multiplied: list[Any] = [None, None]

    def decode(begin: int, out: torch.Tensor) -> None:
        end, t = min(begin + chunk, experts), layer.scales._tables
        part = replace(
            t, fixed=t.fixed[begin:end], leads=t.leads[begin:end] if t.lead_group else t.leads,
            piece_starts=t.piece_starts[begin * items : end * items + 1],
        )  # fmt: skip
        part.decode(out, EVERYONE, plain, rows=stack.rows, cols=stack.cols, code_bits=4)

    if side:
        side.wait_stream(main)
    for i, begin in enumerate(range(0, experts, chunk)):
        end, out = min(begin + chunk, experts), buffers[i % 2]
        if side:
            with torch.cuda.stream(side):
                if multiplied[i % 2]:
                    side.wait_event(multiplied[i % 2])
                decode(begin, out)
                decoded = side.record_event()
            main.wait_event(decoded)
        else:
            decode(begin, out)
        if case.starts is None:
            rows = slice(begin * case.tokens, end * case.tokens)
            multiply(case.x[rows], layer.weight[begin:end], out[: end - begin], case.out[rows], None, case.tokens, tile)
        else:
            own = case.starts[begin : end + 1]
            multiply(case.x, layer.weight[begin:end], out[: end - begin], case.out, own, case.tokens, tile)
        if side:
            multiplied[i % 2] = main.record_event()


# --- checking and timing ---


class Note:
    """Prints results, and appends them to a file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.wrong = path, 0

    def __call__(self, **result: object) -> None:
        self.wrong += "error" in result
        line = json.dumps(result)
        print(line, flush=True)
        if self.path:
            with self.path.open("a") as file:
                file.write(line + "\n")


Launch = Callable[[Case, Tile], object]


SKIPPED: list[str] = []
"""How names of designs begin that are left out."""


def designs(layer: Any, side: torch.cuda.Stream | None, experts: int, all_of_them: bool) -> dict[str, Launch]:
    """The designs for a stack, by name, with what they need of memory, but those left out."""
    found = _designs(layer, side, experts, all_of_them)
    return {name: way for name, way in found.items() if not any(map(name.startswith, SKIPPED))}


def _designs(layer: Any, side: torch.cuda.Stream | None, experts: int, all_of_them: bool) -> dict[str, Launch]:

    def flows(places: int, ahead: int, stride: int, prefetch: int) -> Launch:
        ring, counters = layer.workspace[:places], counters_of(layer.device, places)
        return lambda case, tile: run_flow(case, tile, ring, counters, ahead=ahead, stride=stride, prefetch=prefetch)

    found: dict[str, Launch] = {}
    if all_of_them:
        for places, ahead, stride, prefetch in ((64, 16, 1, 0), (32, 8, 4, 0), (64, 16, 4, 512)):
            name = f"flow, ring of {places}, {ahead} ahead, {stride} items a task, prefetching {prefetch} bytes a row"
            found[name] = flows(min(places, experts), ahead, stride, prefetch)
        found["overlap"] = lambda case, tile: run_overlap(case, tile, per_sm=10, prefetch=0)
        for chunk in (16, 32, 64):
            if 2 * chunk <= experts:
                found[f"chunks of {chunk}"] = lambda case, tile, c=chunk: run_chunks(case, tile, c, side)
    else:
        for stride, prefetch in ((1, 4096), (1, 0), (2, 512)):
            name = f"flow, {stride} items a task, prefetching {prefetch} bytes a row"
            found[name] = flows(min(16, experts), 8, stride, prefetch)
        for prefetch in (4096, 512, 0):
            found[f"overlap, prefetching {prefetch} bytes a row"] = lambda case, tile, p=prefetch: run_overlap(
                case, tile, per_sm=10, prefetch=p
            )
    unused = counters_of(layer.device, 1)
    found["flow without decoding, from dense scales"] = lambda case, tile: run_flow(
        case, tile, layer.dense, unused, ahead=0, stride=1, prefetch=0, decode=False
    )
    return found


def same_bits(launch: Launch, case: Case, tile: Tile) -> str | None:
    """What is wrong with a design in a launch shape, or None: its bits against those of dense scales, twice."""
    multiply(case.x, case.layer.weight, case.layer.dense, case.out, case.starts, case.tokens, tile)
    want = case.out.clone()
    for _ in range(2):
        case.out.zero_()
        case.layer.workspace.view(torch.uint8).fill_(0xA5)
        try:
            launch(case, tile)
        except Exception as error:
            return repr(error)[:300]
        if not torch.equal(case.out.view(torch.int16), want.view(torch.int16)):
            return (
                f"{int((case.out.view(torch.int16) != want.view(torch.int16)).sum())} of {want.numel()} values differ"
            )
    return None


def dense(case: Case, tile: Tile) -> None:
    multiply(case.x, case.layer.weight, case.layer.dense, case.out, case.starts, case.tokens, tile)


def staged(case: Case, tile: Tile) -> None:
    decompress_nvfp4_csf_scales(case.layer.scales, out=case.layer.workspace, expert_start=case.starts)
    multiply(case.x, case.layer.weight, case.layer.workspace, case.out, case.starts, case.tokens, tile)


def cases_of(layer: Any, tokens: int, active: int) -> list[Case]:
    """The product's routings: one to all experts, or those to a few that launches take in turn."""
    routings = [None] if active == layer.stack.experts else _few(layer, tokens)
    x = layer.tokens(active * tokens)
    out = torch.empty(len(x), layer.columns, dtype=x.dtype, device=layer.device)
    return [Case(layer, x, out, starts, active, tokens) for starts in routings]


def tiles_of(layer: Any, tokens: int) -> list[Tile]:
    return [tile for tile in TILES if tile.rows <= max(16, tokens) and _fits(tile, layer.stack)]


def time_case(layers: list[Any], tokens: int, active: int, note: Callable[..., None], repeats: int) -> None:
    """Both products of the layer, each design in its best launch shape, and the stacks one by one."""
    side = torch.cuda.Stream()
    best = [time_stack(layer, tokens, active, side, note, repeats) for layer in layers]
    for name in best[0]:
        if all(name in found for found in best):
            total, plain = (sum(found[which] for found in best) for which in (name, "dense"))
            note(
                layer="both products", tokens=tokens, active=active, name=name, us=round(total, 2),
                of_dense=round(total / plain, 4),
            )  # fmt: skip


def time_stack(
    layer: Any, tokens: int, active: int, side: torch.cuda.Stream, note: Callable[..., None], repeats: int
) -> dict[str, float]:
    """Microseconds by design: with dense scales in the fastest launch shape, the others in that and the next ones."""
    cases = cases_of(layer, tokens, active)
    number = max(4, len(cases))
    tiles = sorted(
        tiles_of(layer, tokens),
        key=lambda tile: time_graph(_in_turn(dense, cases, tile), launches=number, repeats=4).median_us,
    )
    found: dict[str, float] = {}
    ways = {"dense": dense, "staged": staged, **designs(layer, side, layer.stack.experts, len(cases) == 1)}
    for name, launch in [*ways.items(), ("dense again", dense)]:
        for tile in tiles[: 1 if launch is dense else 2]:
            if fault := same_bits(launch, cases[0], tile):
                note(stack=layer.stack.name, tokens=tokens, active=active, name=name, tile=str(tile), error=fault)
                break
            timing = time_graph(_in_turn(launch, cases, tile), launches=number, repeats=repeats)
            found[name] = min(found.get(name, timing.median_us), timing.median_us)
            us = [round(x, 2) for x in (timing.median_us, timing.low_us, timing.high_us)]
            note(
                stack=layer.stack.name, tokens=tokens, active=active, name=name, us=us,
                of_dense=round(timing.median_us / found["dense"], 4), tile=str(tile),
            )  # fmt: skip
    return found


def warm(layers: list[Any], share: int, shares: int) -> None:
    """Compile what `time_case` will launch, a share of it: processes that do so fill the compiler's cache together."""
    number = 0
    for tokens, active in cases():
        for layer in layers:
            case = cases_of(layer, tokens, active)[0]
            ways = designs(layer, torch.cuda.Stream(), layer.stack.experts, case.starts is None)
            for launch in (dense, staged, *ways.values()):
                for tile in tiles_of(layer, tokens):
                    number += 1
                    if number % shares == share:
                        launch(case, tile)
    torch.cuda.synchronize()


def _in_turn(launch: Launch, cases: list[Case], tile: Tile) -> Callable[[int], object]:
    return lambda i: launch(cases[i % len(cases)], tile)


SMALL: tuple[tuple[int, list[int] | None], ...] = ((3, None), (18, None), (3, [1, 4]), (1, [5]))
"""Tokens and chosen experts that are checked without a GPU."""


def check(note: Callable[..., None], which: Iterable[tuple[int, list[int] | None]] = SMALL) -> None:
    """Every design on a small layer, bits alone."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    stack = replace(STACKS[0], experts=6, rows=64, cols=16, exception_share=0.03)
    layer = _Layer(stack, make_streams(stack, device), device)
    layer.dense = layer.dense.view(torch.uint8).remainder(120).view(torch.float8_e4m3fn)  # no NaN
    tile = Tile(16, 32, 128, 4, 3)
    finite = _Layer(stack, _encoded(layer), device)
    for tokens, chosen in which:
        active = len(chosen) if chosen else 6
        starts = None if chosen is None else expert_start(6, torch.tensor(chosen), tokens, device)
        x = finite.tokens(active * tokens, dtype)
        case = Case(finite, x, torch.empty(len(x), 64, dtype=dtype, device=device), starts, active, tokens)
        side = torch.cuda.Stream() if device.type == "cuda" else None
        found: dict[str, Launch] = {"staged": staged}
        for all_of_them in (False, True):
            found |= designs(finite, side, 6, all_of_them)
        found["flow, ring of 2"] = lambda case, tile: run_flow(
            case, tile, finite.workspace[:2], counters_of(device, 2), ahead=1, stride=1, prefetch=0
        )
        found["chunks of 2"] = lambda case, tile, s=side: run_chunks(case, tile, 2, s)
        for name, launch in found.items():
            fault = same_bits(launch, case, tile)
            note(tokens=tokens, chosen=chosen, name=name, **({"error": fault} if fault else {"bits": "equal"}))


def _encoded(layer: Any) -> Any:
    """The streams of the layer's dense scales, by the encoder."""
    from csf_tool.gpu.encode import compress_nvfp4_scales

    return compress_nvfp4_scales(layer.dense)


def compile_all() -> None:
    """Registers and spills of every kernel in its launch shapes, for sm_90."""
    from offline import resources

    base = {
        "x": "*bf16", "weight": "*u8", "out": "*bf16", "fixed": "*u8", "leads": "*i16", "rest": "*i32",
        "piece_starts": "*i32", "starts": "*i32",
    }  # fmt: skip
    for stack in STACKS:
        columns, depth = stack.rows, stack.cols * 16
        _, size, items = divide(0, columns, stack.cols, 4, 128)
        for tile in TILES:
            if not _fits(tile, stack):
                continue
            shape = {
                "N": columns, "K": depth, "TOKENS": tile.rows, "BLOCK_M": tile.rows, "BLOCK_N": tile.columns,
                "BLOCK_K": tile.depth,
            }  # fmt: skip
            options = {"num_warps": tile.warps, "num_stages": tile.stages}
            types = base | {"ring": "*fp8e4nv", "counters": "*i32", "experts": "i32", "groups": "i32"}
            own = shape | {
                "GROUP": 64, "SIZE": size, "ITEMS": items, "STRIDE": 1, "RING": 16, "AHEAD": 8, "EVERY": 512,
                "MBLOCKS": 1, "PREFETCH": 4096, "DECODE": True,
            }  # fmt: skip
            print(stack.name, tile, "flow", resources(flow, types, own, **options), flush=True)
            types = {k: v for k, v in base.items() if k in ("x", "weight", "out", "starts")} | {"scale": "*fp8e4nv"}
            more = options | {"launch_pdl": True}
            print(stack.name, tile, "after", resources(multiply_after, types, shape | {"PREFETCH": 4096}, **more))
        types = {k: v for k, v in base.items() if k not in ("x", "weight")} | {"out": "*u8", "experts": "i32"}
        own = {"ROWS": columns, "COLS": stack.cols, "GROUP": 64, "SIZE": size, "ITEMS": items, "EVERY": 512}
        print(stack.name, "decode_ahead", resources(decode_ahead, types, own, num_warps=4), flush=True)


def cases() -> Iterable[tuple[int, int]]:
    """Tokens and active experts, most wanted first."""
    experts = STACKS[0].experts
    return (
        (1, ACTIVE_EXPERTS), (1, experts), (16, ACTIVE_EXPERTS), (16, experts),
        (64, ACTIVE_EXPERTS), (64, experts), (4, ACTIVE_EXPERTS),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--skip", nargs="*", default=[], help="how names of designs begin that are left out")
    parser.add_argument("--warm", help="I/N: compile the I-th of N parts of all, and no more")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further case after so long")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    SKIPPED.extend(options.skip)
    if options.compile:
        compile_all()
        return
    note = Note(options.json)
    if options.check:
        check(note)
    else:
        begun, device = time.monotonic(), torch.device("cuda")
        layers = [_Layer(stack, make_streams(stack, device), device) for stack in STACKS]
        if options.warm:
            warm(layers, *map(int, options.warm.split("/")))
            return
        for tokens, active in cases():
            if time.monotonic() - begun < options.seconds:
                note(tokens=tokens, active=active, seconds=round(time.monotonic() - begun, 1))
                time_case(layers, tokens, active, note, options.repeats)
    sys.exit(1 if note.wrong else 0)


if __name__ == "__main__":
    main()
