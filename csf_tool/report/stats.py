"""The report of `stats`."""

from itertools import islice
from typing import TYPE_CHECKING

from rich.console import RenderableType

from csf_tool.choices import GroupBy
from csf_tool.codec.formats import format_by_name
from csf_tool.look.stats import Stats, Totals, groups_of
from csf_tool.report.console import SHOWN_ROWS
from csf_tool.report.other_scales import groups_report
from csf_tool.report.table import Table
from csf_tool.text import count, escape, percent, size, sizes, verb

if TYPE_CHECKING:
    from csf_tool.look.scale_bytes import ScaleBytes


def stats_report(stats: Stats, by: GroupBy) -> list[RenderableType]:
    """The report for people: what it is, the totals, and a table of groups."""
    lines: list[RenderableType] = [f"{escape(stats.path)}: {stats.kind}"]
    if stats.is_csf:
        lines.append("Engines without CSF support cannot load this. To make it dense: csf-tool expand SRC DEST")
    elif stats.dense_total.planes:
        lines.append("It holds no CSF planes: its block scales are stored dense.")
    elif stats.misfits:
        fit = verb(stats.misfits, "does not fit its FP4 weight", "do not fit their FP4 weights")
        lines.append(f"It holds no CSF planes, but {count(stats.misfits, 'block scale')} that {fit}.")
    elif any(group.kind.is_fp4 for group in stats.others):
        lines.append("It holds no CSF planes. Its block scales are in a form that CSF cannot store.")
    elif stats.others:
        found = " and ".join(dict.fromkeys(group.kind.weights for group in stats.others))
        lines.append(f"It holds no CSF planes and no FP4 block scales: its scales belong to {found}.")
    else:
        lines.append("It holds no CSF planes and no FP4 block scales.")
    if stats.incomplete:
        found = "; ".join(f"{code.value}: {number:,}" for code, number in sorted(stats.incomplete.items()))
        lines.append(f"It is not complete. Numbers of faulty tensors: {found}. See the problems below.")
    lines += ["", _summary(stats), "", _counts(stats)]
    if stats.by_projection:
        groups = groups_of(stats, by)
        lines += ["", _table(dict(islice(groups.items(), SHOWN_ROWS)), by, stats.is_csf)]
        if len(groups) > SHOWN_ROWS:
            lines.append(f"... and {len(groups) - SHOWN_ROWS:,} more; --json lists all")
    if stats.others:
        lines += ["", *groups_report(stats.others)]
    if stats.scale_bytes:
        lines += ["", _scale_bytes(stats.scale_bytes), "Such bytes are ordinary data, and no command changes them."]
    if stats.is_csf and stats.dense_total.planes:
        dense = stats.dense_total
        are = verb(dense.planes, "is", "are")
        lines += ["", f"{count(dense.planes, 'more plane')}, {size(dense.dense_bytes)}, {are} stored dense."]
    return lines


def _scale_bytes(found: "ScaleBytes") -> Table:
    result = Table("layer", "format", "scales", "NaN", "negative", "zero bytes")
    for group, counts in found.counts.items():
        numbers = counts.scales, counts.nan, counts.negative, counts.zero
        result.add_row(escape(group.layer), group.fmt.title, *(f"{n:,}" for n in numbers))
    return result


def _counts(stats: Stats) -> str:
    total = stats.shown_total
    line = f"{count(total.planes, 'plane')} in {count(stats.shards, 'shard')}, {count(stats.tensors, 'tensor')}"
    if stats.is_csf:
        line += (
            f"; {count(total.exceptions, 'exception')}, {percent(total.exceptions, total.dense_bytes)} of the scales"
        )
    return line


def _summary(stats: Stats) -> Table:
    """Sizes of scales with their parts, of each format where there are several, and of all tensors.

    What only CSF has is blank for a dense checkpoint.
    """
    total = stats.shown_total
    parts = stats.by_format if len(stats.by_format) > 1 else {}
    apart = sum(group.nbytes for group in stats.others if group.kind.is_fp4)
    scales = (
        ("block scales that are not planes", apart)
        if apart and not total.planes
        else ("block scales", total.dense_bytes)
    )
    dense = dict([scales]) | {f"  {format_by_name(name).title}": part.dense_bytes for name, part in parts.items()}
    dense["all tensors"] = stats.dense_payload_bytes
    result = Table("size of", "dense", "CSF", "saved", "saved/dense")
    if not stats.is_csf:
        for name, cell in zip(dense, sizes(list(dense.values())), strict=True):
            result.add_row(name, cell, "", "", "")
        return result
    stored = [total.csf_bytes, *(part.csf_bytes for part in parts.values()), stats.payload_bytes]
    saved = [whole - rest for whole, rest in zip(dense.values(), stored, strict=True)]
    shares = [percent(*of) for of in zip(saved, dense.values(), strict=True)]
    fixed, exceptions, *stored_cells = sizes([total.fixed_bytes, total.exception_bytes, *stored])
    rows = list(zip(dense, sizes(list(dense.values())), stored_cells, sizes(saved), shares, strict=True))
    rows[1:1] = [("  fixed streams", "", fixed, "", ""), ("  exceptions", "", exceptions, "", "")]
    for row in rows:
        result.add_row(*row)
    return result


def _table(groups: dict[str, Totals], by: GroupBy, csf: bool) -> Table:
    """One row a group."""
    dense, stored = (sizes([t.dense_bytes for t in groups.values()]), sizes([t.csf_bytes for t in groups.values()]))
    result = Table(by, "planes", "dense", "CSF", "CSF/dense", "exceptions")
    for (name, totals), dense_size, csf_size in zip(groups.items(), dense, stored, strict=True):
        result.add_row(
            escape(name),
            f"{totals.planes:,}",
            dense_size,
            csf_size if csf else "",
            percent(totals.csf_bytes, totals.dense_bytes) if csf else "",
            percent(totals.exceptions, totals.dense_bytes) if csf else "",
        )
    return result
