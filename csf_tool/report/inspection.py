"""The reports of `inspect`: one plane, or planes ranked; for people and as JSON."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from csf_tool.checkpoint.model import Located, Plane
from csf_tool.codec.formats import EXCEPTION_BYTES
from csf_tool.codec.values import scale_values
from csf_tool.look.inspection import Inspected
from csf_tool.report.console import table
from csf_tool.text import count, escape, percent, sizes

PLANE_SCHEMA = "csf-tool.inspect-plane/1"
RANKING_SCHEMA = "csf-tool.inspect-planes/1"

_CORNER = 16, 8
_LINE = 80
"""Columns of a terminal that a table must fit."""
_PLACES = 5
"""Rows and columns with the most exceptions that are named."""


def ranking_json(planes: Sequence[Plane]) -> dict[str, Any]:
    """The JSON document of all planes, those with the highest share of exceptions first."""
    return {
        "schema": RANKING_SCHEMA,
        "larger_than_dense": sum(_saved(plane) < 0 for plane in planes),
        "planes": [
            {
                "name": plane.name,
                "shard": plane.fixed.shard.name,
                "format": plane.fmt.name,
                "rows": plane.rows,
                "cols": plane.cols,
                "exceptions": plane.exception_count,
                "exception_share": round(_exception_share(plane), 6),
                "dense_bytes": plane.dense_bytes,
                "csf_bytes": plane.csf_bytes,
                "saved_bytes": _saved(plane),
            }
            for plane in sorted(planes, key=_exception_share, reverse=True)
        ],
    }


def _exception_share(plane: Plane) -> float:
    return plane.exception_count / plane.dense_bytes


def _saved(plane: Plane) -> int:
    return plane.dense_bytes - plane.csf_bytes


def ranking_report(planes: Sequence[Plane], top: int) -> list[RenderableType]:
    """Planes by what their headers say: the most exceptions, the most and least saved, those that grew."""
    larger = [plane for plane in planes if _saved(plane) < 0]
    grown = f"{count(len(larger), 'plane')} larger than dense" if larger else "none is larger than dense"
    lines: list[RenderableType] = [
        f"{count(len(planes), 'plane')}; {grown}.",
        *_ranked("Most exceptions:", planes, _exception_share, top),
        *_ranked("Most bytes saved:", planes, _saved, top),
        *_ranked("Fewest bytes saved:", planes, lambda plane: -_saved(plane), top),
    ]
    if len(planes) > top:
        lines += ["", f"The first {top} of each order; --top shows more, --json all. Name a plane to look into it."]
    return lines


def _ranked(title: str, planes: Sequence[Plane], key: Callable[[Plane], float], top: int) -> list[RenderableType]:
    """The first planes in an order, a line each: their names are too long for a table's column."""
    chosen = sorted(planes, key=key, reverse=True)[:top]
    columns = (
        ["exceptions", *(percent(p.exception_count, p.dense_bytes) for p in chosen)],
        ["CSF", *sizes([p.csf_bytes for p in chosen])],
        ["saved", *sizes([_saved(p) for p in chosen])],
        ["plane", *(escape(p.name) for p in chosen)],
    )
    *numbers, names = columns
    widths = [max(map(len, column)) for column in numbers]
    rows = zip(*numbers, strict=True)
    cells = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return ["", title, *(f"{line}  {name}" for line, name in zip(cells, names, strict=True))]


