"""inspect: one plane, as a map of its scales, with its exceptions and the base of each row beside it."""

from typing import TYPE_CHECKING

import numpy as np

from csf_tool.codec.formats import CsfFormat
from csf_tool.codec.values import scale_values
from csf_tool.look.inspection import Inspected
from csf_tool.report.figures.canvas import BLUE, GREEN, HATCH, ORANGE, PINK, drawn, name_of, new_figure, whole_numbers
from csf_tool.text import count, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MANY_ROWS = 1000
"""More rows than this have points that lie on each other: what is denser is darker."""
_DISCRETE = 16
"""Fewer bytes than this have a colour each, with a limit to be seen between them."""


@drawn
def plane_figure(plane: Inspected, checkpoint: str) -> "Figure":
    """A plane's scales, exceptions and bases, row beside row, and how often each byte occurs."""
    figure = new_figure(7.2, _headline(plane), _caption(plane, checkpoint))
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.6, 1])[:, 0]
    scales, places, bases = upper.subplots(1, 3, sharey=True, width_ratios=[2, 1.5, 1])
    every, apart = lower.subplots(2, 1, sharex=True)
    _scale_map(scales, plane)
    _exception_places(places, plane)
    _base_of_each_row(bases, plane)
    _byte_counts(every, apart, plane)
    return figure


def _headline(plane: Inspected) -> str:
    if not len(plane.words):
        return "All scales are within their row's window"
    share = percent(len(plane.words), plane.scales.size)
    return f"{share} of the scales {'would be' if plane.is_dense else 'are'} exceptions to their row's window"


def _caption(plane: Inspected, checkpoint: str) -> str:
    shape = f"{plane.rows} x {plane.cols} scales, {count(len(plane.words), 'exception')}"
    shards = ", ".join(dict.fromkeys(located.shard.name for located in plane.stored))
    window = f"a row's window: {plane.format.window} bytes from its base up"
    return f"n = {shape}; {window}; {plane.name}, {shards} of {name_of(checkpoint)}"


def _scale_map(axes: "Axes", plane: Inspected) -> None:
    import matplotlib
    from matplotlib.colors import BoundaryNorm

    low, high = int(plane.bases.min()), int(plane.bases.max()) + plane.format.window - 1
    number = high - low + 1
    colours = matplotlib.colormaps["cividis"].resampled(number)
    norm = BoundaryNorm(np.arange(low, high + 2) - 0.5, number)
    # Exceptions far from all windows must not take the colours away from the rest.
    image = axes.imshow(plane.scales, aspect="auto", cmap=colours, norm=norm, interpolation="nearest")
    beyond = bool(plane.scales.min() < low), bool(plane.scales.max() > high)
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[beyond]
    bar = axes.figure.colorbar(
        image, ax=axes, location="left", shrink=0.9, aspect=30, extend=extend, drawedges=number < _DISCRETE
    )
    ticks = _integers(low, high, 8)
    values = _value_texts(plane.format)
    bar.set_ticks(ticks, labels=[f"{byte} ({values[byte]})" for byte in ticks], minor=False)
    bar.minorticks_off()
    bar.set_label(f"{plane.format.scale_type} byte (value)")
    axes.set_xlim(-0.5, plane.cols - 0.5)
    axes.set_ylim(plane.rows - 0.5, -0.5)
    axes.set_xticks(_integers(0, plane.cols - 1, 5))
    axes.set_yticks(_integers(0, plane.rows - 1, 9))
    axes.set_xlabel("column")
    axes.set_ylabel("row")
    axes.set_title("scales")


