"""The reports of `inspect`: one plane, or planes ranked."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text

from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.stored import Located
from csf_tool.codec.formats import EXCEPTION_BYTES
from csf_tool.codec.values import scale_values
from csf_tool.look.inspection import Inspected
from csf_tool.report.table import Table
from csf_tool.text import count, escape, percent, sizes

_PLACES = 5
"""Rows and columns with the most exceptions that are named."""


def ranking_report(planes: Sequence[Plane], top: int) -> list[RenderableType]:
    """Planes by what their headers say: the most exceptions, the most and least saved, those that grew."""
    larger = [plane for plane in planes if plane.saved_bytes < 0]
    grown = f"{count(len(larger), 'plane')} larger than dense" if larger else "no plane is larger than dense"
    lines: list[RenderableType] = [
        f"{count(len(planes), 'plane')}; {grown}.",
        *_ranked("Most exceptions:", planes, lambda plane: plane.exception_share, top),
        *_ranked("Most bytes saved:", planes, lambda plane: plane.saved_bytes, top),
        *_ranked("Fewest bytes saved:", planes, lambda plane: -plane.saved_bytes, top),
    ]
    if len(planes) > top:
        lines += [
            "",
            f"The first {top} of each order are shown; --top shows more, --json all. Name a plane to see its details.",
        ]
    return lines


def _ranked(title: str, planes: Sequence[Plane], key: Callable[[Plane], float], top: int) -> list[RenderableType]:
    """The first planes in an order."""
    chosen = sorted(planes, key=key, reverse=True)[:top]
    result = Table("plane", "exceptions", "saved", "CSF")
    stored, saved = sizes([p.csf_bytes for p in chosen]), sizes([p.saved_bytes for p in chosen])
    for plane, *cells in zip(chosen, saved, stored, strict=True):
        result.add_row(escape(plane.name), percent(plane.exception_count, plane.dense_bytes), *cells)
    return ["", title, result]


def plane_report(plane: Inspected, *, values: bool) -> list[RenderableType]:
    """One plane for people; with `values` the corner of it as numbers."""
    name = plane.format.scale_type
    lines: list[RenderableType] = [
        escape(plane.name),
        f"{plane.format.title}, {plane.rows} rows x {plane.cols} columns of {name} scales ({plane.dtype})",
    ]
    if plane.is_dense:
        lines.append("It is stored dense. Below is what csf-tool compress would make of it.")
    lines += [f"  {place(located)}" for located in plane.stored]
    lines += ["", _sizes(plane), "", *_facts(plane)]
    lines += [Text.assemble(("fault: ", "bold red"), escape(fault)) for fault in plane.faults]
    lines += ["", "Bases:", histogram(plane.base_counts, "rows", lambda byte: _byte(plane, byte))]
    lines += ["", "Codes of the scales that are not exceptions:", histogram(plane.code_counts, "scales", str)]
    if values:
        corner = _corner(plane)
        shown = f"{name} values of the first {len(corner.rows)} rows and {len(corner.columns) - 1} columns"
        lines += ["", f"{shown}; * marks an exception:", corner]
    return lines


def place(located: Located) -> str:
    """The shard and the bytes of a tensor, its dtype and its shape."""
    tensor = located.tensor
    shape = "x".join(map(str, tensor.shape))
    return f"{escape(located.shard.name)}, bytes {tensor.begin:,} to {tensor.end:,}: {tensor.dtype} {shape}"


def _sizes(plane: Inspected) -> Table:
    """Sizes of the plane as CSF, dense, and at best."""
    rows = {
        "dense": plane.dense_bytes,
        "CSF": plane.csf_bytes,
        "  fixed stream": plane.fixed_bytes,
        "  exceptions": plane.words.nbytes,
        "entropy of single scales": round(plane.entropy_bytes),
    }
    result = Table("part", "size", "of dense")
    for (name, nbytes), cell in zip(rows.items(), sizes(list(rows.values())), strict=True):
        result.add_row(name, cell, percent(nbytes, plane.dense_bytes))
    return result


def _facts(plane: Inspected) -> list[str]:
    exceptions, scales = len(plane.words), plane.scales.size
    lines = [
        f"bases {plane.bases.min()} to {plane.bases.max()}, {count(int(np.count_nonzero(plane.base_counts)), 'value')} "
        f"in {count(plane.rows, 'row')}; each covers {plane.format.window} bytes",
        f"{count(exceptions, 'exception')}, {percent(exceptions, scales)} of the scales"
        + (f": {_exception_bytes(plane)}" if exceptions else ""),
    ]
    if exceptions:
        lines += [_distance(plane), _gathered("rows", plane.row_exceptions), _gathered("columns", plane.col_exceptions)]
    return [*lines, _values(plane)]


def _exception_bytes(plane: Inspected) -> str:
    return f"{EXCEPTION_BYTES} bytes each, they take {percent(plane.words.nbytes, plane.csf_bytes)} of the CSF bytes"


def _distance(plane: Inspected) -> str:
    below, above = -plane.distances[plane.distances < 0], plane.distances[plane.distances > 0]
    parts = [
        f"{len(steps):,} {side} it (median {np.median(steps):g}, at most {steps.max()} steps away)"
        for side, steps in (("below", below), ("above", above))
        if len(steps)
    ]
    return (
        "scales outside their row's window: " + ", ".join(parts)
        if parts
        else "all scales are inside their row's window"
    )


def _gathered(what: str, counts: NDArray[np.intp]) -> str:
    """The rows or columns with the most exceptions, beside the average."""
    most = np.argsort(-counts, kind="stable")[:_PLACES]
    named = ", ".join(f"{i} ({counts[i]})" for i in most if counts[i])
    return f"{what} with the most: {named}; {counts.mean():.1f} on average, {np.count_nonzero(counts == 0):,} have none"


def _values(plane: Inspected) -> str:
    values = plane.values.reshape(-1)
    finite = values[np.isfinite(values)]
    spread = (
        f"{finite.min():.4g} to {finite.max():.4g}, median {np.median(finite):.4g}" if len(finite) else "no numbers"
    )
    odd = {"zero": plane.zero, "negative": plane.negative, "NaN": plane.nan}
    notes = "".join(f"; {n:,} {what}" for what, n in odd.items() if n)
    return f"values {spread}; {count(int(np.count_nonzero(plane.byte_counts)), 'different byte')}{notes}"


def _byte(plane: Inspected, byte: int) -> str:
    return f"{byte} ({scale_values(plane.format)[byte]:.4g})"


def histogram(counts: NDArray[np.intp], what: str, name: Callable[[int], str]) -> Table:
    """A row for each value that occurs, with a bar."""
    result = Table("value", what, "share", "", bars=True)
    for i in np.flatnonzero(counts):
        bar = "#" * max(1, round(40 * counts[i] / counts.max()))
        result.add_row(name(int(i)), f"{counts[i]:,}", percent(counts[i], counts.sum()), bar)
    return result


def _corner(plane: Inspected) -> Table:
    """Values of the first rows and columns."""
    values, marks = plane.values[plane.corner], plane.is_exception[plane.corner]
    result = Table("row", *map(str, range(values.shape[1])), left=0)
    for row, (numbers, marked) in enumerate(zip(values, marks, strict=True)):
        cells = [f"{value:.4g}{'*' if mark else ' '}" for value, mark in zip(numbers, marked, strict=True)]
        result.add_row(str(row), *cells)
    return result
