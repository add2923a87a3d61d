"""Run the benchmark: every workload, decoded every way, with data in the L2 and without."""

import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import triton

from csf_tool.bench import flashinfer, rivals
from csf_tool.bench.case import Case
from csf_tool.bench.decode_times import run_case
from csf_tool.bench.gemm import MXFP4_STACKS, STACKS, why_no_product
from csf_tool.bench.gemm_times import run_gemms
from csf_tool.bench.real_layer import RealLayer
from csf_tool.bench.results import BenchResult, EncodeResult
from csf_tool.bench.timing import Timing, time_eager, time_graph
from csf_tool.bench.workloads import ENCODED, WORKLOADS, Workload, make_scales, make_streams
from csf_tool.gpu.encode import compress_nvfp4_scales
from csf_tool.gpu.streams import CsfStreams


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
            sizes = {"repeats": options.repeats, "launches": options.launches, "l2_bytes": properties.L2_cache_size}
            cases.append(run_case(Case(work, streams, **sizes)))
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
    works = list(options.layer.stacks if options.layer else (*STACKS, *MXFP4_STACKS)) if options.gemm else []
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
