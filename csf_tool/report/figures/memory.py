"""plan: GPU memory of both strategies against the card's, and how the scales grow with the layers."""

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from csf_tool.look.plan import Plan
from csf_tool.report.figures.canvas import (
    BLUE,
    GREEN,
    GREY,
    HATCH,
    ORANGE,
    drawn,
    legend_above,
    name_of,
    new_figure,
    whole_numbers,
)
from csf_tool.text import count, percent, size, unit_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PARTS = (
    ("weights and other tensors", GREY, ""),
    ("scales", BLUE, ""),
    ("workspace", ORANGE, HATCH),
    ("left", "white", ""),
)

_FEW_LAYERS = 12
_BACKGROUND = {"facecolor": "white", "edgecolor": "none", "pad": 1}
"""Keeps text readable where a line crosses it."""


@drawn
def plan_figure(plan: Plan) -> "Figure":
    """Two stacked bars, a strategy each, beside the card's memory; below, the scales as more layers are resident."""
    stacks = count(len(plan.stacks), "stack")
    resident = f"{plan.resident:,} of the {stacks}" if plan.resident < len(plan.stacks) else f"all {stacks}"
    caption = f"Sizes from the headers: {resident} of {name_of(plan.path)} in memory"
    figure = new_figure(5.2, _headline(plan), caption + (f", on each of {plan.tp} GPUs" if plan.tp > 1 else ""))
    bars, growth = figure.subplots(2, 1, height_ratios=[1, 1.3])
    _bars(bars, plan)
    _growth(growth, plan)
    return figure


def _headline(plan: Plan) -> str:
    each = f" on each of {plan.tp} GPUs" if plan.tp > 1 else ""
    if plan.gpu_memory:
        dense, kept = (sum(parts) <= plan.gpu_memory for parts in _strategies(plan).values())
        what = "the model" if plan.resident == len(plan.stacks) else f"the model with {plan.resident:,} of its stacks"
        fits = {
            (True, True): "fits, whether its scales are decoded or kept compressed",
            (False, True): "fits only if its scales are kept compressed",
            (True, False): "fits only if its scales are decoded when loading",
            (False, False): "does not fit, whether its scales are decoded or kept compressed",
        }
        return f"With {size(plan.gpu_memory)}{each}, {what} {fits[dense, kept]}"
    saved = plan.saved_bytes
    what = f"saves {size(saved)}" if saved >= 0 else f"takes {size(-saved)} more"
    return f"Keeping the scales compressed {what}{each} ({percent(abs(saved), plan.dense_bytes)} of them)"


def _strategies(plan: Plan) -> dict[str, list[int]]:
    """Bytes of other tensors, scales and workspace."""
    return {
        "decoded\nwhen loading": [plan.tensor_bytes, plan.dense_bytes, 0],
        "kept\ncompressed": [plan.tensor_bytes, plan.compressed_bytes, plan.workspace_bytes],
    }


def _bars(axes: "Axes", plan: Plan) -> None:
    strategies = _strategies(plan)
    longest = max(plan.gpu_memory or 0, *map(sum, strategies.values()))
    unit, factor = unit_for(longest)
    places = np.arange(len(strategies))
    left = np.zeros(len(strategies))
    columns = [*zip(*strategies.values(), strict=True)]
    if plan.gpu_memory:
        columns.append(tuple(max(0, plan.gpu_memory - sum(parts)) for parts in strategies.values()))
    for (label, colour, hatch), nbytes in zip(_PARTS, columns, strict=False):
        widths = np.array(nbytes) / factor
        edge, line = ("0.5", 0.6) if label == "left" else ("white", 0.0)  # a small part would be nothing but edge
        some = widths > 0
        if some.any():
            axes.barh(
                places[some], widths[some], 0.4, left[some], label=label, color=colour, hatch=hatch, edgecolor=edge,
                linewidth=line,
            )  # fmt: skip
        left = left + widths
    if plan.gpu_memory:
        axes.axvline(plan.gpu_memory / factor, color="black", linestyle="--", label=f"card: {size(plan.gpu_memory)}")
    for place, parts in zip(places, strategies.values(), strict=True):
        axes.annotate(
            _sum(plan, parts), (0, place - 0.26), (3, 0), textcoords="offset points", fontsize=7, va="bottom",
            bbox=_BACKGROUND,
        )  # fmt: skip
    axes.set_yticks(places, list(strategies))
    axes.set_ylim(1.35, -0.6)
    axes.set_xlim(0, 1.02 * longest / factor)
    axes.set_xlabel(f"memory of {'each GPU' if plan.tp > 1 else 'the GPU'} ({unit})")
    legend_above(axes)


def _sum(plan: Plan, parts: list[int]) -> str:
    """The lengths of a bar in words."""
    left = (plan.gpu_memory or 0) - sum(parts)
    names = ["weights, other tensors", "scales", "workspace"]
    terms = " + ".join(f"{name} {size(nbytes)}" for name, nbytes in zip(names, parts, strict=True) if nbytes)
    line = f"{terms} = {size(sum(parts))}"
    return line if not plan.gpu_memory else f"{line}; {size(abs(left))} {'left' if left >= 0 else 'too much'}"


def _growth(axes: "Axes", plan: Plan) -> None:
    """Bytes of the scales once the stacks of so many layers are resident, workspace included."""
    places = _layers_until(plan)
    rows = [(0, plan.stacks[0].dense_bytes), *((dense, kept) for _, dense, kept in plan.growth())]
    # Stacks of a layer differ in size: with many layers the points between them would be nothing but waves.
    shown = [n for n, place in enumerate(places) if place == int(place) or places[-1] <= _FEW_LAYERS]
    unit, factor = unit_for(max(map(max, rows)))
    for i, (label, colour, line) in enumerate(
        [("decoded when loading", BLUE, "-"), ("kept compressed, with workspace", ORANGE, "--")]
    ):
        values = [rows[n][i] / factor for n in shown]
        axes.plot([places[n] for n in shown], values, color=colour, linestyle=line, label=label)
    if plan.wins_from is not None:
        label = f"less memory from {count(plan.wins_from, 'resident stack')} on"
        axes.axvline(places[plan.wins_from], color=GREEN, linewidth=0.9, linestyle="-.", label=label)
    if plan.resident < len(plan.stacks):
        label = f"resident: {count(plan.resident, 'stack')}"
        axes.axvline(places[plan.resident], color="black", linewidth=0.9, linestyle=":", label=label)
    axes.set_xlabel("layers whose stacks are resident, in their order")
    axes.set_ylabel(f"scales{' on each GPU' if plan.tp > 1 else ''} ({unit})")
    axes.set_xlim(0, places[-1])
    axes.set_ylim(0)
    whole_numbers(axes.xaxis)
    legend_above(axes)


def _layers_until(plan: Plan) -> list[float]:
    """For 0 to all stacks: the layers that are resident with so many, the last of them in part."""
    result = [0.0]
    for layer, (_, group) in enumerate(groupby(plan.stacks, key=lambda stack: stack.layer)):
        alike = len(list(group))
        result += [layer + n / alike if n < alike else layer + 1.0 for n in range(1, alike + 1)]
    return result
