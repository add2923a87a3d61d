"""The two streams: data on stdout; progress, warnings and errors on stderr, in every mode."""

import json
import sys
from collections.abc import Iterable, Mapping

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from csf_tool.checkpoint.causes import Line, lines_of
from csf_tool.checkpoint.problems import Problem, Severity

SHOWN_ROWS = 1000
"""Most rows of a table: more than any real checkpoint has layers or shards, and no more than one can print in time."""

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}


def print_out(*lines: RenderableType) -> None:
    """Print to stdout. Strings are plain text: nothing in them is markup."""
    _print(_console(), lines)


def print_err(*lines: RenderableType) -> None:
    """Print to stderr."""
    _print(_console(stderr=True), lines)


def _console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: names may hold brackets or colons, which rich takes for markup or emoji."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def _print(console: Console, lines: Iterable[RenderableType]) -> None:
    for line in lines:
        if isinstance(line, str | Text):  # a long name stays in one piece, whatever the terminal's width
            console.print(Text(line) if isinstance(line, str) else line, soft_wrap=True)
        else:
            console.print(line)


def print_json(document: Mapping[str, object]) -> None:
    """Print exactly one JSON document to stdout, piece by piece: as one text, a million problems would fill memory."""
    json.dump(document, sys.stdout, indent=2, ensure_ascii=True)
    sys.stdout.write("\n")


def print_problems(problems: list[Problem], lister: str = "csf-tool verify --json") -> None:
    """Print problems to stderr, a line a cause, the worst first; `lister` is what lists every one."""
    lines = lines_of(problems)
    print_err(*(Text.assemble((f"{line.severity}: ", _STYLES[line.severity]), line.text) for line in lines))
    print_err(*hint(lines, lister))


def hint(lines: list[Line], lister: str) -> list[str]:
    """Sentence on the place where every problem is listed, if some lines stand for several."""
    number = sum(line.problems for line in lines)
    return [f"... {number:,} problems in all: {lister} lists each"] if number > len(lines) else []


def table(*columns: str, left: int = 1) -> Table:
    """An empty table whose first `left` columns are text and whose others are numbers."""
    result = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        if i < left:
            result.add_column(column, overflow="fold")
        else:
            result.add_column(column, justify="right", no_wrap=True)
    return result
