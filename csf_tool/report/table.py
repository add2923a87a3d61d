"""Tables for people and for other programs: fitted to a terminal without breaking a name, or a record a line."""

import re
from collections.abc import Sequence
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_GAP = 2
_SEPARATORS = re.compile(r"[./\\-]")
_STACKED_INDENT = 4

Rows = list[list[str]]


class Table:
    """A table whose first `left` columns are text and whose others are numbers, unless `bars` makes the last text.

    The first column has what the rows are about.
    """

    def __init__(self, *columns: str, left: int = 1, bars: bool = False) -> None:
        self.columns = list(columns)
        self.rows: Rows = []
        self._left = left
        self._bars = bars

    def add_row(self, *cells: str) -> None:
        """Add a row; columns that it has no cell for are blank."""
        self.rows.append([*cells, *[""] * (len(self.columns) - len(cells))])

    def records(self) -> list[str]:
        """The header and the rows as programs read them: whole cells with a tab between, and nothing to align them."""
        return ["\t".join(cell.strip() for cell in row) for row in [self.columns, *self.rows]]

    def lines(self, width: int) -> list[Text]:
        """The table for a terminal. Where room is short, in this order:

        What all names begin with is said once; words of the first column wrap; columns are left out from the right,
        which is said; a name that is wider still has a line to itself. No name is ever broken.
        """
        rows, beginning = self.rows, list[Text]()
        if _width(self._widths(rows)) > width and (begin := _common_beginning([row[0] for row in rows])):
            rows = [[row[0][len(begin) :], *row[1:]] for row in rows]
            beginning = wrapped(Text(f"{self.columns[0]}: all names begin with {begin}".lstrip(": ")), width)
        if _width(self._widths(rows)) > width:
            rows = self._with_wrapped_words(rows, width)
        widths = self._widths(rows)
        is_stacked = _width(widths[:2]) > width
        first = int(is_stacked)
        room = width - _STACKED_INDENT * first
        shown = slice(first, first + max(1, _fitting(widths[first:], room)))
        said = [] if is_stacked else beginning
        if hidden := ", ".join(filter(None, self.columns[shown.stop :])):
            said = said + wrapped(Text(f"(the terminal is too narrow for: {hidden})"), width)
        if not is_stacked:
            header, *lines = [self._line(row, widths, shown) for row in [self.columns, *rows]]
            return [*said, Text(header, "bold"), *map(Text, lines)]
        for style, row in zip(["bold"] + [""] * len(self.rows), [self.columns, *self.rows], strict=True):
            said += [*wrapped(Text(row[0], style), width), Text(self._line(row, widths, shown), style)]
        return said

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Give the lines for a terminal; see rich."""
        for line in self.lines(options.max_width):
            line.no_wrap, line.overflow = True, "ignore"
            yield line

    def _widths(self, rows: Rows) -> list[int]:
        return [max(map(cell_len, column)) for column in zip(self.columns, *rows, strict=True)]

    def _with_wrapped_words(self, rows: Rows, width: int) -> Rows:
        """The rows with the first column wrapped at blanks, if that makes them fit."""
        widths = self._widths(rows)
        room = width - (_width(widths) - widths[0])
        if room < max((cell_len(word) for row in [self.columns, *rows] for word in row[0].split()), default=0):
            return rows
        result = []
        for first, *others in rows:
            lines = [str(line) for line in wrapped(Text(first), room)]
            result += [[lines[0], *others], *([line, *[""] * len(others)] for line in lines[1:])]
        return result

    def _line(self, cells: Sequence[str], widths: Sequence[int], shown: slice) -> str:
        """The cells of some columns, aligned. Without the first column, which has the name, they are indented."""
        last = len(self.columns) - 1
        aligned = []
        for i in range(len(cells))[shown]:
            blanks = " " * (widths[i] - cell_len(cells[i]))
            is_text = i < self._left or (self._bars and i == last)
            aligned.append(cells[i] + blanks if is_text else blanks + cells[i])
        indent = " " * _STACKED_INDENT if shown.start else ""
        return (indent + (" " * _GAP).join(aligned)).rstrip()


def wrapped(text: Text, width: int) -> list[Text]:
    """A paragraph in lines, broken at blanks alone; a word that is wider than the terminal stays whole.

    The next lines begin below the last column of a line that has columns, or two blanks deeper than an indented one.
    """
    plain = str(text)
    own = len(plain) - len(plain.lstrip())
    columns = [found.end() for found in re.finditer(r"\S {2,}(?=\S)", plain) if found.end() <= width // 2]
    hang = columns[-1] if columns else own + 2 if own else 0
    ends: list[int] = []
    used = own
    for word in re.finditer(r"(\S+)(\s*)", plain):
        length = cell_len(word[1])
        if used + length > width and word.start() > own:
            ends.append(word.start())
            used = hang
        used += length + len(word[2])
    lines = list(text.divide(ends)) if ends else [text]
    for i, line in enumerate(lines):
        line.rstrip()
        if i:
            lines[i] = Text(" " * hang).append_text(line)
    return lines


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _fitting(widths: Sequence[int], room: int) -> int:
    """The number of columns that fit."""
    return sum(end - _GAP <= room for end in accumulate(width + _GAP for width in widths))


def _common_beginning(names: Sequence[str]) -> str:
    """Give what all names begin with, up to a dot, a slash or a hyphen, if there are several and each has more."""
    if len(names) < 2:
        return ""
    first, last = min(names), max(names)
    same = next((i for i, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), len(first))
    ends = [found.end() for found in _SEPARATORS.finditer(first[:same])]
    ends = [end for end in ends if all(len(name) > end for name in names)]
    return names[0][: ends[-1]] if ends else ""
