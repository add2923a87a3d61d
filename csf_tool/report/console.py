"""The two streams: data on stdout; progress, warnings and errors on stderr, in every mode."""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import IO

from rich.console import Console, RenderableType
from rich.text import Text

from csf_tool.report.table import Table, wrapped

SHOWN_ROWS = 1000
"""Most rows of a table: more than any real checkpoint has layers or shards, and no more than one can print in time."""

_USUAL_WIDTH = 80


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
    """Print lines and tables: fitted to a terminal, or a record or paragraph a line where there is none."""
    width = terminal_width(console.file)
    for line in lines:
        if isinstance(line, Table) and width is None:
            for record in line.records():
                console.file.write(f"{record}\n")  # rich would turn tabs into blanks
        elif isinstance(line, str | Text | Table):
            for piece in _pieces(line, width):
                console.print(piece, soft_wrap=True)
        else:
            console.print(line)


def _pieces(line: str | Text | Table, width: int | None) -> Iterable[Text]:
    if isinstance(line, Table):
        return line.lines(width or _USUAL_WIDTH)
    text = Text(line) if isinstance(line, str) else line
    if width is None:
        return [text]
    return [piece for paragraph in text.split("\n", allow_blank=True) for piece in wrapped(paragraph, width)]


def terminal_width(stream: IO[str]) -> int | None:
    """The columns of the terminal that a stream goes to; None if it goes to a file or another program."""
    if not stream.isatty():
        return None
    stated = os.environ.get("COLUMNS", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH


def print_json(document: Mapping[str, object]) -> None:
    """Print exactly one JSON document to stdout, piece by piece: as one text, a million problems would fill memory."""
    json.dump(document, sys.stdout, indent=2, ensure_ascii=True)
    sys.stdout.write("\n")
