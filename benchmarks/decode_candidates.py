"""Candidates for the decode kernel, beside the product's and FlashInfer's: one call tells which wins where.

    python benchmarks/decode_candidates.py --json FILE            # on a GPU: check and time all, most wanted first
    python benchmarks/decode_candidates.py --compile              # anywhere: registers and spills for sm_90
    TRITON_INTERPRET=1 python benchmarks/decode_candidates.py --check   # anywhere: bytes, on small stacks

A candidate is a way to divide a routed decode among programs, or a table of leads. Each gives the product's bytes, or
is reported as wrong and not timed. Results are appended to the file one by one, so that a run that is cut off leaves
what it has.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import triton
import triton.language as tl
from notes import Note

from csf_tool.bench import flashinfer
from csf_tool.bench.rivals import FLOOR_TILES, streamer
from csf_tool.bench.timing import time_graph
from csf_tool.bench.workloads import WORKLOADS, Workload, choices, expert_start, make_streams
from csf_tool.codec.formats import NVFP4, POSITION_BITS, POSITION_MASK
from csf_tool.codec.prepared import PIECE_BYTES
from csf_tool.gpu import decode as product
from csf_tool.gpu.layout_kernels import MARLIN, SWIZZLED
from csf_tool.gpu.layouts import Items, ScaleLayout, divide
from csf_tool.gpu.scales import CsfScales, decompress_csf_scales, prepared
from csf_tool.gpu.streams import CsfStreams

_SWIZZLED = int(SWIZZLED)

GATE_UP = Workload("Qwen3.8 gate and up", NVFP4, 512, 1280, 160, 0.010)
GATE, DOWN = WORKLOADS[0], WORKLOADS[1]

SMALL = ((144, 16), (48, 40))
"""Planes that are checked without a GPU."""

_TILE_ROWS = tl.constexpr(128)


# --- floors: the same bytes read and written, in other shapes than bench's ---


@triton.jit
def plain_copy(source, out, SIZE: tl.constexpr):
    """Copy SIZE bytes a program."""
    at = tl.program_id(0).to(tl.int64) * (SIZE // 4) + tl.arange(0, SIZE // 4)
    source, out = source.to(tl.pointer_type(tl.uint32)), out.to(tl.pointer_type(tl.uint32))
    tl.store(out + at, tl.load(source + at))


@triton.jit
def floor(source, out, chunks, READ: tl.constexpr, SIZE: tl.constexpr, STORE: tl.constexpr):
    """Read READ bytes a program in 16-byte loads, write SIZE bytes: what is read, again and again."""
    program = tl.program_id(0)
    slot = tl.arange(0, 4)[None, :]
    LOADED: tl.constexpr = SIZE // 2
    at = tl.arange(0, LOADED // 16)[:, None] * 4 + slot
    source = (source + program.to(tl.int64) * READ).to(tl.pointer_type(tl.uint32))
    words = tl.load(source + at, mask=at < READ // 4, other=0)
    out = out.to(tl.pointer_type(tl.uint32)) + program.to(tl.int64) * (SIZE // 4)
    end = chunks * 4 - program.to(tl.int64) * (SIZE // 4)
    tl.store(out + at, words, mask=at < end, cache_modifier=STORE)
    tl.store(out + LOADED // 4 + at, words ^ 1, mask=LOADED // 4 + at < end, cache_modifier=STORE)
    if READ > LOADED:
        more = tl.arange(0, SIZE // 16)
        rest = tl.load(source + LOADED // 4 + more, mask=more < (READ - LOADED) // 4, other=0)
        tl.store(out + more, rest, mask=(more < (READ - LOADED) // 4) & (rest == 0x12345678))


# --- launching ---


def product_with(per_sm: int, slots: int = 0) -> Callable[..., torch.Tensor]:
    """The product's routed decode with so many programs a multiprocessor, and so many choices with their own."""

    def decompress(*args: Any, **options: Any) -> torch.Tensor:
        before = product._ROUTED_PROGRAMS_PER_SM, product.MOST_SLOTS
        product._ROUTED_PROGRAMS_PER_SM, product.MOST_SLOTS = per_sm, slots
        try:
            return decompress_csf_scales(*args, **options)
        finally:
            product._ROUTED_PROGRAMS_PER_SM, product.MOST_SLOTS = before

    return decompress


