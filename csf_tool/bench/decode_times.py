"""The times of decoding a workload: by this decoder, at the floor, in simpler ways, and by its rivals."""

from collections.abc import Callable
from dataclasses import replace

import torch

from csf_tool.bench import flashinfer, rivals
from csf_tool.bench.case import ROUTINGS, Case
from csf_tool.bench.flashinfer_times import time_flashinfer
from csf_tool.bench.results import CaseResult, Measure
from csf_tool.bench.timing import time_eager
from csf_tool.bench.workloads import ACTIVE_EXPERTS, WrongBytes, choices, expert_start, places_of
from csf_tool.gpu.layouts import DenseLayout
from csf_tool.gpu.scales import decompress_csf_scales


def run_case(case: Case) -> CaseResult:
    """Check the decoder, then time it and everything beside it.

    Raises:
        WrongBytes: a decoder is wrong, so that its time means nothing.
    """
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
        measures += time_flashinfer(case, dense)
    return CaseResult(
        workload=case.work,
        exceptions=len(case.streams.words),
        compressed_bytes=case.streams.nbytes,
        prepared_bytes=case.prepared[0].nbytes,
        floor=_time_floor(case),
        measures=measures,
    )


def _check(case: Case, dense: torch.Tensor) -> None:
    got = decompress_csf_scales(case.prepared[0], out=case.outs[0])
    if not torch.equal(got.view(torch.uint8), dense):
        raise WrongBytes(f"{case.work.name}: the decoded scales differ from those of plain PyTorch")


def _time_decode(case: Case) -> list[Measure]:
    def decode(layout: DenseLayout, routing: torch.Tensor | None = None) -> Callable[[int], object]:
        return lambda i: decompress_csf_scales(case.prepared[i], out=case.outs[i], layout=layout, expert_start=routing)

    experts = case.work.experts
    everyone = torch.arange(experts + 1, dtype=torch.int32, device=case.device)
    measures = [
        case.time("all experts", decode("linear")),
        case.time("all experts, 128x4 layout", decode("swizzled")),
        case.time("all experts, routed", decode("linear", everyone)),
    ]
    if experts > ACTIVE_EXPERTS:
        measures += _time_few(case)
    return measures


def _time_few(case: Case) -> list[Measure]:
    """The decode of a few experts, chosen anew for each launch, by either form of a routing."""
    experts, device = case.work.experts, case.device
    chosen = choices(experts, ACTIVE_EXPERTS, ROUTINGS)
    starts = [expert_start(experts, ids, 1, device) for ids in chosen]
    ids_of = [ids.int().to(device) for ids in chosen]

    def time(name: str, decode: Callable[[int, int], object]) -> Measure:
        """Time `decode(set, routing)`."""
        measure = case.time(name, lambda i: decode(i % case.sets, i // case.sets % ROUTINGS), case.sets * ROUTINGS)
        return replace(measure, moves_all=False)

    def by_start(at: int, routing: int) -> object:
        return decompress_csf_scales(case.prepared[at], out=case.outs[at], expert_start=starts[routing])

    def by_ids(at: int, routing: int) -> object:
        return decompress_csf_scales(case.prepared[at], out=case.outs[at], topk_ids=ids_of[routing])

    name = f"{ACTIVE_EXPERTS} of {experts} experts"
    return [time(name, by_start), time(f"{name}, by topk_ids", by_ids)]


def _time_floor(case: Case) -> Measure:
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


def _time_two_launches(case: Case) -> Measure:
    fixed_only = [rivals.without_exceptions(case.streams) for _ in range(case.sets)]
    exceptions = [(case.streams.words.clone(), places_of(case.streams)) for _ in range(case.sets)]

    def launch(i: int) -> None:
        decompress_csf_scales(fixed_only[i], out=case.outs[i])
        rivals.scatter_exceptions(*exceptions[i], case.outs[i])

    return case.time("fixed and exceptions as two launches", launch)


def _time_torch(case: Case) -> Measure:
    places = places_of(case.streams)
    return case.time("plain PyTorch", lambda i: rivals.torch_decode(case.copies[i], places))


def _time_nvcomp(case: Case, dense: torch.Tensor) -> Measure:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        decode, coded = rivals.nvcomp_decoder(dense)
        timing = time_eager(lambda _: decode(), launches=5, repeats=case.repeats)
    note = f"{coded / case.work.dense_bytes:.0%} of the dense bytes; a CUDA graph cannot capture it"
    return Measure("nvCOMP ANS", timing, None, note)