def plane_json(plane: Inspected) -> dict[str, Any]:
    """The JSON document of one plane. Lists have a place for each row, column, code or byte value.

    What is not a number is null: JSON knows no NaN.
    """
    finite = plane.values[np.isfinite(plane.values)]
    rows, cols = _CORNER
    return {
        "schema": PLANE_SCHEMA,
        "name": plane.name,
        "format": plane.format.name,
        "stored": "dense" if plane.is_dense else "csf",
        "rows": plane.rows,
        "cols": plane.cols,
        "dtype": plane.dtype,
        "tensors": [
            {
                "name": located.tensor.name,
                "shard": located.shard.name,
                "dtype": located.tensor.dtype,
                "shape": list(located.tensor.shape),
                "begin": located.tensor.begin,
                "end": located.tensor.end,
            }
            for located in plane.stored
        ],
        "dense_bytes": plane.dense_bytes,
        "csf_bytes": plane.csf_bytes,
        "fixed_bytes": plane.fixed_bytes,
        "exception_bytes": plane.words.nbytes,
        "entropy_bytes": round(plane.entropy_bytes, 1),
        "values": {
            "lowest": float(finite.min()) if len(finite) else None,
            "median": float(np.median(finite)) if len(finite) else None,
            "highest": float(finite.max()) if len(finite) else None,
            **_odd_values(plane),
        },
        "corner": [
            [None if np.isnan(value) else value for value in row] for row in plane.values[:rows, :cols].tolist()
        ],
        "bases": plane.bases.tolist(),
        "code_counts": plane.code_counts.tolist(),
        "byte_counts": plane.byte_counts.tolist(),
        "exceptions": len(plane.words),
        "exception_positions": plane.positions.tolist(),
        "exception_distances": plane.distances.tolist(),
        "row_exceptions": plane.row_exceptions.tolist(),
        "col_exceptions": plane.col_exceptions.tolist(),
        "faults": [{"code": fault.code.value, "problem": str(fault)} for fault in plane.faults],
    }


def plane_report(plane: Inspected, *, values: bool) -> list[RenderableType]:
    """One plane for people; with `values` the corner of it as numbers."""
    name = plane.format.scale_type
    lines: list[RenderableType] = [
        escape(plane.name),
        f"{plane.format.title}, {plane.rows} rows x {plane.cols} columns of {name} scales ({plane.dtype})",
    ]
    if plane.is_dense:
        lines.append("It is stored dense: what follows is what csf-tool compress would make of it.")
    lines += [f"  {place(located)}" for located in plane.stored]
    lines += ["", _sizes(plane), "", *_facts(plane)]
    lines += [Text.assemble(("fault: ", "bold red"), escape(fault)) for fault in plane.faults]
    lines += ["", "Bases:", histogram(plane.base_counts, "rows", lambda byte: _byte(plane, byte))]
    lines += ["", "Codes of the scales that are no exceptions:", histogram(plane.code_counts, "scales", str)]
    if values:
        corner = _corner(plane)
        shown = f"{name} values of the first {corner.row_count} rows and {len(corner.columns) - 1} columns"
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
    result = table("", "size", "of dense")
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
    return "outside their row's window: " + ", ".join(parts) if parts else "all of them inside their row's window"


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
    notes = "".join(f"; {n:,} {what}" for what, n in _odd_values(plane).items() if n)
    return f"values {spread}; {count(int(np.count_nonzero(plane.byte_counts)), 'different byte')}{notes}"


def _odd_values(plane: Inspected) -> dict[str, int]:
    """Number of scales of each unexpected kind."""
    odd = {"zero": plane.values == 0, "negative": plane.values < 0, "NaN": np.isnan(plane.values)}
    return {what: int(np.count_nonzero(mask)) for what, mask in odd.items()}


def _byte(plane: Inspected, byte: int) -> str:
    return f"{byte} ({scale_values(plane.format)[byte]:.4g})"


def histogram(counts: NDArray[np.intp], what: str, name: Callable[[int], str]) -> Table:
    """A row for each value that occurs, with a bar."""
    result = table("", what, "share", "")
    result.columns[-1].justify = "left"
    for i in np.flatnonzero(counts):
        bar = "#" * max(1, round(40 * counts[i] / counts.max()))
        result.add_row(name(int(i)), f"{counts[i]:,}", percent(counts[i], counts.sum()), bar)
    return result


def _corner(plane: Inspected) -> Table:
    """Values of the first rows, and of as many of the first columns as fit a line."""
    rows, cols = _CORNER
    marks = np.where(plane.is_exception[:rows, :cols], "*", " ")
    columns = [
        [f"{value:.4g}{mark}" for value, mark in zip(values, marked, strict=True)]
        for values, marked in zip(plane.values[:rows, :cols].T, marks.T, strict=True)
    ]
    numbers = [str(row) for row in range(len(marks))]
    ends = np.cumsum([max(map(len, column)) + 2 for column in [numbers, *columns]]) - 2
    fitting = columns[: np.count_nonzero(ends[1:] <= _LINE)]
    result = table("", *map(str, range(len(fitting))), left=0)
    for row in zip(numbers, *fitting, strict=True):
        result.add_row(*row)
    return result