def with_runs(number: int) -> Callable[..., torch.Tensor]:
    """The product with so many runs a thread in the 128x4 layout."""

    def more(form: int, rows: int, cols: int, lanes: int) -> Items:
        one = divide(form, rows, cols, lanes)
        return Items(one.width, one.size * number, -(-one.items // number)) if form else one

    def decompress(*args: Any, **options: Any) -> torch.Tensor:
        product.divide = more
        try:
            return decompress_csf_scales(*args, **options)
        finally:
            product.divide = divide

    return decompress


# --- checking and timing ---


class Bench:
    """A stack in as many copies as pass the L2, and what has been found of it."""

    def __init__(self, work: Workload, streams: CsfStreams, note: Callable[..., None], repeats: int) -> None:
        self.work, self.streams, self.note, self.repeats = work, streams, note, repeats
        device = streams.fixed.device
        self.sets = 3 if device.type == "cuda" else 1
        self.scales = [prepared(self._copy()) for _ in range(self.sets)]
        size = self.scales[0].workspace_bytes("swizzled")
        self.outs = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(self.sets)]
        self.device = device

    def _copy(self) -> CsfStreams:
        s = self.streams
        return CsfStreams.of(s.format, s.fixed.clone(), s.words.clone(), s.counts, s.rows, s.cols)

    def run(self, case: str, name: str, launch: Callable[[int], object], want: torch.Tensor, sets: int = 0) -> None:
        """Check the bytes of set 0, then time over all sets."""
        out = self.outs[0][: want.numel()]
        out.fill_(0xA5)
        try:
            launch(0)
        except Exception as error:
            self.note(stack=self.work.name, case=case, name=name, error=repr(error)[:200])
            return
        if not torch.equal(out, want):
            self.note(stack=self.work.name, case=case, name=name, error=f"{int((out != want).sum())} bytes differ")
            return
        us = None
        if self.device.type == "cuda":
            sets = sets or self.sets
            timing = time_graph(lambda i: launch(i % sets), launches=-(-24 // sets) * sets, repeats=self.repeats)
            us = [round(x, 2) for x in (timing.median_us, timing.low_us, timing.high_us)]
        self.note(stack=self.work.name, case=case, name=name, us=us)

    def wanted(self, form: str, ids: torch.Tensor | None = None) -> torch.Tensor:
        """The product's bytes over a poisoned workspace."""
        out = torch.full((self.scales[0].workspace_bytes(form),), 0xA5, dtype=torch.uint8, device=self.device)
        decompress_csf_scales(self.scales[0], out=out, topk_ids=ids, layout=form)
        return out


def run_routed(bench: Bench, active: int, form: str) -> None:
    """Every way to decode `active` experts."""
    experts, sets = bench.work.experts, bench.sets
    turns = 16 if bench.device.type == "cuda" and active < experts else 1
    chosen = choices(experts, active, turns)
    ids = [each.int().to(bench.device) for each in chosen]
    starts = [expert_start(experts, each, 1, bench.device) for each in chosen]
    want = bench.wanted(form, ids[0])
    case = f"{active} active, {form}"

    def both(launch: Callable[[CsfScales, torch.Tensor, int], object]) -> Callable[[int], object]:
        return lambda i: launch(bench.scales[i % sets], bench.outs[i % sets], i // sets % turns)

    def time(name: str, launch: Callable[[CsfScales, torch.Tensor, int], object]) -> None:
        bench.run(case, name, both(launch), want, sets * turns)

    if flashinfer.missing() is None and bench.device.type == "cuda":
        expands = [flashinfer.expander(bench._copy()) for _ in range(sets)]
        shaped = [o[: want.numel()].view(bench.scales[0].dense_shape(form)) for o in bench.outs]
        bench.run(
            case, "FlashInfer", lambda i: expands[i % sets](shaped[i % sets], form, ids[i // sets % turns]),
            want, sets * turns,
        )  # fmt: skip
    time("product, expert_start", lambda s, o, t: decompress_csf_scales(s, out=o, expert_start=starts[t], layout=form))
    time("product, topk_ids", lambda s, o, t: decompress_csf_scales(s, out=o, topk_ids=ids[t], layout=form))

    def by_starts(per_sm: int) -> Callable[..., object]:
        decompress = product_with(per_sm)
        return lambda s, o, t: decompress(s, out=o, expert_start=starts[t], layout=form)

    def by_ids(per_sm: int, slots: int) -> Callable[..., object]:
        decompress = product_with(per_sm, slots)
        return lambda s, o, t: decompress(s, out=o, topk_ids=ids[t], layout=form)

    for per_sm in (12, 16, 24, 30, 36, 48):
        time(f"expert_start, {per_sm} programs an SM", by_starts(per_sm))
    for per_sm, slots in ((24, 0), (36, 0), (1, 512)):
        time(f"topk_ids, {per_sm} programs an SM, {slots} slots", by_ids(per_sm, slots))
    if active == experts:
        time("product, all", lambda s, o, _: decompress_csf_scales(s, out=o, layout=form))


def run_unrouted(bench: Bench) -> None:
    """Whole stacks: the product in both layouts, and other groups of leads."""
    for form in ("linear", "swizzled"):
        want = bench.wanted(form)
        bench.run(
            f"all, {form}", "product",
            lambda i, f=form: decompress_csf_scales(bench.scales[i], out=bench.outs[i], layout=f), want,
        )  # fmt: skip
        if flashinfer.missing() is None and bench.device.type == "cuda":
            expands = [flashinfer.expander(bench._copy()) for _ in range(bench.sets)]
            shaped = [o[: want.numel()].view(bench.scales[0].dense_shape(form)) for o in bench.outs]
            bench.run(f"all, {form}", "FlashInfer", lambda i, f=form, e=expands, s=shaped: e[i](s[i], f, None), want)
    for number in (2, 4):
        decompress = with_runs(number)
        bench.run(
            "all, swizzled", f"product, {number} runs a thread",
            lambda i, f=decompress: f(bench.scales[i], out=bench.outs[i], layout="swizzled"), bench.wanted("swizzled"),
        )  # fmt: skip
    for group in (0, 16, 32):
        regrouped = [with_leads(scales, bench.streams, group) for scales in bench.scales]
        for form in ("linear", "swizzled"):
            bench.run(
                f"all, {form}", f"product, leads by {group}",
                lambda i, r=regrouped, f=form: decompress_csf_scales(r[i], out=bench.outs[i], layout=f),
                bench.wanted(form),
            )  # fmt: skip


def with_leads(scales: CsfScales, streams: CsfStreams, group: int) -> CsfScales:
    """The stack with leads for groups of another size, or without."""
    leads, words, plane = scales._tables.leads, streams.words, streams.plane_of_each()
    per_plane = streams.rows * streams.cols
    if group:
        leads, words, plane = product._split_leads(words, plane, streams.experts, -(-per_plane // group), group)
    position = words & POSITION_MASK
    size = PIECE_BYTES
    tables = replace(
        scales._tables, lead_group=group, leads=leads, rest=words,
        piece_starts=product._starts(plane, position, streams.experts, per_plane, size),
        block_starts=product._starts(plane, position, streams.experts, per_plane, 128 * streams.cols),
    )  # fmt: skip
    return replace(scales, _tables=tables)


def run_layouts(bench: Bench) -> None:
    """The product in the layouts of engines, all experts and 8 of them."""
    rows, experts, sets = bench.work.rows, bench.work.experts, bench.sets
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1)).to(bench.device)
    table = torch.randperm(256, generator=torch.Generator().manual_seed(2)).to(bench.device, torch.uint8)
    marlins = table.clone()  # shifts all scales that are normal numbers
    marlins[8:136] = torch.arange(128, 256)
    layouts = {
        "linear": ScaleLayout(),
        "linear, by any table": ScaleLayout(table=table),
        "swizzled": ScaleLayout("swizzled"),
        "swizzled, swapped": ScaleLayout("swizzled", swap_halves=True),
        "swizzled, turns of 64": ScaleLayout("swizzled", swap_halves=True, interleave=64),
        "swizzled, shuffled": ScaleLayout("swizzled", row_order=order),
        "linear, shuffled": ScaleLayout(row_order=order),
        "marlin": ScaleLayout("marlin"),
        "marlin, by any table": ScaleLayout("marlin", table=table),
        "marlin, by its table": ScaleLayout("marlin", table=marlins),
        "marlin, swapped, by its table": ScaleLayout("marlin", swap_halves=True, table=marlins),
    }
    chosen = [each.int().to(bench.device) for each in choices(experts, 8, 16)]
    for name, layout in layouts.items():
        for active, turns in (("all", 1), ("8", 16)):

            def launch(i: int, active: str = active, layout: ScaleLayout = layout) -> object:
                scales, out = bench.scales[i % sets], bench.outs[i % sets]
                some = None if active == "all" else chosen[i // sets % 16]
                return decompress_csf_scales(scales, out=out, layout=layout, topk_ids=some)

            want = torch.full((bench.scales[0].workspace_bytes(layout),), 0xA5, dtype=torch.uint8, device=bench.device)
            decompress_csf_scales(
                bench.scales[0], out=want, layout=layout, topk_ids=None if active == "all" else chosen[0]
            )
            bench.run(f"{active}, layouts", name, launch, want, sets * turns)


def run_floors(bench: Bench) -> None:
    """The fastest that reads and writes as many bytes."""
    read, dense = bench.streams.nbytes, bench.work.dense_bytes
    sources = [torch.randint(0, 256, (read + 64,), dtype=torch.uint8, device=bench.device) for _ in range(bench.sets)]

    half = (read + dense) // 2 // 65536 * 65536
    pairs = [torch.zeros(2, half, dtype=torch.uint8, device=bench.device) for _ in range(bench.sets)]

    def time_copy(name: str, launch: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        timing = time_graph(lambda i: launch(*pairs[i % bench.sets]), launches=24, repeats=bench.repeats)
        bench.note(stack=bench.work.name, case="copy of half as many", name=name, us=[round(timing.median_us, 2)])

    def time(name: str, launch: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        timing = time_graph(
            lambda i: launch(sources[i % bench.sets], bench.outs[i % bench.sets]), launches=24, repeats=bench.repeats
        )
        bench.note(stack=bench.work.name, case="floor", name=name, us=[round(timing.median_us, 2)])

    for size, warps in FLOOR_TILES:
        time(f"bench's, {size // 1024} KiB, {warps} warps", streamer(read, dense, size, warps))
    for size in (1024, 2048, 4096, 8192, 16384, 32768):
        for warps in (4, 8):
            time_copy(
                f"{size // 1024} KiB, {warps} warps",
                lambda s, o, z=size, w=warps: plain_copy[(half // z,)](s, o, SIZE=z, num_warps=w),
            )
    time_copy("torch's", lambda s, o: o.copy_(s))
    for size in (4096, 8192):
        programs = triton.cdiv(dense, size)
        share = read // programs // 16 * 16
        for warps in (4, 8):
            for store in ("", ".cs", ".wt"):
                time(
                    f"wide, {size // 1024} KiB, {warps} warps, stores {store or 'plain'}",
                    lambda s, o, n=programs, r=share, z=size, w=warps, c=store: floor[(n,)](
                        s, o, dense // 16, READ=r, SIZE=z, STORE=c, num_warps=w
                    ),
                )


def clustered(work: Workload, device: torch.device, share: float = 0.0194) -> CsfStreams:
    """Streams whose exceptions gather in a twentieth of the rows, as those of real down projections do."""
    calm = make_streams(replace(work, exception_share=0.0), device)
    random = torch.Generator(device).manual_seed(7)
    shape = (work.experts, work.rows, work.cols)
    wild = torch.rand((*shape[:2], 1), device=device, generator=random) < 0.05
    strays = wild & (torch.rand(shape, device=device, generator=random) < share / 0.05)
    places = strays.view(-1).nonzero().view(-1)
    values = torch.randint(0, 256, places.shape, device=device, generator=random)
    words = values << POSITION_BITS | places % (work.rows * work.cols)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    counts = strays.view(work.experts, -1).sum(1).tolist()
    return CsfStreams.of(work.format, calm.fixed, words, counts, work.rows, work.cols)


def normal(streams: CsfStreams) -> CsfStreams:
    """Streams whose exceptions are positive normal numbers, as those of weights are: tables may merely shift them."""
    words = streams.words & (0x67 << POSITION_BITS | POSITION_MASK) | 8 << POSITION_BITS
    return CsfStreams.of(streams.format, streams.fixed, words, streams.counts, streams.rows, streams.cols)


def parts(device: torch.device, note: Callable[..., None], repeats: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """All measurements by name, most wanted first."""

    def made(work: Workload) -> Bench:
        return Bench(work, make_streams(work, device), note, repeats)

    def routed_of(work: Workload, *cases: tuple[int, str]) -> Callable[[], None]:
        def run() -> None:
            bench = made(work)
            for active, form in cases:
                run_routed(bench, active, form)

        return run

    yield "bold row", routed_of(GATE_UP, *((n, f) for n in (64, 8, 1, 128, 256) for f in ("swizzled", "linear")))
    yield "all active", routed_of(GATE, (512, "linear"), (512, "swizzled"))

    def gathered() -> None:
        calm = replace(DOWN, name="down, no exceptions", exception_share=0.0)
        run_unrouted(Bench(calm, make_streams(calm, device), note, repeats))
        run_unrouted(Bench(replace(DOWN, name="down, clustered"), clustered(DOWN, device), note, repeats))

    yield "clustered", gathered
    yield "floor", lambda: run_floors(made(GATE))
    yield "layouts", lambda: run_layouts(Bench(GATE_UP, normal(make_streams(GATE_UP, device)), note, repeats))
    yield "unrouted", lambda: run_unrouted(made(GATE))
    yield "unrouted w1", lambda: run_unrouted(made(WORKLOADS[4]))
    yield "unrouted w2", lambda: run_unrouted(made(WORKLOADS[5]))
    few = [(active, form) for active in (8, 64) for form in ("swizzled", "linear")]
    yield "other stacks", routed_of(DOWN, *few, (512, "linear"), (512, "swizzled"))
    yield "large planes", routed_of(WORKLOADS[2], *few, (288, "linear"), (288, "swizzled"))
    yield "MXFP4", routed_of(WORKLOADS[4], *few, (384, "linear"), (384, "swizzled"))


def check(device: torch.device, note: Callable[..., None], shapes: Sequence[tuple[int, int]] = SMALL) -> None:
    """Every candidate on small stacks, bytes alone."""
    for rows, cols in shapes:
        work = Workload(f"small {rows}x{cols}", NVFP4, 5, rows, cols, 0.02)
        bench = Bench(work, make_streams(work, device), note, 1)
        run_routed(bench, 2, "swizzled")
        run_routed(bench, 5, "linear")
        run_unrouted(Bench(work, clustered(work, device), note, 1))
    whole = Workload("small 512x16", NVFP4, 3, 512, 16, 0.02)
    run_layouts(Bench(whole, normal(make_streams(whole, device)), note, 1))


ROUTINGS = {
    "all": {"SLOTS": False, "GROUPS": 0, "CHOICES": 0},
    "expert_start": {"SLOTS": False, "GROUPS": 17, "CHOICES": 0},
    "many topk_ids": {"SLOTS": False, "GROUPS": 17, "CHOICES": 512},
    "few topk_ids": {"SLOTS": True, "GROUPS": 0, "CHOICES": 512},
}
"""The decode kernel's constants by routing."""


def compile_all() -> None:
    """Registers and spills of the decode kernel, for sm_90."""
    from offline import resources

    types = {
        "fixed": "*u8", "leads": "*i16", "rest": "*i32", "starts": "*i32", "out": "*u8", "routing": "*i32",
        "number": "i32", "offset": "i32", "experts": "i32",
    }  # fmt: skip
    lanes, limit = 32 * product._WARPS, product._RUN_REGISTERS
    for work in (GATE_UP, *WORKLOADS[1:5]):
        for name, form in (("linear", 0), ("128x4", _SWIZZLED), ("Marlin's", int(MARLIN))):
            width, size, items = divide(form, work.rows, work.cols, lanes)
            constants = {
                "ROWS": work.rows, "COLS": work.cols, "BITS": work.format.code_bits, "GROUP": 64, "WIDTH": width,
                "SIZE": size, "ITEMS": items, "LANES": lanes, "FORM": form, "SWAP": False, "TURNS": 0,
                "WORD_ALIGNED": True,
            }  # fmt: skip
            options = {"num_warps": product._WARPS} | ({"maxnreg": limit} if width else {})
            for routing, own in ROUTINGS.items():
                found = resources(product.decode_kernels.decode, types, constants | own, **options)
                print(work.name, name, routing, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", nargs="+", help="the names of measurements")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further measurement after so long")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.compile:
        compile_all()
        return
    device, note = torch.device("cuda" if torch.cuda.is_available() else "cpu"), Note(options.json)
    if options.check:
        check(device, note)
    else:
        begun = time.monotonic()
        for name, run in parts(device, note, options.repeats):
            if time.monotonic() - begun < options.seconds and (not options.only or name in options.only):
                note(part=name, seconds=round(time.monotonic() - begun, 1))
                run()
                torch.cuda.empty_cache()
    sys.exit(1 if note.wrong else 0)


if __name__ == "__main__":
    main()
