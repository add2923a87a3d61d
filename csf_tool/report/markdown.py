"""The report of `stats` in GitHub-flavoured Markdown, for model cards and issues: exact where people compare."""

import re
from collections.abc import Iterable

from csf_tool.choices import GroupBy
from csf_tool.codec.formats import format_by_name
from csf_tool.look.stats import Stats, Totals, groups_of
from csf_tool.text import count, escape, percent, size


def stats_markdown(stats: Stats, by: GroupBy) -> list[str]:
    """The lines: what it is, the sizes of all planes and of each format, and a row a group."""
    groups = {_cell(name): totals for name, totals in groups_of(stats, by).items()}
    total = stats.shown_total
    totals = {"all block scales": total}
    if len(stats.by_format) > 1:
        totals |= {format_by_name(name).title: part for name, part in stats.by_format.items()}
    return [
        f"{_name(stats.path)}: {_name(stats.kind)}; {count(stats.shards, 'shard')}, "
        f"{count(stats.tensors, 'tensor')}, {_all_tensors(stats)}",
        "",
        *_table("scales", totals, stats.is_csf),
        *(["", *_table(by.value, groups, stats.is_csf)] if groups else []),
    ]


def _all_tensors(stats: Stats) -> str:
    if not stats.is_csf:
        return size(stats.dense_payload_bytes)
    return f"{size(stats.payload_bytes)} ({size(stats.dense_payload_bytes)} dense)"


def _table(title: str, groups: dict[str, Totals], csf: bool) -> list[str]:
    """A table with a row a group, whose names are Markdown; what only CSF has is left out for dense planes."""
    titles = [title, "planes", "dense", *(["CSF", "CSF/dense", "exceptions"] if csf else [])]
    rules = ["---", *["---:"] * (len(titles) - 1)]
    return [_row(titles), _row(rules), *(_row(_cells(name, totals, csf)) for name, totals in groups.items())]


def _cells(name: str, totals: Totals, csf: bool) -> list[str]:
    cells = [name, f"{totals.planes:,}", size(totals.dense_bytes)]
    if not csf:
        return cells
    exceptions = f"{totals.exceptions:,} ({percent(totals.exceptions, totals.dense_bytes) or '0%'})"
    return [*cells, size(totals.csf_bytes), percent(totals.csf_bytes, totals.dense_bytes), exceptions]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _name(name: str) -> str:
    """A name as code: nothing in it is markup, a mention or a link."""
    text = escape(name)
    if not text.strip():
        return ""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    blank = " " if "`" in text else ""
    return f"{fence}{blank}{text}{blank}{fence}"


def _cell(name: str) -> str:
    """A name in a table, where a pipe ends a cell even in code."""
    return _name(name).replace("|", r"\|")
