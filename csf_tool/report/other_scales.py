"""Scales that are no planes, by their kind."""

from collections.abc import Sequence
from itertools import islice

from rich.console import RenderableType

from csf_tool.checkpoint.other_scales import ScaleGroup
from csf_tool.report.table import Table
from csf_tool.text import count, counted, escape, sizes

_SHOWN_KINDS = 20
_SHOWN_SHAPES = 2


def groups_report(groups: Sequence[ScaleGroup]) -> list[RenderableType]:
    """A table of the kinds, and below it why they are no planes."""
    shown = groups[:_SHOWN_KINDS]
    result = Table("scales that are not planes", "tensors", "bytes", "dtype", "shape")
    for group, nbytes in zip(shown, sizes([group.nbytes for group in shown]), strict=True):
        shapes = ["x".join(map(str, shape)) or "scalar" for shape in islice(group.shapes, _SHOWN_SHAPES)]
        more = ", ..." if len(group.shapes) > _SHOWN_SHAPES else ""
        result.add_row(str(group.kind), f"{len(group.scales):,}", nbytes, escape(group.dtype), ", ".join(shapes) + more)
    lines: list[RenderableType] = [result]
    reasons: dict[str, list[ScaleGroup]] = {}
    for group in shown:
        reasons.setdefault(group.kind.why, []).append(group)
    for why, alike in reasons.items():
        names = [escape(found.scale.tensor.name) for group in alike for found in group.scales]
        lines.append(f"{counted(names, 'tensor')}: {escape(why)}")
    if len(groups) > len(shown):
        lines.append(f"... and {count(len(groups) - len(shown), 'more kind')}; --json lists all")
    return lines