def _exception_places(axes: "Axes", plane: Inspected) -> None:
    """A point for each exception, in a panel of its own, where it hides no scale."""
    rows, cols = np.divmod(plane.positions, plane.cols)
    sides = [
        ("above the window", ORANGE, "^", plane.distances > 0),
        ("below the window", BLUE, "v", plane.distances < 0),
        ("inside the window", PINK, "o", plane.distances == 0),
    ]
    area = float(np.clip(2500 / max(1, len(plane.words)), 0.4, 5))
    for label, colour, marker, chosen in sides:
        if chosen.any():
            label = f"{np.count_nonzero(chosen):,} {label}"
            axes.scatter(cols[chosen], rows[chosen], area, color=colour, marker=marker, linewidths=0, label=label)
    axes.set_xlim(-0.5, plane.cols - 0.5)
    axes.set_xticks(_integers(0, plane.cols - 1, 4))
    axes.set_xlabel("column")
    axes.set_title(f"its {count(len(plane.words), 'exception')}" if len(plane.words) else "no exceptions")
    axes.spines[["top", "right"]].set_visible(True)
    if len(plane.words):
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=6.5, borderaxespad=0, markerscale=4 / area**0.5
        )


def _base_of_each_row(axes: "Axes", plane: Inspected) -> None:
    dot, alpha = float(np.clip(1500 / plane.rows, 2.5, 5)), 0.3 if plane.rows > _MANY_ROWS else 0.7
    axes.plot(plane.bases, np.arange(plane.rows), ".", color=BLUE, markersize=dot, alpha=alpha, markeredgewidth=0)
    low, high = int(plane.bases.min()), int(plane.bases.max())
    axes.set_xlim(low - 1, high + 1)
    _byte_axis(axes, plane.format, _integers(low, high, 3))
    axes.set_title("base of each row")


def _byte_counts(every: "Axes", apart: "Axes", plane: Inspected) -> None:
    """Number of times that each byte occurs, among all scales and, with an axis of their own, among exceptions."""
    exceptions = np.bincount(plane.scales[plane.is_exception], minlength=256)
    seen = np.flatnonzero(plane.byte_counts)
    bytes_ = np.arange(seen[0], seen[-1] + 1)
    every.bar(bytes_, plane.byte_counts[bytes_], width=0.9, color=GREEN)
    apart.bar(bytes_, exceptions[bytes_], width=0.9, color=ORANGE, hatch=HATCH, edgecolor="white", linewidth=0)
    every.set_xlim(seen[0] - 1, seen[-1] + 1)
    every.set_ylabel("all scales")
    apart.set_ylabel("exceptions")
    for axes in every, apart:
        axes.set_ylim(0)
        whole_numbers(axes.yaxis)
    if not exceptions.any():
        apart.set_ylim(0, 1)
        apart.set_yticks([0, 1])
    _byte_axis(every, plane.format, _integers(int(seen[0]), int(seen[-1]), 12), values_only=True)
    _byte_axis(apart, plane.format, _integers(int(seen[0]), int(seen[-1]), 12), bytes_only=True)
    every.tick_params(labelbottom=False)


def _byte_axis(
    axes: "Axes", fmt: CsfFormat, ticks: list[int], *, values_only: bool = False, bytes_only: bool = False
) -> None:
    """Bytes below, and above them the values that they stand for."""
    axes.set_xticks(ticks)
    if not values_only:
        axes.set_xlabel(f"{fmt.scale_type} byte")
    if not bytes_only:
        above = axes.secondary_xaxis("top")
        texts = _value_texts(fmt)
        above.set_xticks(ticks, [texts[byte] for byte in ticks])
        above.set_xlabel(f"{fmt.scale_type} value")


def _value_texts(fmt: CsfFormat) -> list[str]:
    """The value of each byte, powers of two as such where all are."""
    values = scale_values(fmt)
    if fmt.scale_type == "UE8M0":
        return ["NaN" if np.isnan(v) else f"2{str(int(np.log2(v))).translate(_RAISED)}" for v in values]
    return ["NaN" if np.isnan(v) else f"{v:.4g}" for v in values]


def _integers(low: int, high: int, most: int) -> list[int]:
    """Multiples of a power of two from `low` to `high` to label an axis with, about `most` of them at most.

    Such bytes are round values, and such rows begin tiles.
    """
    step = 1
    while (high - low) // step >= most:
        step *= 2
    return list(range(-(-low // step) * step, high + 1, step)) or [low]
