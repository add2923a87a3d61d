"""Products from compressed scales: designs that decode just ahead of the product, beside dense scales and decode-first.

    benchmarks/fused_session.sh FOLDER                           # on a GPU: compile, check, time, profile; a table
    python benchmarks/fused.py --json FILE [--only WORD...]      # on a GPU: check and time
    python benchmarks/fused.py --table FILE...                   # anywhere: what was timed, with ratios
    python benchmarks/fused.py --compile                         # anywhere: registers and spills for sm_90
    TRITON_INTERPRET=1 python benchmarks/fused.py --check        # anywhere: bits, on small stacks

The layer is Qwen3.8's: gate and up as one stack, then down. A design in Triton gives the bits of the product with dense
scales in the same launch shape, one in Gluon its values, or it is reported as wrong and not timed. Each stack's product
gets the launch shape that is fastest for it; ratios are to the fastest product with dense scales, of any design.

- *dense*: bench's product; *dense, overlapping*: down brings its weights into the L2 while gate and up ends
  (programmatic dependent launch); *dense in Gluon*: that of `gluon_prologue.py`.
- *decoded first*: csf_tool's decoder before each product.
- *both decoded first*: one launch for the active experts of both stacks; *…, overlapping*: products bring weights into
  the L2 while what is before them ends.
- *down decoded beside*: gate and up's product has programs more that decode down's scales.
- *strip*: each program decodes its strip of scales to a scratch of its own, which stays in the L2.
- *prologue*: into shared memory, in Gluon. *Prologue, overlapping*: down decodes its scales, which depend on no token,
  while gate and up ends.
"""

import argparse
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import triton
from fused_kernels import decode_stacks, product_after, product_and_decode, strip

from csf_tool.bench.gemm import _TILES, STACKS, Tile, _fits, _Layer, multiply, row_blocks
from csf_tool.bench.timing import time_graph
from csf_tool.bench.workloads import ACTIVE_EXPERTS, Workload, expert_start, make_streams
from csf_tool.gpu.launching import INTERPRETED, launching_at
from csf_tool.gpu.layouts import divide
from csf_tool.gpu.scales import decompress_nvfp4_csf_scales

DEPENDENT = {} if INTERPRETED else {"launch_pdl": True}
GLUON = not INTERPRETED


