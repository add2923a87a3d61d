"""The designs that `fused.py` checks and times: their launches, and the launch shapes that each has."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from fused_kernels import decode_stacks, product_after, product_and_decode, strip

from csf_tool.bench.gemm import STACKS, TILES, fits, multiply, row_blocks
from csf_tool.bench.gemm_times import Layer
from csf_tool.bench.workloads import Workload, expert_start, make_streams
from csf_tool.gpu.launching import INTERPRETED, launching_at
from csf_tool.gpu.layouts import divide
from csf_tool.gpu.scales import decompress_nvfp4_csf_scales

DEPENDENT = {} if INTERPRETED else {"launch_pdl": True}
GLUON = not INTERPRETED


class Stack:
    """A stack of the layer, with the tables that its designs need."""

    def __init__(self, stack: Workload, device: torch.device) -> None:
        self.streams = make_streams(stack, device)
        self.layer = Layer(stack, self.streams, device)
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
        _, size, items = divide(0, self.layer.stack.rows, self.layer.stack.cols, 128)
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
    return [tile for tile in TILES if tile.rows <= max(16, tokens) and fits(tile, stack)]


def compile_all() -> None:
    """Registers and spills of the kernels in their launch shapes, for sm_90."""
    from offline import resources

    plain = {"x": "*bf16", "weight": "*u8", "out": "*bf16", "blocks": "*i32", "lines": "i32"}
    for stack in STACKS:
        size, items = divide(0, stack.rows, stack.cols, 128)[1:]
        for tile in TILES:
            if not fits(tile, stack):
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
