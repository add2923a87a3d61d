"""stats --by layer: how well CSF stores each layer, a line for each projection, and its exceptions below."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from csf_tool.look.stats import Stats, Totals
from csf_tool.report.figures.canvas import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    SKY,
    YELLOW,
    drawn,
    legend_above,
    name_of,
    new_figure,
    shortened,
)
from csf_tool.report.figures.numbered_axis import beginnings, label_layers
from csf_tool.text import count, percent, size, unit_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW)
_LINES = ("-", "--", ":", "-.")
_MARKERS = "os^vDPX"
_MOST_LINES = 12


@drawn
def layers_figure(stats: Stats) -> "Figure":
    """CSF over dense bytes of each layer and projection, with exceptions below; of a dense checkpoint, its bytes."""
    layers = list(stats.by_layer)
    largest = sorted(stats.by_projection.items(), key=lambda item: -item[1].dense_bytes)[:_MOST_LINES]
    shown = [
        (name, [stats.by_layer_and_projection.get((layer, projection)) for layer in layers])
        for name, projection in zip(stats.projections, stats.by_projection, strict=True)
        if projection in dict(largest)
    ]
    left = len(stats.by_projection) - len(shown)
    more = f"; {count(left, 'smaller projection')} not drawn" if left else ""
    planes = stats.shown_total.planes
    caption = (
        f"From the headers: {count(planes, 'plane')} in {count(len(layers), 'layer')} of {name_of(stats.path)}{more}"
    )
    rows = 2 if stats.is_csf else 1
    figure = new_figure(1.0 + 1.7 * rows + 0.1 * len(shown), _headline(stats), caption)
    panels = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    breaks = beginnings(layers)
    if stats.is_csf:
        _lines(panels[0], shown, breaks, lambda t: 100 * t.csf_bytes / t.dense_bytes)
        _lines(panels[1], shown, breaks, lambda t: 100 * t.exceptions / t.dense_bytes)
        panels[0].set_ylabel("CSF / dense (%)")
        panels[1].set_ylabel("exceptions (% of scales)")
    else:
        unit, factor = unit_for(max((t.dense_bytes for _, column in shown for t in column if t), default=0))
        _lines(panels[0], shown, breaks, lambda t: t.dense_bytes / factor)
        panels[0].set_ylabel(f"dense block scales ({unit})")
    for axes in panels:
        label_layers(axes, layers)
        axes.label_outer()
    legend_above(panels[0])
    return figure


def _headline(stats: Stats) -> str:
    if not stats.is_csf:
        return f"The block scales take {size(stats.dense_total.dense_bytes)}, stored dense"
    shares = [t.csf_bytes / t.dense_bytes for t in stats.by_layer.values()]
    low, high = percent(min(shares), 1), percent(max(shares), 1)
    span = low if low == high else f"{low} to {high}"
    return f"CSF stores the block scales of a layer in {span} of their dense bytes"


def _lines(
    axes: "Axes",
    shown: list[tuple[str, list[Totals | None]]],
    breaks: list[int],
    value: Callable[[Totals], float],
) -> None:
    """A line a projection, broken where a layer has no such projection or another kind of layers begins."""
    for i, (name, column) in enumerate(shown):
        axes.plot(
            np.insert(np.arange(len(column), dtype=float), breaks, np.nan),
            np.insert([value(totals) if totals else np.nan for totals in column], breaks, np.nan),
            label=shortened(name, 40),
            color=_COLOURS[i % len(_COLOURS)],
            linestyle=_LINES[i % len(_LINES)],
            marker=_MARKERS[i % len(_MARKERS)],
            markersize=min(5.0, 180 / len(column)),
            markerfacecolor="none",  # lines that lie on each other are still to be seen
            linewidth=1,
        )
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    axes.grid(axis="y", color="0.9", linewidth=0.6)
