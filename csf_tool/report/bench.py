"""The report of `bench`: for people, and as the JSON document csf-tool.bench/1."""

from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from csf_tool.bench.run import BenchResult, CaseResult, Measure
from csf_tool.bench.timing import Timing
from csf_tool.report.console import table
from csf_tool.text import percent, size

SCHEMA = "csf-tool.bench/1"


def bench_json(result: BenchResult) -> dict[str, Any]:
    """The JSON document. Times are microseconds a launch; `low_us` to `high_us` holds 80% of the repeats."""
    return {
        "schema": SCHEMA,
        "device": result.device,
        "versions": result.versions,
        "l2_bytes": result.l2_bytes,
        "copy_bytes_per_s": result.copy_bytes_per_s,
        "empty_kernel": asdict(result.empty),
        "cases": [_case_json(case) for case in result.cases],
        "encoder": result.encode and {"dense_bytes": result.encode.dense_bytes, **asdict(result.encode.timing)},
        "skipped": result.skipped,
    }


def _case_json(case: CaseResult) -> dict[str, Any]:
    work = case.workload
    return {
        "name": work.name,
        "format": work.format.name,
        "experts": work.experts,
        "rows": work.rows,
        "cols": work.cols,
        "exceptions": case.exceptions,
        "compressed_bytes": case.compressed_bytes,
        "prepared_bytes": case.prepared_bytes,
        "dense_bytes": work.dense_bytes,
        "floor": asdict(case.floor),
        "measures": [asdict(measure) for measure in case.measures],
    }


def bench_report(result: BenchResult) -> list[RenderableType]:
    """The report for people: one table a workload."""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    lines: list[RenderableType] = [
        f"{result.device}, {size(result.l2_bytes)} of L2; {versions}",
        f"A large copy moves {result.copy_bytes_per_s / 1e12:.2f} TB/s, bytes read plus bytes written; "
        f"an empty kernel takes {result.empty.median_us:.2f} us.",
        f"Medians of {result.empty.repeats} CUDA-graph replays, in us a launch. Flushed: sets are rotated past the L2.",
    ]
    for case in result.cases:
        lines += ["", _title(case), _case_table(case)]
    if result.encode:
        dense, timing = result.encode.dense_bytes, result.encode.timing
        lines += [
            "",
            f"Encoding a layer of {size(dense)} of scales: {timing.median_us / 1000:.3f} ms "
            f"({timing.low_us / 1000:.3f} to {timing.high_us / 1000:.3f}), launching and allocation included.",
        ]
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
    result = table("", "flushed", "80% within", "warm", "of floor", "")
    whole = case.compressed_bytes + case.workload.dense_bytes
    for measure in (case.floor, *case.measures):
        rate = f"{whole / measure.flushed.median_us / 1e6:.2f} TB/s" if measure is case.floor else ""
        result.add_row(
            measure.name,
            f"{measure.flushed.median_us:.2f}",
            _range(measure.flushed),
            f"{measure.warm.median_us:.2f}" if measure.warm else "",
            _ratio(measure, case.floor),
            ", ".join(note for note in (rate, measure.note) if note),
        )
    return result


def _range(timing: Timing) -> str:
    return f"{timing.low_us:.2f} to {timing.high_us:.2f}"


def _ratio(measure: Measure, floor: Measure) -> str:
    """How many times the floor, for what moves as many bytes as the floor does."""
    if " of " in measure.name:
        return ""
    return f"{measure.flushed.median_us / floor.flushed.median_us:.3f}"
