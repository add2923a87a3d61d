"""inspect without a plane: the share of exceptions in each layer and projection."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from csf_tool.look.stats import Projection, Totals, titles
from csf_tool.report.figures.canvas import as_it_is, drawn, name_of, new_figure, shortened
from csf_tool.report.figures.numbered_axis import label_layers
from csf_tool.text import count, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_MOST_ROWS = 60
_WRITTEN = 13
"""Fewer layers than this have room for a number in each cell."""
_SEPARATE = 100
"""Fewer layers than this have room for a line between cells."""


@drawn
def exceptions_figure(groups: Mapping[tuple[str, Projection], Totals], checkpoint: str) -> "Figure":
    """A cell for each layer and projection, coloured by the share of its scales that are exceptions."""
    layers = list(dict.fromkeys(layer for layer, _ in groups))
    projections = sorted({projection for _, projection in groups})
    shown = projections[:_MOST_ROWS]
    places = {layer: place for place, layer in enumerate(layers)}
    shares = np.full((len(shown), len(layers)), np.nan)
    for (layer, projection), totals in groups.items():
        if projection in shown:
            shares[shown.index(projection), places[layer]] = 100 * totals.exceptions / totals.dense_bytes
    figure = new_figure(
        1.5 + 0.35 * len(shown), _headline(groups), _caption(groups, checkpoint, shares, len(projections))
    )
    axes = figure.add_subplot()
    top = float(np.nanmax(shares)) or 1.0
    image = axes.pcolormesh(
        np.arange(len(layers) + 1) - 0.5, np.arange(len(shown) + 1) - 0.5, shares, cmap="cividis", vmin=0, vmax=top
    )
    if len(layers) < _SEPARATE:
        image.set(edgecolor="white", linewidth=0.5)
    figure.colorbar(image, ax=axes, label="exceptions (% of scales)", aspect=12)
    axes.set_facecolor("0.9")
    axes.set_yticks(range(len(shown)), [shortened(name, 36) for name in titles(shown)])
    as_it_is(*axes.get_yticklabels())
    axes.set_ylim(len(shown) - 0.5, -0.5)
    label_layers(axes, layers)
    axes.set_xlim(-0.5, len(layers) - 0.5)
    if len(layers) < _WRITTEN:
        for (row, col), share in np.ndenumerate(shares):
            if not np.isnan(share):
                colour = "white" if share < top / 2 else "black"
                axes.text(col, row, f"{share:.2f}", ha="center", va="center", fontsize=7, color=colour)
    return figure


def _headline(groups: Mapping[tuple[str, Projection], Totals]) -> str:
    exceptions = sum(totals.exceptions for totals in groups.values())
    share = percent(exceptions, sum(totals.dense_bytes for totals in groups.values()))
    if not exceptions:
        return "No scale is an exception"
    (layer, projection), most = max(groups.items(), key=lambda item: item[1].exceptions / item[1].dense_bytes)
    where = f"{shortened(projection.name, 30)} of {shortened('.'.join(layer.split('.')[-2:]), 30)}"
    highest = percent(most.exceptions, most.dense_bytes)
    if highest == share:
        return f"{share} of the scales are exceptions, in every layer and projection"
    return f"{share} of the scales are exceptions; the most, {highest}, in {where}"


def _caption(
    groups: Mapping[tuple[str, Projection], Totals], checkpoint: str, shares: "NDArray[np.float64]", projections: int
) -> str:
    planes = count(sum(totals.planes for totals in groups.values()), "plane")
    grey = "; grey: no such plane" if np.isnan(shares).any() else ""
    left = max(projections - _MOST_ROWS, 0)
    more = f"; {count(left, 'more projection')} not drawn" if left else ""
    return f"From the headers: {planes} of {name_of(checkpoint)}{grey}{more}"