class Stack:
    """A stack of the layer, with the tables that its designs need."""

    def __init__(self, stack: Workload, device: torch.device) -> None:
        self.streams = make_streams(stack, device)
        self.layer = _Layer(stack, self.streams, device)
        self.strips, self.shared = cache(self._strips), cache(self._shared)
        self.scratch = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def name(self) -> str:
        return self.layer.stack.name

    @property
    def tables(self) -> Any:
        return self.layer.scales._tables

    @property
    def items(self) -> tuple[int, int]:
        """Bytes of an item of the decode, and items of a plane."""
        _, size, items = divide(0, self.layer.stack.rows, self.layer.stack.cols, 4, 128)
        return size, items

    def _strips(self, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        words, cols = self.streams.words.long() & 0xFFFFFFFF, self.streams.cols
        position, value = words & 0xFFFFFF, words >> 24
        each = self.streams.rows // columns
        part = self.streams.plane_of_each() * each + position // (columns * cols)
        every = torch.arange(self.streams.experts * each + 1, device=part.device)
        rest = (value << 16 | position % (columns * cols)).int()
        return rest, torch.searchsorted(part.contiguous(), every, out_int32=True)

    def _shared(self, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        import gluon_prologue

        return gluon_prologue.tables(self.streams, columns)

    def scratch_of(self, nbytes: int) -> torch.Tensor:
        if self.scratch.numel() < nbytes:
            self.scratch = self.scratch.new_empty(nbytes)
        return self.scratch


class Routing:
    """Rows of each expert: `tokens` of all (`chosen` None), or of a few."""

    def __init__(self, experts: int, chosen: torch.Tensor | None, tokens: int, device: torch.device) -> None:
        self.starts = None if chosen is None else expert_start(experts, chosen, tokens, device)
        rows = [tokens] * experts if self.starts is None else self.starts.diff().tolist()
        self.active = torch.tensor([i for i, count in enumerate(rows) if count], dtype=torch.int32, device=device)
        self.blocks: Callable[[int], torch.Tensor] = cache(lambda block: row_blocks(rows, block, device))


class Product(NamedTuple):
    """What a stack multiplies."""

    stack: Stack
    x: torch.Tensor
    out: torch.Tensor


class Call(NamedTuple):
    """A product of one stack: its routing, launch shape, and lines of 128 bytes of a row of weights to bring ahead."""

    product: Product
    routing: Routing
    shape: Any
    lines: int


Design = Callable[[Call], None]
Pair = Callable[[Call, Call], None]


def dense(call: Call) -> None:
    (stack, x, out), tile = call.product, call.shape
    multiply(x, stack.layer.weight, stack.layer.dense, out, call.routing.blocks(tile.rows), tile)


def decoded_first(call: Call) -> None:
    (stack, x, out), tile = call.product, call.shape
    layer = stack.layer
    decompress_nvfp4_csf_scales(layer.scales, out=layer.workspace, expert_start=call.routing.starts)
    multiply(x, layer.weight, layer.workspace, out, call.routing.blocks(tile.rows), tile)


def run_strip(call: Call) -> None:
    (stack, x, out), tile = call.product, call.shape
    layer, blocks = stack.layer, call.routing.blocks(tile.rows)
    columns, depth = layer.columns, layer.depth
    scratch = stack.scratch_of(len(blocks) * columns * depth // 16)
    with launching_at(x):
        strip[(columns // tile.columns, len(blocks))](
            x, layer.weight, stack.tables.fixed, *stack.strips(tile.columns), scratch, out, blocks, call.lines,
            N=columns, K=depth, LANES=32 * tile.warps, BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth,
            CHUNKS=triton.next_power_of_2(tile.columns * depth // 256), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


def run_gluon(call: Call, compressed: bool, *, after: bool = False, **options: bool) -> None:
    import gluon_prologue

    (stack, x, out), (rows, warps, _) = call.product, call.shape
    layer = stack.layer
    fixed, tables = (stack.tables.fixed, stack.shared(32 * warps)) if compressed else (layer.dense, None)
    blocks = call.routing.blocks(rows)
    gluon_prologue.launch(x, layer.weight, fixed, tables, out, blocks, call.shape, after=after, **options)


def gluon_overlapping(first: Call, second: Call, compressed: bool) -> None:
    run_gluon(first, compressed, after=True)
    run_gluon(second, compressed, after=True, **DEPENDENT)


def _after(call: Call, scales: torch.Tensor, **options: bool) -> None:
    (stack, x, out), tile = call.product, call.shape
    layer, blocks = stack.layer, call.routing.blocks(tile.rows)
    with launching_at(x):
        product_after[(layer.columns // tile.columns, len(blocks))](
            x, layer.weight, scales, out, blocks, call.lines, N=layer.columns, K=layer.depth,
            BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
            **options,
        )  # fmt: skip


def dense_overlapping(first: Call, second: Call) -> None:
    _after(first, first.product.stack.layer.dense)
    _after(second, second.product.stack.layer.dense, **DEPENDENT)


def _decode(first: Call, second: Call, *, both: bool) -> None:
    """One launch for the active experts of both stacks, or of the first."""
    a, b, active = first.product.stack, second.product.stack, first.routing.active
    (size, items), (_, items_b) = a.items, b.items
    programs = len(active) * (items + (items_b if both else 0))
    with launching_at(active):
        decode_stacks[(programs,)](
            *_streams(a), a.layer.workspace.view(torch.uint8), *_streams(b), b.layer.workspace.view(torch.uint8),
            active, len(active) * items,
            ROWS=a.layer.columns, COLS=a.layer.stack.cols, GROUP=a.tables.lead_group, ITEMS=items,
            ROWS_B=b.layer.columns, COLS_B=b.layer.stack.cols, GROUP_B=b.tables.lead_group, ITEMS_B=items_b, SIZE=size,
            num_warps=4,
        )  # fmt: skip


def _streams(stack: Stack) -> tuple[torch.Tensor, ...]:
    tables = stack.tables
    return tables.fixed, tables.leads, tables.rest, tables.piece_starts


def both_decoded_first(first: Call, second: Call) -> None:
    _decode(first, second, both=True)
    for call in (first, second):
        (stack, x, out), tile = call.product, call.shape
        multiply(x, stack.layer.weight, stack.layer.workspace, out, call.routing.blocks(tile.rows), tile)


def both_decoded_first_overlapping(first: Call, second: Call) -> None:
    _decode(first, second, both=True)
    _after(first, first.product.stack.layer.workspace, **DEPENDENT)
    _after(second, second.product.stack.layer.workspace, **DEPENDENT)


def down_decoded_beside(first: Call, second: Call) -> None:
    _decode(first, second, both=False)
    (stack, x, out), tile = first.product, first.shape
    layer, other, blocks = stack.layer, second.product.stack, first.routing.blocks(tile.rows)
    size, items = other.items
    programs = layer.columns // tile.columns * len(blocks)
    with launching_at(x):
        product_and_decode[(programs + len(first.routing.active) * items,)](
            x, layer.weight, layer.workspace, out, blocks, programs, first.lines, *_streams(other),
            other.layer.workspace.view(torch.uint8), first.routing.active, N=layer.columns, K=layer.depth,
            ROWS=other.layer.columns, COLS=other.layer.stack.cols, GROUP=other.tables.lead_group, SIZE=size,
            ITEMS=items, LANES=32 * tile.warps, BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth,
            num_warps=tile.warps, num_stages=tile.stages, **DEPENDENT,
        )  # fmt: skip
    _after(second, other.layer.workspace, **DEPENDENT)


SINGLE: dict[str, Design] = {
    "dense": dense,
    "dense in Gluon": lambda call: run_gluon(call, compressed=False),
    "decoded first": decoded_first,
    "strip": run_strip,
    "prologue": lambda call: run_gluon(call, compressed=True),
}
"""Designs of one product."""

PAIRS: dict[str, Pair] = {
    "dense, overlapping": dense_overlapping,
    "both decoded first": both_decoded_first,
    "both decoded first, overlapping": both_decoded_first_overlapping,
    "down decoded beside": down_decoded_beside,
    "dense in Gluon, overlapping": lambda first, second: gluon_overlapping(first, second, compressed=False),
    "prologue, overlapping": lambda first, second: gluon_overlapping(first, second, compressed=True),
}
"""Designs of both products of a layer."""


def in_gluon(name: str) -> bool:
    return alone(name) in ("dense in Gluon", "prologue")


def alone(name: str) -> str:
    """The design of one product whose launch shapes a design takes."""
    single = name.removesuffix(", overlapping")
    return single if single in ("dense in Gluon", "prologue", "strip") else "dense"


def wanted(names: Iterable[str], only: list[str]) -> list[str]:
    return [name for name in names if (GLUON or not in_gluon(name)) and (not only or name in only)]


def shapes_of(name: str, stack: Workload, tokens: int) -> list[Any]:
    if in_gluon(name):
        import gluon_prologue

        fitting = (shape for shape in gluon_prologue.SHAPES if not stack.rows % (32 * shape[1]))
        return [shape for shape in fitting if shape[0] <= max(16, tokens)]
    return [tile for tile in _TILES if tile.rows <= max(16, tokens) and _fits(tile, stack)]


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


@dataclass
class Case:
    """Both stacks' products with some tokens, and the routings that launches take in turn."""

    products: list[Product]
    routings: list[Routing]
    tokens: int
    active: int
    ranked: dict[tuple[str, int], list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, stacks: list[Stack], tokens: int, active: int, dtype: torch.dtype = torch.bfloat16) -> "Case":
        experts, device = stacks[0].layer.stack.experts, stacks[0].layer.device
        if active == experts:
            routings = [Routing(experts, None, tokens, device)]
        else:
            order = torch.randperm(experts, generator=torch.Generator().manual_seed(3))
            chosen = order[: experts // active * active].split(active)
            routings = [Routing(experts, each, tokens, device) for each in chosen]
        rows = active * tokens
        products = [
            Product(stack, x, x.new_empty(rows, stack.layer.columns))
            for stack in stacks
            for x in (stack.layer.tokens(rows, dtype),)
        ]
        return cls(products, routings, tokens, active)

    @cached_property
    def lines(self) -> int:
        """All lines of a row where few programs start; where many do, each has others' loads to wait beside."""
        return 64 if len(self.routings) > 1 else 0

    def call(self, which: int, shape: Any, i: int = 0) -> Call:
        return Call(self.products[which], self.routings[i % len(self.routings)], shape, self.lines)

    def time(self, work: Callable[[int], object], repeats: int) -> list[float]:
        for i in range(len(self.routings)):  # makes the lists of blocks, which no graph can do
            work(i)
        timing = time_graph(work, launches=max(4, len(self.routings)), repeats=repeats)
        return [timing.median_us, timing.low_us, timing.high_us]


def fault_of(run: Callable[[], object], outs: list[torch.Tensor], wants: list[torch.Tensor], exact: bool) -> str | None:
    """What is wrong with what `run` gives, twice, or None."""
    for _ in range(2):
        for out in outs:
            out.zero_()
        try:
            run()
            for out, want in zip(outs, wants, strict=True):
                if exact:
                    wrong = int((out.view(torch.int16) != want.view(torch.int16)).sum())
                    assert not wrong, f"{wrong} of {want.numel()} values differ"
                else:
                    torch.testing.assert_close(out, want, rtol=2e-2, atol=float(want.nan_to_num().abs().mean()) / 50)
        except Exception as error:
            return repr(error)[:300]
    return None


def poison(case: Case) -> None:
    for product in case.products:
        product.stack.layer.workspace.view(torch.uint8).fill_(0xA5)
        product.stack.scratch.fill_(0xA5)


def expected(case: Case, which: int, shape: Any) -> torch.Tensor:
    """The product with dense scales in a launch shape of Triton, or in any for Gluon's."""
    tile = shape if isinstance(shape, Tile) else Tile(16, 64, 128, 4, 4)
    dense(case.call(which, tile))
    return case.products[which].out.clone()


def check_single(case: Case, which: int, name: str, shape: Any) -> str | None:
    want = expected(case, which, shape)
    poison(case)
    run = SINGLE[name]
    return fault_of(lambda: run(case.call(which, shape)), [case.products[which].out], [want], not in_gluon(name))


def check_pair(case: Case, name: str, shapes: list[Any]) -> str | None:
    wants = [expected(case, which, shape) for which, shape in enumerate(shapes)]
    poison(case)
    run = PAIRS[name]
    outs = [product.out for product in case.products]
    return fault_of(
        lambda: run(*(case.call(which, shape) for which, shape in enumerate(shapes))), outs, wants, not in_gluon(name)
    )


def fastest(case: Case, which: int, name: str) -> list[Any]:
    """Launch shapes of a design, the fastest first; those that cannot be launched are left out."""
    if (name, which) in case.ranked:
        return case.ranked[name, which]
    stack, run, found = case.products[which].stack.layer.stack, SINGLE[name], []
    for shape in shapes_of(name, stack, case.tokens):
        try:
            us = case.time(lambda i, shape=shape: run(case.call(which, shape, i)), 4)[0]
        except Exception as error:  # more shared memory than there is, say
            print(name, shape, repr(error)[:200], flush=True)
            continue
        found.append((us, len(found), shape))
    case.ranked[name, which] = [shape for _, _, shape in sorted(found)]
    return case.ranked[name, which]


def time_case(case: Case, only: list[str], note: Callable[..., None], repeats: int) -> None:
    """Each design on each stack in its best launch shape, and on both one after the other."""
    for name in wanted(SINGLE, only):
        shapes: list[Any] = []
        for which in (0, 1):
            best = fastest(case, which, alone(name))
            fault = check_single(case, which, name, best[0]) if best else "no launch shape works"
            stack, base = case.products[which].stack.name, {"tokens": case.tokens, "active": case.active, "name": name}
            if fault:
                note(**base, stack=stack, error=fault, shape=str(best[:1]))
                break
            shapes += best[:1]
            us = case.time(lambda i, w=which, s=shapes[which], n=name: SINGLE[n](case.call(w, s, i)), repeats)
            note(**base, stack=stack, us=[round(each, 2) for each in us], shape=str(shapes[which]))
        if len(shapes) == 2:
            run = SINGLE[name]
            time_pair(case, name, lambda a, b, r=run: (r(a), r(b)), shapes, note, repeats)
    for name in wanted(PAIRS, only):
        best = [fastest(case, which, alone(name)) for which in (0, 1)]
        shapes = [each[0] for each in best if each]
        fault = check_pair(case, name, shapes) if len(shapes) == 2 else "no launch shape works"
        if fault:
            note(tokens=case.tokens, active=case.active, name=name, stack="both", error=fault, shape=str(shapes))
        else:
            time_pair(case, name, PAIRS[name], shapes, note, repeats)


def time_pair(
    case: Case, name: str, run: Callable[[Call, Call], object], shapes: list[Any], note: Callable[..., None],
    repeats: int,
) -> None:  # fmt: skip
    us = case.time(lambda i: run(case.call(0, shapes[0], i), case.call(1, shapes[1], i)), repeats)
    note(
        tokens=case.tokens, active=case.active, name=name, stack="both", us=[round(each, 2) for each in us],
        shape=str(shapes),
    )  # fmt: skip


def warm(stacks: list[Stack], only: list[str], share: int, shares: int) -> None:
    """Compile what `time_case` may launch, a share of it: processes that do so fill the compiler's cache together."""
    seen: set[object] = set()
    for tokens in (1, 64):
        case = Case.of(stacks, tokens, ACTIVE_EXPERTS)
        for which, stack in enumerate(stacks):
            for name in ["dense", *wanted(SINGLE, only)]:
                for shape in shapes_of(name, stack.layer.stack, tokens):
                    if _is_mine(seen, (name, which, str(shape)), share, shares):
                        _tried(lambda c=case, n=name, w=which, s=shape: SINGLE[n](c.call(w, s)))
        for name in wanted(PAIRS, only):
            both = [shapes_of(alone(name), stack.layer.stack, tokens) for stack in stacks]
            for i in range(max(map(len, both))):
                shapes = [found[i % len(found)] for found in both]
                if _is_mine(seen, (name, str(shapes)), share, shares):
                    _tried(lambda c=case, n=name, s=shapes: PAIRS[n](c.call(0, s[0]), c.call(1, s[1])))
    torch.cuda.synchronize()


def _is_mine(seen: set[object], what: object, share: int, shares: int) -> bool:
    is_new = what not in seen
    seen.add(what)
    return is_new and len(seen) % shares == share


def _tried(launch: Callable[[], object]) -> None:
    try:
        launch()
    except Exception as error:
        print(repr(error)[:300], flush=True)


SMALL: tuple[tuple[int, int], ...] = ((18, 6), (2, 2))
"""Tokens and active experts that are checked without a GPU."""


def check(note: Callable[..., None], which: Iterable[tuple[int, int]] = SMALL, only: list[str] | None = None) -> None:
    """Designs on a small layer, whose exceptions are many: what they give alone."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    sizes = ((128, 32), (256, 40)) if device.type == "cuda" else ((64, 16), (128, 8))
    stacks = [
        Stack(replace(STACKS[0], name=name, experts=6, rows=rows, cols=cols, exception_share=0.03), device)
        for name, (rows, cols) in zip(("gate and up", "down"), sizes, strict=True)
    ]
    for tokens, active in which:
        case = Case.of(stacks, tokens, active, dtype)
        base = {"tokens": tokens, "active": active}
        for name in wanted(SINGLE, only or []):
            for number, stack in enumerate(stacks):
                for shape in shapes_of(name, stack.layer.stack, tokens)[:: 1 if in_gluon(name) else 5]:
                    fault = check_single(case, number, name, shape)
                    note(**base, name=name, stack=stack.name, **({"error": fault} if fault else {"values": "right"}))
        for name in wanted(PAIRS, only or []):
            both = [shapes_of(alone(name), stack.layer.stack, tokens) for stack in stacks]
            for at in (0, -1):
                fault = check_pair(case, name, [found[at] for found in both])
                note(**base, name=name, **({"error": fault} if fault else {"values": "right"}))


def profile(stacks: list[Stack], only: list[str]) -> None:
    """Each product of each design alone and once, in its best launch shape, for a profiler that waits for its start."""
    for active in (ACTIVE_EXPERTS, stacks[0].layer.stack.experts):
        case = Case.of(stacks, 1, active)
        for name in wanted(SINGLE, only):
            for which in (0, 1):
                shape = fastest(case, which, name)[0]
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                SINGLE[name](case.call(which, shape, 1))
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
                print(f"profiled: {name}, {case.products[which].stack.name}, {active} active, {shape}", flush=True)


def table(paths: list[Path]) -> None:
    """Microseconds and the ratio to the fastest product with dense scales, by case; `*` where spread is over 5%."""
    rows: dict[tuple[int, int], dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for path in paths:
        for line in path.read_text().splitlines():
            result = json.loads(line)
            if "us" in result or "error" in result:
                rows[result["tokens"], result["active"]][result["name"]][result.get("stack", "both")] = result
    for (tokens, active), designs in rows.items():
        if not any("us" in each for found in designs.values() for each in found.values()):
            continue
        stacks = ("both", *(stack.name for stack in STACKS))
        plain = {stack: _least(designs, stack) for stack in stacks}
        print("\n" + _line(f"{tokens} tokens, {active} active", stacks))
        for name, found in designs.items():
            cells = [_cell(found.get(stack), plain[stack]) for stack in stacks]
            print(_line(name, cells))


def _line(name: str, cells: Iterable[str]) -> str:
    both, *others = cells
    return f"{name:32}{both:14}{''.join(f'{each:27}' for each in others)}".replace(f"{'-':27}", "").rstrip(" -")


def _least(designs: dict[str, dict[str, Any]], stack: str) -> float:
    plain = [
        found[stack]["us"][0] for name, found in designs.items() if "dense" in name and "us" in found.get(stack, {})
    ]
    return min(plain, default=float("nan"))


def _cell(result: Any, plain: float) -> str:
    if not result:
        return "-"
    if "error" in result:
        return "WRONG"
    us, low, high = result["us"]
    shape = "" if result["stack"] == "both" else _short(result["shape"])
    return f"{us:.1f} {us / plain:.3f}{'*' if high - low > us / 20 else ''} {shape}"


def _short(shape: str) -> str:
    tiles = re.findall(r"rows=(\d+), columns=(\d+), depth=(\d+), warps=(\d+), stages=(\d+)", shape)
    return "x".join(tiles[0]) if tiles else shape


def compile_all() -> None:
    """Registers and spills of the kernels in their launch shapes, for sm_90."""
    from offline import resources

    plain = {"x": "*bf16", "weight": "*u8", "out": "*bf16", "blocks": "*i32", "lines": "i32"}
    for stack in STACKS:
        size, items = divide(0, stack.rows, stack.cols, 4, 128)[1:]
        for tile in _TILES:
            if not _fits(tile, stack):
                continue
            shape = {
                "N": stack.rows, "K": stack.cols * 16, "BLOCK_M": tile.rows, "BLOCK_N": tile.columns,
                "BLOCK_K": tile.depth,
            }  # fmt: skip
            options: Any = {"num_warps": tile.warps, "num_stages": tile.stages}
            types = plain | {"fixed": "*u8", "rest": "*i32", "rest_starts": "*i32", "scratch": "*u8"}
            own = shape | {
                "LANES": 32 * tile.warps, "CHUNKS": triton.next_power_of_2(tile.columns * stack.cols // 16),
            }  # fmt: skip
            print(stack.name, tile, "strip", resources(strip, types, own, **options), flush=True)
            types = plain | {"scale": "*fp8e4nv"}
            print(stack.name, tile, "after", resources(product_after, types, shape, launch_pdl=True, **options))
            types |= {
                "programs": "i32", "fixed": "*u8", "leads": "*i16", "rest": "*i32", "starts": "*i32", "out_b": "*u8",
                "active": "*i32",
            }  # fmt: skip
            own = shape | {
                "ROWS": stack.rows, "COLS": stack.cols, "GROUP": 64, "SIZE": size, "ITEMS": items,
                "LANES": 32 * tile.warps,
            }  # fmt: skip
            print(stack.name, tile, "beside", resources(product_and_decode, types, own, launch_pdl=True, **options))


CASES = (
    (1, ACTIVE_EXPERTS),
    (1, 512),
    (16, ACTIVE_EXPERTS),
    (64, ACTIVE_EXPERTS),
    (16, 512),
    (64, 512),
    (4, 8),
    (4, 512),
)
"""Tokens and active experts, most wanted first."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--only", nargs="*", default=[], help="the designs to take")
    parser.add_argument("--warm", help="I/N: compile the I-th of N parts of all, and no more")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further case after so long")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.compile:
        return compile_all()
    if options.table:
        return table(options.table)
    note = Note(options.json)
    if options.check:
        check(note, ((*SMALL, (70, 2)) if torch.cuda.is_available() else SMALL), options.only)
        sys.exit(1 if note.wrong else 0)
    begun, device = time.monotonic(), torch.device("cuda")
    stacks = [Stack(stack, device) for stack in STACKS]
    if options.warm:
        return warm(stacks, options.only, *map(int, options.warm.split("/")))
    if options.profile:
        return profile(stacks, options.only)
    for tokens, active in CASES:
        if time.monotonic() - begun < options.seconds:
            note(case=[tokens, active], seconds=round(time.monotonic() - begun, 1))
            time_case(Case.of(stacks, tokens, active), options.only, note, options.repeats)
    sys.exit(1 if note.wrong else 0)


if __name__ == "__main__":
    main()
