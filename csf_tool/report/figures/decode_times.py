"""bench: every way to decode a stack, in multiples of the floor, and what decoding first adds to a product."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from csf_tool.bench.timing import ENOUGH_REPEATS, Timing
from csf_tool.report.figures.canvas import BLUE, GREEN, GREY, HATCH, ORANGE, as_it_is, drawn, new_figure, shortened
from csf_tool.text import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from csf_tool.bench.gemm_times import GemmResult
    from csf_tool.bench.results import BenchResult, CaseResult

_ROW_INCHES = 0.142
_TICKS = (1, 1.1, 1.2, 1.5, 2, 3, 5, 7, 10, 20, 30, 50, 70, 100, 200, 500, 1000, 2000, 5000)
"""Labels of the axis, as far as there is room for them; their inverses are those below 1x."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """A time in multiples of `whole_us`, or a heading where there is none."""

    label: str
    timing: Timing | None = None
    whole_us: float = 1.0
    colour: str = GREY
    hatch: str = ""
    doubtful: bool = False

    def times(self, us: float) -> float:
        return us / self.whole_us


@drawn
def bench_figure(result: "BenchResult") -> "Figure":
    """Decoding beside its rivals, a group a stack; below, products with scales decoded first."""
    stacks = list(dict.fromkeys(gemm.stack.name for gemm in result.gemms))
    decode = [bar for case in result.cases for bar in _case_bars(case)]
    products = [_product_bars([gemm for gemm in result.gemms if gemm.stack.name == name]) for name in stacks]
    longest = [max(products[i : i + 2], key=len) for i in range(0, len(products), 2)]
    heights = [_ROW_INCHES * (len(bars) + 5) for bars in [decode, *longest]]
    figure = new_figure(sum(heights), _headline(result), _caption(result))
    rows = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    _draw(rows[0].subplots(), decode, "time in multiples of the floor (logarithmic axis)", room=0.35)
    for i, (bars, name) in enumerate(zip(products, stacks, strict=True)):
        axes = rows[1 + i // 2].add_subplot(1, 2, 1 + i % 2)
        _draw(axes, bars, "time in multiples of the product\nwith dense scales (logarithmic axis)", room=0.9)
        as_it_is(axes.set_title(f"product of {shortened(name, 24)}", loc="left"))
    return figure


def _headline(result: "BenchResult") -> str:
    ratios = [case.measures[0].flushed.median_us / case.floor.flushed.median_us for case in result.cases]
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    span = f"{low}x" if low == high else f"{low}x to {high}x"
    return f"Decoding all experts of a stack takes {span} the time of moving the same bytes"


def _caption(result: "BenchResult") -> str:
    software = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    parts = [
        f"Medians of n = {result.empty.repeats} CUDA-graph replays. The data is not in the L2, except if marked warm; "
        "whiskers span 80% of them.",
        "Floor: a kernel that moves the same bytes and decodes nothing. Decodes of few experts move less and are "
        "not drawn.",
        f"{result.device}, {software}, {result.date}.",
    ]
    if result.source:
        parts.insert(0, f"Streams of {result.source.layer} of {result.source.checkpoint}.")
    if any(bar.doubtful for bar in _product_bars(result.gemms)):
        parts.append("*: within the spread of the repeats.")
    notes = {way.name: way.note for case in result.cases for way in case.measures if way.moves_all and way.note}
    parts += [f"{name}: {note}." for name, note in notes.items()]
    if result.empty.repeats < ENOUGH_REPEATS:
        parts.append(f"Fewer than {ENOUGH_REPEATS} repeats: too few to conclude anything.")
    return " ".join([*parts, *result.skipped])


def _case_bars(case: "CaseResult") -> list[_Bar]:
    work, floor = case.workload, case.floor.flushed.median_us
    title = f"{shortened(work.name, 40)}, {count(work.experts, 'expert')}: floor {_us(floor)}"
    ways = [measure for measure in case.measures if measure.moves_all]
    bars = [_Bar(shortened(way.name, 40), way.flushed, floor, GREY, HATCH) for way in ways]
    bars[:1] = [_Bar(shortened(ways[0].name, 40), ways[0].flushed, floor, BLUE)] if ways else []
    return [_Bar(title), *bars]


def _product_bars(gemms: "list[GemmResult]") -> list[_Bar]:
    bars: list[_Bar] = []
    for tokens in dict.fromkeys(gemm.tokens for gemm in gemms):
        bars.append(_Bar(f"{count(tokens, 'token')} of each active expert"))
        for gemm in gemms:
            if gemm.tokens == tokens:
                experts = f"{gemm.active} active" if gemm.active < gemm.stack.experts else f"all, {gemm.way}"
                for label, pair, colour, hatch in [
                    (experts, gemm.flushed, BLUE if gemm.warm else ORANGE, "" if gemm.warm else HATCH),
                    (f"{experts}, warm", gemm.warm, GREEN, HATCH),
                ]:
                    if pair:
                        whole = pair.dense.median_us
                        bars.append(_Bar(label, pair.staged, whole, colour, hatch, not pair.is_clear))
    return bars


def _draw(axes: "Axes", bars: list[_Bar], label: str, room: float) -> None:
    """Bars from 1x on, upwards or downwards, so that their lengths on the logarithmic axis mean the same both ways."""
    axes.set_xscale("log")
    low, high = 0.95, 1.05
    for row, bar in enumerate(bars):
        if not bar.timing:
            continue
        middle, below, above = (bar.times(us) for us in (bar.timing.median_us, bar.timing.low_us, bar.timing.high_us))
        low, high = min(low, below, middle), max(high, above, middle)
        axes.barh(
            row, middle - 1, 0.8, 1, color=bar.colour, hatch=bar.hatch, edgecolor="white", linewidth=0,
            xerr=[[max(0, middle - below)], [max(0, above - middle)]], error_kw={"elinewidth": 0.8},
        )  # fmt: skip
        text = f"{middle:.{3 if middle < 10 else 1}f}x{'*' * bar.doubtful} ({_us(bar.timing.median_us)})"
        axes.text(max(above, middle, 1), row, f" {text}", fontsize=6.5, va="center")
    axes.axvline(1, color="black", linewidth=0.8)
    low, high = 0.97 * low, high * (high / low) ** room  # for the values beside the bars
    axes.set_xlim(low, high)
    ticks = _ticks(low, high, gap=(high / low) ** (0.08 if room < 0.5 else 0.16))
    axes.set_xticks(ticks, [f"{tick:.2g}x" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_yticks(range(len(bars)), [bar.label if bar.timing else "" for bar in bars], fontsize=6.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)  # bars begin at 1x
    for row, bar in enumerate(bars):
        if not bar.timing:
            as_it_is(axes.text(1, row, f" {bar.label}", fontsize=7, va="center", weight="bold"))
    as_it_is(*axes.get_yticklabels())


def _ticks(low: float, high: float, gap: float) -> list[float]:
    """Round multiples within the limits, each at least `gap` times the one before it; 1x is always there."""
    result = [1.0]
    for tick in _TICKS:
        if gap * result[-1] <= tick <= high:
            result.append(tick)
    below = [1.0]
    for tick in _TICKS:
        if tick >= gap / below[-1] and 1 / tick >= low:
            below.append(1 / tick)
    return [*below[:0:-1], *result]


def _us(microseconds: float) -> str:
    return f"{microseconds:.2f} us" if microseconds < 999.995 else f"{microseconds:,.0f} us"
