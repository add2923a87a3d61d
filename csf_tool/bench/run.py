"""Run the benchmark: every workload, decoded every way, with data in the L2 and without."""

import math
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

import torch
import triton

from csf_tool.bench import flashinfer, rivals
from csf_tool.bench.gemm import STACKS, GemmResult, run_gemms, why_no_product
from csf_tool.bench.real_layer import RealLayer, Source
from csf_tool.bench.timing import Timing, time_eager, time_graph
from csf_tool.bench.workloads import (
    ACTIVE_EXPERTS,
    ENCODED,
    WORKLOADS,
    Workload,
    WrongBytes,
    copied,
    expert_start,
    make_scales,
    make_streams,
    places_of,
)
from csf_tool.gpu.encode import compress_nvfp4_scales
from csf_tool.gpu.layouts import DenseLayout
from csf_tool.gpu.scales import decompress_csf_scales, prepared
from csf_tool.gpu.streams import CsfStreams

_ROUTINGS = 16
"""Different choices of active experts that are rotated over, for each set of streams."""

RivalLayout = Literal["linear", "swizzled"]

_RIVAL_LAYOUTS: tuple[RivalLayout, ...] = ("linear", "swizzled")
_RIVAL_ACTIVE = (1, 8, 64)
"""Numbers of chosen experts at which FlashInfer is measured."""

