"""The reports of commands that were given several checkpoints: one row each, and a few lines about what is wrong."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from csf_tool.checkpoint.causes import lines_of
from csf_tool.checkpoint.problems import Problem, errors
from csf_tool.errors import CsfToolError
from csf_tool.look.stats import Stats
from csf_tool.report.problems import problem_line
from csf_tool.report.table import Table
from csf_tool.report.verify import verdict_words
from csf_tool.text import count, escape, percent, size, some

if TYPE_CHECKING:
    from csf_tool.prove.verdict import Verified

_SHOWN = 3
"""Most causes that are told of one checkpoint, and most codes in a cell."""


def problem_lines(argument: str, problems: list[Problem]) -> list[Text]:
    """Lines on the first few causes of what is wrong with one of several checkpoints, the worst first."""
    lines = lines_of(problems)
    shown = [problem_line(line.severity, f"{escape(argument)}: {line.text}") for line in lines[:_SHOWN]]
    if len(lines) > _SHOWN:
        shown.append(Text(f"  ... {count(len(problems), 'problem')} in all: give {escape(argument)} alone to see them"))
    return shown


def stats_table(outcomes: Sequence[tuple[str, Stats | CsfToolError]]) -> Table:
    """The sizes of each checkpoint; what a dense one does not have is blank, as in the report of one."""
    result = Table(
        "checkpoint", "fault", "planes", "dense", "CSF", "CSF/dense", "all tensors", "kind", left=2, bars=True
    )
    for argument, found in outcomes:
        if isinstance(found, CsfToolError):
            result.add_row(escape(argument), found.code.value)
            continue
        total = found.total if found.is_csf else found.dense_total
        result.add_row(
            escape(argument),
            _codes(found.problems),
            f"{total.planes:,}",
            size(total.dense_bytes),
            size(total.csf_bytes) if found.is_csf else "",
            percent(total.csf_bytes, total.dense_bytes) if found.is_csf else "",
            size(found.payload_bytes),
            escape(found.kind),
        )
    return result


def verify_table(outcomes: Sequence[tuple[str, "Verified | CsfToolError"]]) -> Table:
    """The verdict on each checkpoint in the words that its report begins with."""
    result = Table("checkpoint", "verdict", "fault", "planes", "shards", "kind", left=3, bars=True)
    for argument, found in outcomes:
        if isinstance(found, CsfToolError):
            result.add_row(escape(argument), "NO VERDICT", found.code.value)
            continue
        codes = _codes(problem for check in found.checks for problem in check.failures)
        planes = f"{found.decode.checked:,}" if found.decode.checked else ""
        result.add_row(
            escape(argument), verdict_words(found), codes, planes, f"{found.shards[1]:,}", escape(found.kind)
        )
    return result


def _codes(problems: Iterable[Problem]) -> str:
    """The codes of errors, each once."""
    codes = list(dict.fromkeys(problem.code.value for problem in errors(problems)))
    return some(codes, _SHOWN)
