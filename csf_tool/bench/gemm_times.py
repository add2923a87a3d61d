"""The cost of keeping scales compressed: decoding a stack and then its matrix product, beside the product alone.

Both sides run the same kernel on the same weights; only where its scales come from differs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch

from csf_tool.bench.gemm import TILES, Tile, fits, multiply, row_blocks, tokens_of
from csf_tool.bench.timing import ENOUGH_REPEATS, Timing, time_graph
from csf_tool.bench.workloads import ACTIVE_EXPERTS, Workload, WrongBytes, expert_start, make_streams
from csf_tool.codec.formats import CsfFormat
from csf_tool.gpu.launching import INTERPRETED
from csf_tool.gpu.scales import decompress_csf_scales, prepared
from csf_tool.gpu.streams import CsfStreams

_GRAPH_US = 20_000
"""About how long a captured graph runs: long products are captured less often in it."""

_DTYPE = torch.float32 if INTERPRETED else torch.bfloat16  # the interpreter multiplies bfloat16 as integers


@dataclass(frozen=True, slots=True)
class Pair:
    """A product with scales that lie dense in memory, and with scales that are decoded just before it."""

    dense: Timing
    staged: Timing

    @property
    def cost_us(self) -> float:
        """Microseconds that decoding first adds."""
        return self.staged.median_us - self.dense.median_us

    @property
    def is_clear(self) -> bool:
        """Whether the ranges that hold 80% of the repeats lie apart, of enough repeats to say so."""
        return self.dense.repeats >= ENOUGH_REPEATS and self.dense.high_us < self.staged.low_us


@dataclass(frozen=True, slots=True)
class GemmResult:
    """One product."""

    stack: Workload
    way: str
    """Batched (every expert has as many tokens) or grouped (by `expert_start`)."""
    active: int
    tokens: int
    tile: Tile
    flushed: Pair
    warm: Pair | None
    """The same with its data in the L2, as far as they fit; None where every launch reads more than the L2 holds."""
    bytes_read: int
    """Weights and dense scales that the product reads."""

    @property
    def bytes_per_s(self) -> float:
        """The same a second, with dense scales."""
        return self.bytes_read / self.flushed.dense.median_us * 1e6


class Layer:
    """Weights, streams and dense scales of a stack, and the workspace that it is decoded into."""

    def __init__(self, stack: Workload, streams: CsfStreams, device: torch.device) -> None:
        self.stack = stack
        self.device = device
        self.columns, self.depth = stack.rows, stack.cols * stack.format.group_size
        random = torch.Generator(device).manual_seed(2)
        shape = (stack.experts, self.columns, self.depth // 2)
        self.weight = torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=random)
        self.scales = prepared(streams)
        self.dense = decompress_csf_scales(self.scales)
        self.workspace = torch.empty_like(self.dense)
        self.random = random

    def tokens(self, rows: int, dtype: torch.dtype = _DTYPE) -> torch.Tensor:
        """Activations `[rows, depth]`."""
        return torch.randn(rows, self.depth, device=self.device, generator=self.random).to(dtype)

    def bytes_read(self, active: int) -> int:
        """Weights and scales of `active` experts."""
        return (self.weight.nbytes + self.dense.nbytes) // self.stack.experts * active


def run_gemms(
    device: torch.device, stacks: Iterable[tuple[Workload, CsfStreams]], repeats: int, progress: Callable[[str], None]
) -> Iterator[GemmResult]:
    """Time every product of `stacks`: `tokens_of` each expert; all experts, batched and grouped; 8 of them, grouped.

    Of every stack `why_no_product` must be None. The weights are random.

    Raises:
        WrongBytes: a product with decoded scales gives other bytes than one with dense scales.
    """
    for stack, streams in stacks:
        layer = Layer(stack, streams, device)
        for tokens in tokens_of(stack):
            progress(f"product, {stack.name}, {tokens} tokens")
            yield _time_product(layer, "batched", [None], tokens, repeats)
            everyone = torch.arange(stack.experts + 1, dtype=torch.int32, device=device) * tokens
            yield _time_product(layer, "grouped", [everyone], tokens, repeats)
            yield _time_product(layer, "grouped", _few(layer, tokens), tokens, repeats)


def _few(layer: Layer, tokens: int) -> list[torch.Tensor | None]:
    """Routings to a few experts each, no expert twice: launched in turn, none finds its weights in the L2."""
    experts = layer.stack.experts
    routed = experts // ACTIVE_EXPERTS * ACTIVE_EXPERTS  # the rest would be routings to fewer
    order = torch.randperm(experts, generator=torch.Generator().manual_seed(3))[:routed]
    return [expert_start(experts, chosen, tokens, layer.device) for chosen in order.split(ACTIVE_EXPERTS)]


def blocks_of(layer: Layer, starts: torch.Tensor | None, tokens: int, block: int) -> torch.Tensor:
    """The blocks of a routing, or those of `tokens` rows of every expert."""
    rows = [tokens] * layer.stack.experts if starts is None else starts.diff().tolist()
    return row_blocks(rows, block, layer.device)


def _time_product(layer: Layer, way: str, routings: list[torch.Tensor | None], tokens: int, repeats: int) -> GemmResult:
    active = ACTIVE_EXPERTS if len(routings) > 1 else layer.stack.experts
    x = layer.tokens(active * tokens)
    out = torch.empty(len(x), layer.columns, dtype=x.dtype, device=layer.device)

    def product(tile: Tile, scale: torch.Tensor) -> Callable[[int], object]:
        blocks = [blocks_of(layer, starts, tokens, tile.rows) for starts in routings]
        return lambda i: multiply(x, layer.weight, scale, out, blocks[i % len(blocks)], tile)

    def staged(tile: Tile) -> Callable[[int], object]:
        after = product(tile, layer.workspace)

        def launch(i: int) -> None:
            starts = routings[i % len(routings)]
            decompress_csf_scales(layer.scales, out=layer.workspace, expert_start=starts)
            after(i)

        return launch

    tile = _fastest(layer, lambda tile: product(tile, layer.dense), tokens, len(routings))
    product(tile, layer.dense)(0)
    expected = out.clone()
    staged(tile)(0)
    if not torch.equal(out.view(torch.int16), expected.view(torch.int16)):
        raise WrongBytes(f"{layer.stack.name}: the product with decoded scales differs from that with dense scales")
    plain, decoded_first = product(tile, layer.dense), staged(tile)  # their blocks are made now: no graph can do it
    time = _timer(plain, len(routings), repeats)
    flushed = Pair(time(plain), time(decoded_first))
    warm = Pair(time(lambda _: plain(0)), time(lambda _: decoded_first(0))) if len(routings) > 1 else None
    return GemmResult(
        stack=layer.stack,
        way=way,
        active=active,
        tokens=tokens,
        tile=tile,
        flushed=flushed,
        warm=warm,
        bytes_read=layer.bytes_read(active),
    )


@cache
def _works(tile: Tile, fmt: CsfFormat, device: torch.device) -> bool:
    """Whether a launch shape that multiplies scaled 4-bit operands in hardware gives what unpacked ones give."""
    stack = Workload("small", fmt, 2, tile.columns, 2 * tile.depth // fmt.group_size, 0.01)
    layer = Layer(stack, make_streams(stack, device), device)
    x = layer.tokens(2 * tile.rows)

    def product(tile: Tile) -> torch.Tensor:
        out = torch.empty(len(x), layer.columns, dtype=x.dtype, device=device)
        blocks = blocks_of(layer, None, tile.rows, tile.rows)
        return multiply(x, layer.weight, layer.dense, out, blocks, tile)

    try:
        scaled = product(tile)
    except Exception:  # the compiler has no such product for this GPU, and says so in errors of many kinds
        return False
    return torch.allclose(scaled, product(replace(tile, scaled_dot=False)), rtol=2e-2)


def _timer(launch: Callable[[int], object], sets: int, repeats: int) -> Callable[[Callable[[int], object]], Timing]:
    """Times launches in graphs that go through all `sets`, as often as about the graph's time allows."""
    once = time_graph(launch, launches=sets, repeats=3).median_us
    launches = sets * max(1, min(24, round(_GRAPH_US / (once * sets))))
    return lambda work: time_graph(work, launches=launches, repeats=repeats)


def _fastest(layer: Layer, product: Callable[[Tile], Callable[[int], object]], tokens: int, sets: int) -> Tile:
    """The launch shape that is fastest with dense scales; both sides get it."""
    stack, device = layer.stack, layer.device
    tiles = [tile for tile in TILES if tile.rows <= max(16, tokens) and fits(tile, stack)]
    if torch.cuda.get_device_capability(device) >= (10, 0):
        tiles += [scaled for tile in tiles if _works(scaled := replace(tile, scaled_dot=True), stack.format, device)]
    return min(tiles, key=lambda tile: time_graph(product(tile), launches=sets, repeats=5).median_us)
