"""A horizontal axis of layers or shards: one place each, in their natural order, labelled with their numbers."""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from csf_tool.checkpoint.numbered import numbered
from csf_tool.report.figures.canvas import as_it_is, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABELS_WIDTH = 80
"""Characters of labels below an axis, blanks between them included."""

_LONGEST_LABEL = 10
_STEPS = (1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 40, 50, 64, 80)
_NAMED_RUNS = 3


class _Run(NamedTuple):
    """Neighbours whose names differ in their last number alone, such as `model.layers.0` to `model.layers.47`."""

    begin: int
    prefix: str
    labels: list[str]


def label_layers(axes: "Axes", layers: Sequence[str]) -> None:
    """Label places 0, 1, ... with the numbers of layers; a dotted line stands where another kind of layers begins."""
    runs = _runs(layers)
    for run in runs[1:]:
        axes.axvline(run.begin - 0.5, color="0.5", linewidth=0.8, linestyle=":", zorder=0)
    spans = [_span(run) for run in runs[:_NAMED_RUNS]] + ["…"] * (len(runs) > _NAMED_RUNS)
    _label(axes, runs, f"layer ({', '.join(spans)})")


def beginnings(layers: Sequence[str]) -> list[int]:
    """The places where another kind of layers begins, the first of all left out."""
    return [run.begin for run in _runs(layers)[1:]]


def label_shards(axes: "Axes", shards: Sequence[str]) -> None:
    """Label places 0, 1, ... with the numbers of shards, or with their order where names have none."""
    found = map(numbered, shards)
    numbers = [str(int(place.number)) if place else "" for place in found]
    labels = numbers if all(numbers) else [str(n) for n in range(1, len(shards) + 1)]
    ends = list(dict.fromkeys([shards[0], shards[-1]])) if shards else []
    _label(axes, [_Run(0, "", labels)], f"shard ({' to '.join(shortened(name, 42) for name in ends)})")


def _runs(layers: Sequence[str]) -> list[_Run]:
    parts = [re.fullmatch(r"(.*?)([0-9]{1,9})", name, re.DOTALL) for name in layers]
    named = [(m[1], m[2]) if m else (name, "") for m, name in zip(parts, layers, strict=True)]
    result, begin = [], 0
    for prefix, group in groupby(named, key=lambda part: part[0]):
        labels = [number or prefix.rpartition(".")[2] for _, number in group]
        result.append(_Run(begin, prefix, labels))
        begin += len(labels)
    return result


def _span(run: _Run) -> str:
    prefix = shortened(run.prefix, 40)
    first, last = run.labels[0], run.labels[-1]
    if not run.prefix.endswith(first) or not run.prefix:
        return f"{prefix}{first}" + (f" to {last}" if first != last else "")
    return prefix


def _label(axes: "Axes", runs: list[_Run], label: str) -> None:
    labels = [shortened(text, _LONGEST_LABEL) for run in runs for text in run.labels]
    places = _places(runs, len(labels), max(map(len, labels), default=1))
    axes.set_xticks(places, [labels[place] for place in places])
    axes.set_xlim(-0.6, max(len(labels), 1) - 0.4)
    axes.set_xlabel(shortened(label, 110))
    as_it_is(axes.xaxis.label, *axes.get_xticklabels())


def _places(runs: list[_Run], number: int, longest: int) -> list[int]:
    """The places that get a label: the first of each run, and as many after it as there is room for."""
    room = max(1, _LABELS_WIDTH // (longest + 3))
    least = -(-number // room)
    scale = 1
    while least > _STEPS[-1] * scale:
        scale *= 10
    step = next(step * scale for step in _STEPS if step * scale >= least)
    gap = step if number > room else 1
    result: list[int] = []
    ends = [*(run.begin for run in runs), number + gap][1:]
    for run, end in zip(runs, ends, strict=True):
        if not result or run.begin - result[-1] >= gap:
            inside = range(run.begin, run.begin + len(run.labels), step)
            result += [place for place in inside if place == run.begin or end - place >= gap]
    return result
