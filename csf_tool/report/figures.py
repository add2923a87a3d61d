"""Figures of what the commands report, drawn with matplotlib (the extra `plot`), as PNG or SVG.

Colours are those of Okabe and Ito, which colour-blind people tell apart; hatches and line styles keep the
parts apart in black and white print as well. Below every figure stands what it is drawn from.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.look.inspection import Inspected
from csf_tool.look.plan import Plan
from csf_tool.look.stats import Stats, Totals
from csf_tool.text import count, escape, percent, size, unit_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from csf_tool.bench.gemm import GemmResult
    from csf_tool.bench.run import BenchResult
    from csf_tool.bench.timing import Timing

SUFFIXES = (".png", ".svg")

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
_HATCH = "//"
_WIDTH = 7.0
_DPI = 200
_CAPTION_COLUMNS = 120

_LABEL_COLUMNS = 13
"""Characters on a line of the label below a group of bars, of which there are up to six."""


def require_figures(path: Path) -> None:
    """Check before any work that a figure can be drawn and that its name says how.

    Raises:
        UsageError: the name has another suffix than `SUFFIXES`.
        EnvironmentFault: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--figure {path}: give a name that ends with {' or '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise EnvironmentFault("--figure: needs matplotlib (pip install 'csf-tool[plot]' adds it)") from error


def save(figure: "Figure", path: Path) -> None:
    """Write a figure, in the format that the suffix names.

    Raises:
        EnvironmentFault: the file cannot be written.
    """
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise EnvironmentFault(f"--figure {path}: cannot be written: {error.strerror or error}") from error


def _figure(height: float, source: str) -> "Figure":
    """An empty figure with a line below it that says what it is drawn from."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    # The layout keeps room for a label of the whole figure, but for none of its texts.
    figure.supxlabel(textwrap.fill(_plain(source), _CAPTION_COLUMNS), fontsize=7, color="0.35", x=0.01, ha="left")
    return figure


def _plain(text: str) -> str:
    """A name from a file, harmless to a reader and to matplotlib, which takes dollars for mathematics."""
    return escape(text).replace("$", r"\$")


def stats_figure(stats: Stats) -> "Figure":
    """Stored scales of each projection, dense against CSF."""
    groups = list(stats.projections.items())
    total = stats.total if stats.is_csf else stats.dense_total
    where = f"{count(total.planes, 'plane')} in {count(stats.shards, 'shard')} of {stats.path}"
    figure = _figure(1.4 + 0.55 * max(1, len(groups)), f"Sizes from the headers: {where}")
    axes = figure.add_subplot()
    unit, factor = unit_for(max((totals.dense_bytes for _, totals in groups), default=0))
    place = np.arange(len(groups))
    bars = [("dense", BLUE, "", [t.dense_bytes for _, t in groups])]
    if stats.is_csf:
        bars.append(("CSF", ORANGE, _HATCH, [t.csf_bytes for _, t in groups]))
    for i, (label, colour, hatch, nbytes) in enumerate(bars):
        values = [n / factor for n in nbytes]
        drawn = axes.barh(place + 0.4 * i, values, 0.38, label=label, color=colour, hatch=hatch, edgecolor="white")
        axes.bar_label(drawn, [_bar_text(label, t) for _, t in groups], padding=3, fontsize=7)
    axes.set_yticks(place + 0.2 * (len(bars) - 1), [f"{_plain(name)}\nn = {t.planes:,} planes" for name, t in groups])
    axes.invert_yaxis()
    axes.set_xlabel(f"stored block scales ({unit})")
    axes.margins(x=0.2)
    _tidy(axes)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 1.0), ncols=2, fontsize=8).set_in_layout(True)
    axes.set_ylim(len(groups) - 0.1, -0.9)  # room for the legend above the first bar
    return figure


def _bar_text(label: str, totals: Totals) -> str:
    if label == "dense":
        return size(totals.dense_bytes)
    return f"{size(totals.csf_bytes)} ({percent(totals.csf_bytes, totals.dense_bytes)})"


def plan_figure(plan: Plan) -> "Figure":
    """Scale memory on one GPU as the number of resident stacks grows, workspace included."""
    each = f" on each of {plan.tp} GPUs" if plan.tp > 1 else ""
    figure = _figure(4.2, f"Sizes from the headers: {count(len(plan.stacks), 'stack')} of {plan.path}")
    axes = figure.add_subplot()
    growth = np.array([(0, 0, plan.stacks[0].dense_bytes), *plan.growth()], dtype=float)
    unit, factor = unit_for(int(growth[:, 1:].max()))
    stacks, dense, kept = growth[:, 0], growth[:, 1] / factor, growth[:, 2] / factor
    axes.plot(stacks, dense, color=BLUE, label="decoded when loading")
    axes.plot(stacks, kept, color=ORANGE, linestyle="--", label="kept compressed, and one workspace")
    axes.axhline(plan.workspace_bytes / factor, color="0.5", linewidth=0.8, linestyle=":")
    workspace = f"workspace {size(plan.workspace_bytes)}"
    axes.annotate(workspace, (stacks[-1], plan.workspace_bytes / factor), ha="right", va="bottom", fontsize=7)
    if plan.wins_from is not None:
        at = plan.wins_from
        axes.plot(at, kept[at], "o", color="black", markersize=4)
        text = f"less memory from {count(at, 'resident stack')} on"
        axes.annotate(
            text, (at, kept[at]), (0.05, 0.75), textcoords="axes fraction", fontsize=8, arrowprops={"arrowstyle": "->"}
        )
    axes.set_xlabel("resident stacks, in the order of the layers")
    axes.set_ylabel(f"block scales in GPU memory{each} ({unit})")
    axes.set_xlim(0, stacks[-1])
    axes.set_ylim(0)
    _tidy(axes)
    axes.legend(frameon=False, loc="upper left", fontsize=8)
    return figure


def bench_figure(result: "BenchResult") -> "Figure":
    """Latency of decoding a stack, beside copying the same bytes; and of products with and without decoding first."""
    software = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    source = f"Medians of n = {result.empty.repeats} CUDA-graph replays; bars span 80% of them. {result.device}, "
    if result.source:
        source = f"Streams of {result.source.layer} of {result.source.checkpoint}. {source}"
    stacks = list(dict.fromkeys(gemm.stack.name for gemm in result.gemms))
    figure = _figure(3.2 * (1 + len(stacks)), source + f"{software}, {result.date}")
    decode, *products = figure.subplots(1 + len(stacks), 1, squeeze=False)[:, 0]
    _decode_bars(decode, result)
    for axes, name in zip(products, stacks, strict=True):
        routed = [gemm for gemm in result.gemms if gemm.stack.name == name and gemm.warm]
        _product_bars(axes, name, routed)
    return figure


_Way: TypeAlias = "tuple[str, str, str, Sequence[Timing | None]]"
"""A way to do the work: its label, colour and hatch, and a timing for each group of bars."""


def _decode_bars(axes: "Axes", result: "BenchResult") -> None:
    names = [case.workload.name for case in result.cases]
    ways: list[_Way] = [
        ("copying, no decoding", "0.6", "", [case.floor.flushed for case in result.cases]),
        ("decoding, flushed", BLUE, "", [case.measures[0].flushed for case in result.cases]),
        ("decoding, warm", GREEN, _HATCH, [case.measures[0].warm for case in result.cases]),
    ]
    _grouped_bars(axes, names, ways)
    axes.set_title("decode a stack, all experts", fontsize=9)
    axes.set_ylabel("time (us)")


def _product_bars(axes: "Axes", name: str, gemms: "list[GemmResult]") -> None:
    ways: list[_Way] = [
        ("dense scales, flushed", "0.6", "", [gemm.flushed.dense for gemm in gemms]),
        ("decoded first, flushed", BLUE, "", [gemm.flushed.staged for gemm in gemms]),
        ("dense scales, warm", "0.8", _HATCH, [gemm.warm.dense for gemm in gemms if gemm.warm]),
        ("decoded first, warm", GREEN, _HATCH, [gemm.warm.staged for gemm in gemms if gemm.warm]),
    ]
    _grouped_bars(axes, [str(gemm.tokens) for gemm in gemms], ways)
    axes.set_xlabel("tokens of each active expert")
    active = gemms[0].active if gemms else 0
    axes.set_title(f"matrix product of the {name} stack, {active} active experts", fontsize=9)
    axes.set_ylabel("time (us)")


def _grouped_bars(axes: "Axes", names: list[str], ways: list[_Way]) -> None:
    """Bars side by side in groups, with the range of 80% of the repeats on each. The axis is linear, from zero."""
    width = 0.8 / len(ways)
    for i, (label, colour, hatch, timings) in enumerate(ways):
        shown = [(at, timing) for at, timing in enumerate(timings) if timing]
        place = [at + (i - (len(ways) - 1) / 2) * width for at, _ in shown]
        height = [timing.median_us for _, timing in shown]
        below = [timing.median_us - timing.low_us for _, timing in shown]
        above = [timing.high_us - timing.median_us for _, timing in shown]
        axes.bar(
            place, height, width, yerr=[below, above], label=label, color=colour, hatch=hatch, edgecolor="white",
            error_kw={"elinewidth": 0.8},
        )  # fmt: skip
    axes.set_xticks(
        range(len(names)),
        [textwrap.fill(_plain(name), _LABEL_COLUMNS, break_long_words=False) for name in names],
        fontsize=8,
    )
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    _tidy(axes)
    axes.legend(frameon=False, fontsize=7, ncols=2)


def plane_figure(plane: Inspected, source: str) -> "Figure":
    """A plane's scale map with its exceptions, the base of each row beside it, and how often each byte occurs."""
    shape = f"{plane.rows} x {plane.cols} scales, {count(len(plane.words), 'exception')}"
    shards = ", ".join(dict.fromkeys(located.shard.name for located in plane.stored))
    figure = _figure(6.4, f"n = {shape}; {plane.name}, {shards} of {source}")
    grid = figure.add_gridspec(2, 2, height_ratios=[2.2, 1], width_ratios=[2.2, 1])
    scales = figure.add_subplot(grid[0, 0])
    bases = figure.add_subplot(grid[0, 1], sharey=scales)
    histogram = figure.add_subplot(grid[1, :])
    _scale_map(scales, plane)
    _base_of_each_row(bases, plane)
    _byte_histogram(histogram, plane)
    _tidy(bases, histogram)
    return figure


def _scale_map(axes: "Axes", plane: Inspected) -> None:
    low, high = _limits(plane)
    image = axes.imshow(plane.scales, aspect="auto", cmap="cividis", vmin=low, vmax=high, interpolation="nearest")
    rows, cols = np.divmod(plane.positions, plane.cols)
    axes.scatter(cols, rows, s=9, facecolors="none", edgecolors=ORANGE, linewidths=0.6, label="exception")
    axes.set_xlim(-0.5, plane.cols - 0.5)
    axes.set_ylim(plane.rows - 0.5, -0.5)
    axes.set_xlabel("column")
    axes.set_ylabel("row")
    axes.set_title("scales; circles are exceptions", fontsize=9)
    axes.figure.colorbar(image, ax=axes, label=f"{plane.format.scale_type} byte", location="left", shrink=0.8)


def _base_of_each_row(axes: "Axes", plane: Inspected) -> None:
    axes.step(plane.bases, np.arange(plane.rows), color=BLUE, linewidth=0.6)
    axes.set_xlabel(f"byte; windows are {plane.format.window}")
    axes.set_title("base of each row", fontsize=9)
    axes.tick_params(labelleft=False)


def _byte_histogram(axes: "Axes", plane: Inspected) -> None:
    exceptions = np.bincount(plane.scales[plane.is_exception], minlength=256)
    axes.bar(np.arange(256), plane.byte_counts, width=1.0, color=BLUE, label="all scales")
    axes.bar(np.arange(256), exceptions, width=1.0, color=ORANGE, hatch=_HATCH, label="exceptions")
    seen = np.flatnonzero(plane.byte_counts)
    axes.set_xlim(seen[0] - 1, seen[-1] + 1)
    axes.set_xlabel(f"{plane.format.scale_type} byte")
    axes.set_ylabel("scales")
    axes.legend(frameon=False, fontsize=8)


def _limits(plane: Inspected) -> tuple[int, int]:
    """The bytes that windows reach: exceptions far from them must not take the colours away from the rest."""
    return int(plane.bases.min()), int(plane.bases.max()) + plane.format.window - 1


def _tidy(*axes: "Axes") -> None:
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
