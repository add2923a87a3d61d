"""The report of `bench`."""

from rich.console import RenderableType

from csf_tool.bench.gemm_times import GemmResult, Pair
from csf_tool.bench.results import BenchResult, CaseResult
from csf_tool.bench.timing import ENOUGH_REPEATS, Timing
from csf_tool.report.table import Table
from csf_tool.text import count, escape, percent, size


def bench_report(result: BenchResult) -> list[RenderableType]:
    """The report for people: one table a workload."""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    lines: list[RenderableType] = [
        f"{result.device}, {size(result.l2_bytes)} of L2; {versions}; {result.date}",
        f"A large copy moves {result.copy_bytes_per_s / 1e12:.2f} TB/s (bytes read plus bytes written); "
        f"an empty kernel takes {result.empty.median_us:.2f} us.",
        f"Medians of {result.empty.repeats} CUDA-graph replays, in us per launch. Flushed: the data is not in the L2.",
    ]
    if result.source:
        source = result.source
        where = f"{escape(source.layer)} of {escape(source.checkpoint)}"
        lines.append(f"The streams are from {where}, with {count(source.exceptions, 'exception')} in all.")
    for case in result.cases:
        lines += ["", _title(case), _case_table(case), *_notes(case)]
    if result.encode:
        dense, timing = result.encode.dense_bytes, result.encode.timing
        lines += [
            "",
            f"Encoding a layer of {size(dense)} of scales: {timing.median_us / 1000:.3f} ms "
            f"({timing.low_us / 1000:.3f} to {timing.high_us / 1000:.3f}), including launches and allocation.",
        ]
    for name in dict.fromkeys(gemm.stack.name for gemm in result.gemms):
        lines += ["", *_gemm_lines([gemm for gemm in result.gemms if gemm.stack.name == name])]
    if result.empty.repeats < ENOUGH_REPEATS:
        lines += ["", f"Fewer than {ENOUGH_REPEATS} repeats: too few to conclude anything from these figures."]
    lines += ["", *result.skipped] if result.skipped else []
    return lines


def _title(case: CaseResult) -> str:
    work = case.workload
    return (
        f"{work.name}: {work.experts} planes {work.rows}x{work.cols}, {work.format.title}, "
        f"{percent(case.exceptions, work.dense_bytes)} exceptions, "
        f"{size(case.compressed_bytes)} to {size(work.dense_bytes)}"
    )


def _case_table(case: CaseResult) -> Table:
    result = Table("measure", "flushed", "80% within", "warm", "of floor")
    for measure in (case.floor, *case.measures):
        ratio = case.of_floor(measure)
        result.add_row(
            measure.name,
            _us(measure.flushed.median_us),
            _range(measure.flushed),
            _us(measure.warm.median_us) if measure.warm else "",
            f"{ratio:.3f}" if ratio and measure.flushed.repeats >= ENOUGH_REPEATS else "",
        )
    return result


def _notes(case: CaseResult) -> list[str]:
    """Lines on what the table has no room for."""
    rate = f"{case.floor.name}: {case.floor_bytes_per_s / 1e12:.2f} TB/s"
    return [rate, *(f"{measure.name}: {measure.note}" for measure in (case.floor, *case.measures) if measure.note)]


def _gemm_lines(gemms: list[GemmResult]) -> list[RenderableType]:
    """A stack's products: with dense scales, and with scales that are decoded just before."""
    stack = gemms[0].stack
    result = Table("experts", "tokens", "dense", "decoded", "80% within", "costs", "share", "TB/s")
    for gemm in gemms:
        experts = f"{gemm.active} active" if gemm.active < stack.experts else f"all, {gemm.way}"
        result.add_row(experts, str(gemm.tokens), *_pair_cells(gemm.flushed), f"{gemm.bytes_per_s / 1e12:.2f}")
        if gemm.warm:
            result.add_row("  warm", str(gemm.tokens), *_pair_cells(gemm.warm))
    weights = f"{stack.experts} x {stack.rows} x {stack.cols * stack.format.group_size} {stack.format.title} weights"
    return [
        f"Product of the {stack.name} stack, {weights}, in us, with dense scales and with scales decoded just before "
        "it. Tokens are counted per active expert.",
        result,
        "TB/s: bytes of weights and scales per time with dense scales. A cost within the spread is not shown.",
    ]


def _pair_cells(pair: Pair) -> list[str]:
    dense, staged = pair.dense.median_us, pair.staged.median_us
    cost = [_us(pair.cost_us), percent(pair.cost_us, dense)] if pair.is_clear else ["", ""]
    return [_us(dense), _us(staged), _range(pair.staged), *cost]


def _range(timing: Timing) -> str:
    return f"{_us(timing.low_us)} to {_us(timing.high_us)}"


def _us(microseconds: float) -> str:
    """Microseconds for a table: to a hundredth, from a thousand on to the whole one, so that 80 columns hold a row."""
    return f"{microseconds:.2f}" if microseconds < 999.995 else f"{microseconds:,.0f}"
