"""What can be checked of the benchmark without a GPU: its streams, its rival decoder, its course, its report."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from rich.console import Console

from csf_tool.bench import flashinfer
from csf_tool.bench.case import Case
from csf_tool.bench.decode_times import run_case
from csf_tool.bench.gemm import MXFP4_STACKS, STACKS, Tile, tokens_of
from csf_tool.bench.gemm_times import GemmResult, Pair
from csf_tool.bench.real_layer import Source
from csf_tool.bench.results import BenchResult, CaseResult, EncodeResult, Measure
from csf_tool.bench.rivals import torch_decode
from csf_tool.bench.timing import Timing
from csf_tool.bench.workloads import WORKLOADS, Workload, expert_start, make_streams
from csf_tool.codec import reference
from csf_tool.codec.formats import NVFP4
from csf_tool.documents.bench import bench_document
from csf_tool.gpu.scales import decompress_csf_scales, prepared
from csf_tool.gpu.streams import CsfStreams
from csf_tool.report.bench import bench_report
from csf_tool.report.figures.decode_times import bench_figure
from csf_tool.report.table import Table
from tests.drawn_texts import unreadable, words
from tests.gpu.capture import time_graph
from tests.gpu.stacks import DEVICE

CPU = torch.device("cpu")


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_streams_are_valid_and_plain_torch_decodes_them(work: Workload) -> None:
    small = replace(work, experts=2, rows=32, exception_share=0.05)
    streams = make_streams(small, CPU)
    dense = torch_decode(streams).numpy()
    useless = dense & 0x7F == 0x7F if work.format is NVFP4 else dense >= 0xF0  # NaN, and so large that sums overflow
    assert not useless.any()  # products of them would be equal whatever was decoded
    ends = np.cumsum(streams.counts)
    for plane, (end, count) in enumerate(zip(ends, streams.counts, strict=True)):
        fixed, words = streams.fixed[plane].numpy(), streams.words[end - count : end].numpy().view(np.uint32)
        faults = reference.check(small.format, fixed, words, rows=small.rows, cols=small.cols)
        assert all(fault.decodable for fault in faults)
        want = reference.decode(small.format, fixed, words, rows=small.rows, cols=small.cols)
        assert dense[plane].tobytes() == want.tobytes()


def test_only_chosen_experts_have_tokens() -> None:
    starts = expert_start(6, torch.tensor([5, 0, 3]), 2, CPU)
    assert (starts.dtype, starts.tolist()) == (torch.int32, [0, 2, 2, 2, 4, 4, 6])


def in_place_of_flashinfer(streams: CsfStreams) -> flashinfer.Expand:
    scales = prepared(streams)
    return lambda out, layout, ids: decompress_csf_scales(scales, out=out, layout=layout, topk_ids=ids)


@pytest.mark.slow
@pytest.mark.parametrize("work", [WORKLOADS[0], WORKLOADS[4]], ids=lambda work: work.format.title)
def test_graphs_can_capture_all_that_is_timed(work: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.bench.case.time_graph", time_graph)
    monkeypatch.setattr("csf_tool.bench.rivals.nvcomp_missing", lambda: "it is not here")
    monkeypatch.setattr(flashinfer, "missing", lambda fmt: None if fmt is NVFP4 else "it has no MXFP4")
    monkeypatch.setattr(flashinfer, "expander", in_place_of_flashinfer)
    small = replace(work, experts=10, rows=32, cols=16)
    case = Case(small, make_streams(small, torch.device(DEVICE)), repeats=20, launches=4, l2_bytes=1000)
    names = [measure.name for measure in run_case(case).measures]
    assert len(set(names)) == len(names)
    assert {"all experts", "8 of 10 experts", "8 of 10 experts, by topk_ids", "plain PyTorch"} <= set(names)
    assert any("FlashInfer" in name for name in names) == (work.format is NVFP4)


def timing(us: float) -> Timing:
    return Timing(us, us - 0.1, us + 0.2, 20)


def result() -> BenchResult:
    case = CaseResult(
        workload=WORKLOADS[0],
        exceptions=524_288,
        compressed_bytes=28_640_000,
        prepared_bytes=28_800_000,
        floor=Measure("streaming, no decoding", timing(20.0), timing(19.0), "4 KiB per program, 4 warps"),
        measures=[
            Measure("all experts", timing(21.0), timing(20.5)),
            Measure("8 of 512 experts", timing(2.5), timing(2.0), moves_all=False),
            Measure("nvCOMP ANS", timing(120.0), None, "60% of the dense bytes"),
        ],
    )
    return BenchResult(
        device="A GPU",
        versions={"torch": "2.11.0", "triton": "3.6.0"},
        l2_bytes=60 << 20,
        copy_bytes_per_s=4.3e12,
        empty=timing(1.3),
        cases=[case],
        encode=EncodeResult(157_286_400, timing(450.0)),
        gemms=[gemm(tokens=1, cost=3.0), gemm(tokens=4, cost=0.1), gemm(tokens=1, cost=2.0, stack=MXFP4_STACKS[0])],
        date="2026-11-29",
        source=Source("org/name@abc", "model.layers.0", 524_288),
        skipped=["something: not installed"],
    )


def gemm(tokens: int, cost: float, stack: Workload = STACKS[0]) -> GemmResult:
    pair = Pair(timing(26.0), timing(26.0 + cost))
    return GemmResult(stack, "grouped", 8, tokens, Tile(16, 64, 128, 4, 3), pair, pair, 14_700_000)


def test_the_report_sets_each_way_beside_the_floor() -> None:
    console = Console(width=160, file=io.StringIO(), record=True)
    for line in bench_report(result()):
        console.print(line)
    lines = console.export_text().splitlines()
    assert any("21.00" in line and "20.90 to 21.20" in line and "1.050" in line for line in lines)
    assert any("8 of 512 experts" in line and "2.50" in line for line in lines)
    assert any("0.450 ms" in line for line in lines)
    assert any("DeepSeek-V4.1 w1 and w3 stack, 384 x 4608 x 5120 MXFP4 weights" in line for line in lines)
    assert any("Qwen3.8 gate and up stack, 512 x 1280 x 2560 NVFP4 weights" in line for line in lines)
    assert lines[-1].strip() == "something: not installed"


def test_a_cost_within_the_spread_is_no_cost() -> None:
    console = Console(width=160, file=io.StringIO(), record=True)
    for line in bench_report(result()):
        console.print(line)
    clear, unclear = (
        next(line for line in console.export_text(clear=False).splitlines() if line.startswith(f"8 active       {n}"))
        for n in (1, 4)
    )
    assert ("3.00" in clear, "11.54%" in clear, "0.57" in clear) == (True, True, True)
    assert "0.10" not in unclear


def test_too_few_repeats_conclude_nothing() -> None:
    made = result()
    few = replace(timing(21.0), repeats=3)
    case = replace(made.cases[0], measures=[Measure("all experts", few, few)], floor=Measure("floor", few))
    pair = Pair(few, replace(few, median_us=50.0, low_us=49.0, high_us=51.0))
    scarce = replace(made, empty=few, cases=[case], gemms=[replace(made.gemms[0], flushed=pair, warm=None)])
    console = Console(width=160, file=io.StringIO(), record=True)
    for line in bench_report(scarce):
        console.print(line)
    text = console.export_text()
    assert "too few to conclude" in text
    assert "29.00" not in text.split("Product of")[1]  # what it costs
    assert "1.000" not in text


def test_bars_are_the_multiples_of_the_document() -> None:
    made = result()
    decode, *products = bench_figure(made).axes
    document = bench_document(made)
    ratios = [measure["of_floor"] for case in document["cases"] for measure in case["measures"]]
    assert ends(decode) == pytest.approx([ratio for ratio in ratios if ratio])
    pairs = [pair for gemm in document["products"] for pair in (gemm["flushed"], gemm["warm"]) if pair]
    bars = [end for product in products for end in ends(product)]
    assert bars == pytest.approx([1 + pair["cost_share"] for pair in pairs], abs=1e-4)
    assert all(axes.get_xscale() == "log" and "logarithmic" in axes.get_xlabel() for axes in (decode, *products))


def ends(axes: Axes) -> list[float]:
    """Where bars that begin at 1x end."""
    return [bar.get_x() + bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]


@pytest.mark.slow
def test_values_are_written_beside_the_bars_and_all_rivals_are_drawn() -> None:
    said = words(bench_figure(result()))
    assert "1.050x (21.00 us)" in said
    assert "6.000x (120.00 us)" in said
    assert "nvCOMP ANS" in said
    assert "1.115x (29.00 us)" in said
    assert "1.004x* (26.10 us)" in said  # within the spread


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.3, 40.0])
def test_all_texts_can_be_read(ratio: float) -> None:
    made = result()
    rival = Measure("fixed and exceptions as two launches", timing(20.0 * ratio), None)
    long = replace(made.cases[0].workload, name="a stack with a name that is longer than others $x$" * 3)
    case = replace(made.cases[0], measures=[*made.cases[0].measures, rival])
    costs = (0.0, 26 * ratio - 26)
    stacks = (STACKS[0], *MXFP4_STACKS)  # the second of a row has fewer products, then the first
    products = [gemm(tokens, cost, stack) for stack in stacks for tokens in tokens_of(stack) for cost in costs]
    for gemms in ([], products[:10], products, products[10:] + products[:10]):
        cases = [case, replace(case, workload=long)]
        assert unreadable(bench_figure(replace(made, cases=cases, gemms=gemms))) == []


def test_the_json_document_holds_every_figure() -> None:
    document = bench_document(result())
    assert document["schema"] == "csf-tool.bench/1"
    assert document["cases"][0]["measures"][0]["flushed"] == {
        "median_us": 21.0,
        "low_us": 20.9,
        "high_us": 21.2,
        "repeats": 20,
    }
    assert [measure["of_floor"] for measure in document["cases"][0]["measures"]] == [1.05, None, 6.0]
    assert document["encoder"] and document["encoder"]["dense_bytes"] == 157_286_400
    product = document["products"][0]
    assert product["bytes_per_s"] == round(14_700_000 / 26e-6)
    assert [one["format"] for one in document["products"]] == ["nvfp4", "nvfp4", "mxfp4"]
    assert (product["flushed"]["cost_us"], product["flushed"]["cost_share"]) == (3.0, 0.1154)


def test_report_document_and_figure_name_the_checkpoint() -> None:
    made = result()
    line = "The streams are from model.layers.0 of org/name@abc, with 524,288 exceptions in all."
    assert line in bench_report(made)
    assert bench_document(made)["source"] == {
        "checkpoint": "org/name@abc",
        "layer": "model.layers.0",
        "exceptions": 524_288,
    }
    assert "model.layers.0 of org/name@abc" in bench_figure(made).get_supxlabel().replace("\n", " ")
    made = replace(made, source=None)
    assert not any("The streams are from" in str(line) for line in bench_report(made))
    assert bench_document(made)["source"] is None


def test_tables_of_the_slowest_products_fit_80_columns() -> None:
    """Nothing is cut off: rich would put an ellipsis where it is."""
    made = result()
    slow = Timing(98_765.4, 98_765.4, 99_876.5, 20)
    pair = Pair(replace(slow, median_us=45_678.9, high_us=45_678.9), slow)
    products = [replace(made.gemms[0], way="batched", active=512, tokens=256, flushed=pair, warm=pair)]
    case = replace(made.cases[0], measures=[Measure("fixed and exceptions as two launches", slow, slow)])
    console = Console(width=80, file=io.StringIO(), record=True)
    for table in bench_report(replace(made, cases=[case], gemms=products)):
        if isinstance(table, Table):
            console.print(table)
    lines = console.export_text().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert any("all, batched     256  45,679   98,765  98,765 to 99,876  53,086  116.22%" in line for line in lines)
    assert "\u2026" not in "".join(lines)
