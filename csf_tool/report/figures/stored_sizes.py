"""stats: bytes of dense and CSF block scales, by projection and by shard."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from csf_tool.choices import GroupBy
from csf_tool.look.stats import Stats, Totals
from csf_tool.report.figures.canvas import (
    BLUE,
    HATCH,
    ORANGE,
    as_it_is,
    drawn,
    legend_above,
    name_of,
    new_figure,
    shortened,
)
from csf_tool.report.figures.layers import layers_figure
from csf_tool.report.figures.numbered_axis import label_shards
from csf_tool.text import count, percent, size, unit_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BARS = 40


def stats_figure(stats: Stats, by: GroupBy = GroupBy.PROJECTION) -> "Figure":
    """The figure that belongs to the table of `stats --by`."""
    if by is GroupBy.LAYER:
        return layers_figure(stats)
    return _shards_figure(stats) if by is GroupBy.SHARD else _projections_figure(stats)


def _headline(stats: Stats) -> str:
    """The finding of the figure, in a sentence."""
    if not stats.is_csf:
        return f"The block scales take {size(stats.dense_total.dense_bytes)}, stored dense"
    total = stats.total
    return f"CSF stores the block scales in {percent(total.csf_bytes, total.dense_bytes)} of their dense bytes"


def _caption(stats: Stats) -> str:
    """The data that a figure of `stats` is drawn from."""
    total = stats.shown_total
    where = f"{count(total.planes, 'plane')} in {count(stats.shards, 'shard')}"
    return f"Sizes from the headers: {where} of {name_of(stats.path)}"


@drawn
def _projections_figure(stats: Stats) -> "Figure":
    """A bar for the dense bytes of each projection, one for its CSF bytes, and their numbers."""
    groups = dict(sorted(stats.projections.items(), key=lambda item: -item[1].dense_bytes)[:_MOST_BARS])
    groups = {name: totals for name, totals in stats.projections.items() if name in groups}
    left = len(stats.projections) - len(groups)
    more = f"; {count(left, 'smaller projection')} not drawn" if left else ""
    figure = new_figure(0.8 + 0.5 * max(1, len(groups)), _headline(stats), _caption(stats) + more)
    axes = figure.add_subplot()
    unit, factor = _unit(groups)
    places = np.arange(len(groups))
    bars = [("dense", BLUE, "", [t.dense_bytes for t in groups.values()])]
    if stats.is_csf:
        bars.append(("CSF", ORANGE, HATCH, [t.csf_bytes for t in groups.values()]))
    for i, (label, colour, hatch, nbytes) in enumerate(bars):
        values = [n / factor for n in nbytes]
        found = axes.barh(places + 0.4 * i, values, 0.38, label=label, color=colour, hatch=hatch, edgecolor="white")
        axes.bar_label(found, [_bar_text(label, t) for t in groups.values()], padding=3, fontsize=7)
    names = [f"{shortened(name, 36)}\nn = {count(t.planes, 'plane')}" for name, t in groups.items()]
    axes.set_yticks(places + 0.2 * (len(bars) - 1), names)
    as_it_is(*axes.get_yticklabels())
    axes.invert_yaxis()
    axes.set_xlabel(f"stored block scales ({unit})")
    axes.set_xlim(0, 1.22 * max((t.dense_bytes for t in groups.values()), default=1) / factor)
    legend_above(axes)
    return figure


def _bar_text(label: str, totals: Totals) -> str:
    if label == "dense":
        return size(totals.dense_bytes)
    return f"{size(totals.csf_bytes)} ({percent(totals.csf_bytes, totals.dense_bytes)})"


@drawn
def _shards_figure(stats: Stats) -> "Figure":
    """Dense and CSF bytes of each shard, and its exceptions below."""
    groups = stats.by_shard
    figure = new_figure(4.2 if stats.is_csf else 2.8, _headline(stats), _caption(stats))
    sizes, *below = figure.subplots(
        1 + stats.is_csf, 1, sharex=True, squeeze=False, height_ratios=[2, 1][: 1 + stats.is_csf]
    )[:, 0]
    unit, factor = _unit(groups)
    places = np.arange(len(groups))
    width = 0.4 if stats.is_csf else 0.8
    dense = [t.dense_bytes / factor for t in groups.values()]
    sizes.bar(places - (0.2 if stats.is_csf else 0), dense, width, label="dense", color=BLUE)
    if stats.is_csf:
        csf = [t.csf_bytes / factor for t in groups.values()]
        sizes.bar(places + 0.2, csf, width, label="CSF", color=ORANGE, hatch=HATCH, edgecolor="white", linewidth=0)
        _exception_bars(below[0], groups)
    sizes.set_ylabel(f"stored block scales ({unit})")
    label_shards((below or [sizes])[0], list(groups))
    legend_above(sizes)
    return figure


def _exception_bars(axes: "Axes", groups: Mapping[str, Totals]) -> None:
    shares = [100 * t.exceptions / t.dense_bytes for t in groups.values()]
    axes.bar(np.arange(len(groups)), shares, 0.8, color=ORANGE)
    axes.set_ylabel("exceptions\n(% of scales)")
    axes.set_ylim(0, 1.1 * max(shares, default=0) or 1)


def _unit(groups: Mapping[str, Totals]) -> tuple[str, int]:
    return unit_for(max((totals.dense_bytes for totals in groups.values()), default=0))
