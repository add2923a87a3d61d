"""The times of decoding a workload: by this decoder, at the floor, in simpler ways, and by its rivals."""

from collections.abc import Callable
from dataclasses import replace

import torch

from csf_tool.bench import flashinfer, rivals
from csf_tool.bench.case import ROUTINGS, Case
from csf_tool.bench.flashinfer_times import time_flashinfer
from csf_tool.bench.results import CaseResult, Measure
from csf_tool.bench.timing import time_eager
from csf_tool.bench.workloads import ACTIVE_EXPERTS, WrongBytes, expert_start, places_of
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
    few = [_routing(experts, seed, case.device) for seed in range(ROUTINGS)]
    sets = case.sets * ROUTINGS

    def decode_few(i: int) -> object:
        at = i % case.sets
        return decompress_csf_scales(case.prepared[at], out=case.outs[at], expert_start=few[i // case.sets % ROUTINGS])

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