_L2_TIMES = 4
"""The rotated sets are this many times the L2 together."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The measurements to make."""

    workloads: Sequence[Workload] = WORKLOADS
    repeats: int = 20
    """Replays of each graph; the median counts."""
    launches: int = 24
    """Launches in a graph, at least."""
    device: int = 0
    encode: bool = True
    """Whether to time the encoder as well."""
    gemm: bool = True
    """Whether to time matrix products with and without decoding before them as well."""
    layer: RealLayer | None = None
    """A layer to measure in place of made-up stacks, those of `workloads` and those of the products."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One way to do the work, timed with its data out of the L2 and as far in it as fits."""

    name: str
    flushed: Timing
    warm: Timing | None = None
    note: str = ""
    moves_all: bool = True
    """Whether it moves as many bytes as the floor, so that their ratio says something."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Everything about one workload."""

    workload: Workload
    exceptions: int
    compressed_bytes: int
    prepared_bytes: int
    floor: Measure
    measures: list[Measure]
    """The ways to decode; the first is the whole stack, row-major."""

    @property
    def floor_bytes_per_s(self) -> float:
        """Bytes that streaming reads and writes a second."""
        return (self.compressed_bytes + self.workload.dense_bytes) / self.floor.flushed.median_us * 1e6

    def of_floor(self, measure: Measure) -> float | None:
        """Ratio to the floor, for measures that move as many bytes as the floor does."""
        return round(measure.flushed.median_us / self.floor.flushed.median_us, 4) if measure.moves_all else None


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """The encoder on one layer of scales: all its stacks queued, then waited for; launching and allocation included."""

    dense_bytes: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The measurements, and the machine that they are of."""

    device: str
    versions: dict[str, str]
    l2_bytes: int
    copy_bytes_per_s: float
    """Bytes read plus bytes written by a large copy, a second."""
    empty: Timing
    """A kernel that does nothing: what is in every figure."""
    cases: list[CaseResult]
    encode: EncodeResult | None
    gemms: list[GemmResult] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    source: Source | None = None
    """The checkpoint that the streams are of; None: they are made up."""
    skipped: list[str] = field(default_factory=list)
    """Measurements that could not be made, and why."""


def run_bench(options: BenchOptions, progress: Callable[[str], None] = lambda _: None) -> BenchResult:
    """Measure. `progress` is called with the name of what comes next.

    Raises:
        WrongBytes: a decoder is wrong, so that its time means nothing.
    """
    device = torch.device("cuda", options.device)
    with torch.cuda.device(device):
        properties = torch.cuda.get_device_properties(device)
        layer = options.layer
        cases = []
        for work, streams in _with_streams(layer.stacks if layer else options.workloads, layer, device):
            progress(work.name)
            cases.append(_run_case(_Case(work, streams, options, device, properties.L2_cache_size)))
        encode = None
        if options.encode:
            progress("encoder")
            encode = _run_encoder(options, device)
        products, skipped = choose_products(options, properties.L2_cache_size)
        gemms = run_gemms(device, _with_streams(products, layer, device), options.repeats, progress)
        return BenchResult(
            device=properties.name,
            versions=_versions(options.device),
            l2_bytes=properties.L2_cache_size,
            copy_bytes_per_s=_copy_rate(options, device),
            empty=_time_empty(options, device),
            cases=cases,
            encode=encode,
            gemms=list(gemms),
            source=layer.source if layer else None,
            skipped=[*rivals_missing(), *skipped],
        )


def _with_streams(
    works: Iterable[Workload], layer: RealLayer | None, device: torch.device
) -> Iterator[tuple[Workload, CsfStreams]]:
    """Stacks of the layer, or the given ones with made-up streams, each made when it is its turn."""
    return ((work, layer.stacks[work] if layer else make_streams(work, device)) for work in works)


def choose_products(options: BenchOptions, l2_bytes: int) -> tuple[list[Workload], list[str]]:
    """The stacks whose products are timed, and of each other one why not."""
    works = list(options.layer.stacks if options.layer else STACKS) if options.gemm else []
    reasons = {work: why_no_product(work, l2_bytes) for work in works}
    skipped = [f"Product of the {work.name} stack: {reason}." for work, reason in reasons.items() if reason]
    return [work for work in works if not reasons[work]], skipped


def _versions(device: int) -> dict[str, str]:
    """Versions of all software between the command and the card."""
    query = ["nvidia-smi", f"--id={device}", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        driver = "unknown"
    cuda = str(torch.version.cuda)
    return {"torch": torch.__version__, "triton": triton.__version__, "CUDA": cuda, "driver": driver}


def rivals_missing() -> list[str]:
    """Rivals that are not measured, and why."""
    reasons = {"nvCOMP ANS": rivals.nvcomp_missing(), "FlashInfer": flashinfer.missing()}
    return [f"{name}: {reason}" for name, reason in reasons.items() if reason]


class _Case:
    """The tensors of a workload, in as many sets as it takes to pass the L2."""

    def __init__(
        self, work: Workload, streams: CsfStreams, options: BenchOptions, device: torch.device, l2_bytes: int
    ) -> None:
        self.work = work
        self.options = options
        self.streams = streams
        self.bytes_moved = self.streams.nbytes + work.dense_bytes
        self.sets = max(2, -(-_L2_TIMES * l2_bytes // self.bytes_moved))
        self.copies = [copied(streams) for _ in range(self.sets)]
        self.prepared = [prepared(copy) for copy in self.copies]
        size = self.prepared[0].workspace_bytes("swizzled")
        self.outs = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(self.sets)]
        self.device = device

    def time(self, name: str, launch: Callable[[int], object], sets: int = 0, note: str = "") -> Measure:
        """Time `launch(i)`, which works on set i of `sets`, over all of them and over the first alone."""
        options = self.options
        warm = time_graph(lambda _: launch(0), launches=options.launches, repeats=options.repeats)
        return Measure(name, self.time_flushed(launch, sets), warm, note)

    def time_flushed(self, launch: Callable[[int], object], sets: int = 0) -> Timing:
        """Time `launch(i)` over all `sets`, so that it finds none of its data in the L2."""
        sets = sets or self.sets
        launches = -(-self.options.launches // sets) * sets
        return time_graph(lambda i: launch(i % sets), launches=launches, repeats=self.options.repeats)


def _run_case(case: _Case) -> CaseResult:
    dense = rivals.torch_decode(case.streams)
    _check(case, dense)
    measures = [
        *_time_decode(case),
        _time_two_launches(case),
        _time_torch(case),
    ]
    if rivals.nvcomp_missing() is None:
        measures.append(_time_nvcomp(case, dense))
    if flashinfer.missing(case.work.format) is None:
        measures += _time_flashinfer(case, dense)
    return CaseResult(
        workload=case.work,
        exceptions=len(case.streams.words),
        compressed_bytes=case.streams.nbytes,
        prepared_bytes=case.prepared[0].nbytes,
        floor=_time_floor(case),
        measures=measures,
    )


def _check(case: _Case, dense: torch.Tensor) -> None:
    got = decompress_csf_scales(case.prepared[0], out=case.outs[0])
    if not torch.equal(got.view(torch.uint8), dense):
        raise WrongBytes(f"{case.work.name}: the decoded scales differ from those of plain PyTorch")


def _time_decode(case: _Case) -> list[Measure]:
    def decode(layout: DenseLayout, routing: torch.Tensor | None = None) -> Callable[[int], object]:
        return lambda i: decompress_csf_scales(case.prepared[i], out=case.outs[i], layout=layout, expert_start=routing)

    experts = case.work.experts
    everyone = torch.arange(experts + 1, dtype=torch.int32, device=case.device)
    few = [_routing(experts, seed, case.device) for seed in range(_ROUTINGS)]
    sets = case.sets * _ROUTINGS

    def decode_few(i: int) -> object:
        at = i % case.sets
        return decompress_csf_scales(case.prepared[at], out=case.outs[at], expert_start=few[i // case.sets % _ROUTINGS])

    measures = [
        case.time("all experts", decode("linear")),
        case.time("all experts, 128x4 layout", decode("swizzled")),
        case.time("all experts, routed", decode("linear", everyone)),
    ]
    if experts > ACTIVE_EXPERTS:
        some = case.time(f"{ACTIVE_EXPERTS} of {experts} experts", decode_few, sets)
        measures.append(replace(some, moves_all=False))
    return measures


def _routing(experts: int, seed: int, device: torch.device) -> torch.Tensor:
    chosen = torch.randperm(experts, generator=torch.Generator().manual_seed(seed))[:ACTIVE_EXPERTS]
    return expert_start(experts, chosen, 1, device)


def _time_floor(case: _Case) -> Measure:
    """The best streaming kernel over the tile sizes: the same bytes read and written, no decoding."""
    read, dense = case.streams.nbytes, case.work.dense_bytes
    sources = [torch.randint(0, 256, (read + 16,), dtype=torch.uint8, device=case.device) for _ in range(case.sets)]

    def launch(size: int, warps: int) -> Callable[[int], object]:
        stream = rivals.streamer(read, dense, size, warps)
        return lambda i: stream(sources[i], case.outs[i])

    best = min(rivals.FLOOR_TILES, key=lambda tile: case.time_flushed(launch(*tile)).median_us)
    return case.time(
        "streaming, no decoding", launch(*best), note=f"{best[0] // 1024} KiB per program, {best[1]} warps"
    )


def _time_two_launches(case: _Case) -> Measure:
    fixed_only = [rivals.without_exceptions(case.streams) for _ in range(case.sets)]
    exceptions = [(case.streams.words.clone(), places_of(case.streams)) for _ in range(case.sets)]

    def launch(i: int) -> None:
        decompress_csf_scales(fixed_only[i], out=case.outs[i])
        rivals.scatter_exceptions(*exceptions[i], case.outs[i])

    return case.time("fixed and exceptions as two launches", launch)


def _time_torch(case: _Case) -> Measure:
    places = places_of(case.streams)
    return case.time("plain PyTorch", lambda i: rivals.torch_decode(case.copies[i], places))


def _time_flashinfer(case: _Case, dense: torch.Tensor) -> list[Measure]:
    """FlashInfer on the same streams, beside this decoder given the same choices of experts."""
    expands = [flashinfer.expander(streams) for streams in case.copies]
    shapes = {layout: case.prepared[0].dense_shape(layout) for layout in _RIVAL_LAYOUTS}
    outs = {layout: [out[: math.prod(shape)].view(shape) for out in case.outs] for layout, shape in shapes.items()}
    expands[0](outs["linear"][0], "linear", None)
    if not torch.equal(outs["linear"][0], dense):
        raise WrongBytes(f"{case.work.name}: FlashInfer's scales differ from those of plain PyTorch")
    measures = []
    for layout in _RIVAL_LAYOUTS:

        def launch(i: int, layout: RivalLayout = layout) -> object:
            return expands[i](outs[layout][i], layout, None)

        measures.append(Measure(f"FlashInfer, {layout}", case.time_flushed(launch)))
        for active in _RIVAL_ACTIVE:
            if active < case.work.experts:
                measures += _time_choices(case, expands, outs[layout], layout, active)
    return measures


def _time_choices(
    case: _Case, expands: Sequence[flashinfer.Expand], outs: list[torch.Tensor], layout: RivalLayout, active: int
) -> list[Measure]:
    """The decode of some experts, chosen anew for each set, by this decoder and by FlashInfer."""
    seeds = [torch.Generator().manual_seed(seed) for seed in range(_ROUTINGS)]
    ids = [torch.randperm(case.work.experts, generator=seed)[:active].int().to(case.device) for seed in seeds]
    sets = case.sets * _ROUTINGS

    def ours(i: int) -> object:
        at, chosen = i % case.sets, ids[i // case.sets % _ROUTINGS]
        return decompress_csf_scales(case.prepared[at], out=outs[at], topk_ids=chosen, layout=layout)

    def theirs(i: int) -> object:
        at = i % case.sets
        return expands[at](outs[at], layout, ids[i // case.sets % _ROUTINGS])

    return [
        Measure(f"{active} chosen, {layout}", case.time_flushed(ours, sets), moves_all=False),
        Measure(f"FlashInfer, {active} chosen, {layout}", case.time_flushed(theirs, sets), moves_all=False),
    ]


def _time_nvcomp(case: _Case, dense: torch.Tensor) -> Measure:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        decode, coded = rivals.nvcomp_decoder(dense)
        timing = time_eager(lambda _: decode(), launches=5, repeats=case.options.repeats)
    note = f"{coded / case.work.dense_bytes:.0%} of the dense bytes; a CUDA graph cannot capture it"
    return Measure("nvCOMP ANS", timing, None, note)


def _run_encoder(options: BenchOptions, device: torch.device) -> EncodeResult:
    stacks = [make_scales(rows, cols, device).view(torch.float8_e4m3fn) for _, rows, cols in ENCODED]

    def encode(_: int) -> object:
        queued = [compress_nvfp4_scales(scales) for scales in stacks]
        return [streams.exceptions for streams in queued]  # waits: only then is it known how many there are

    timing = time_eager(encode, launches=4, repeats=options.repeats)
    return EncodeResult(sum(scales.nbytes for scales in stacks), timing)


def _copy_rate(options: BenchOptions, device: torch.device) -> float:
    size = 2 << 30
    source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    timing = time_eager(lambda _: target.copy_(source), launches=4, repeats=options.repeats)
    return 2 * size / timing.median_us * 1e6


def _time_empty(options: BenchOptions, device: torch.device) -> Timing:
    nothing = torch.empty(16, dtype=torch.uint8, device=device)
    return time_graph(lambda _: rivals.launch_empty(nothing), launches=options.launches, repeats=options.repeats)
