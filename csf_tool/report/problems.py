"""Problems on stderr, a line a cause, and the entries of docs/troubleshooting.md that explain them."""

import sys
from collections.abc import Iterable

from rich.text import Text

from csf_tool.checkpoint.causes import Line, lines_of
from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.codes import Code
from csf_tool.report.console import print_err, terminal_width
from csf_tool.report.volume import is_quiet, is_verbose

_PAGE = "docs/troubleshooting.md"

_MOST = 3
"""Most entries of the page that one line names."""

_NO_ENTRY = {Code.USAGE, Code.ENVIRONMENT}
"""Codes of too many messages for one explanation."""

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}


def print_problems(problems: list[Problem], lister: str = "csf-tool verify --json") -> None:
    """Print problems, the worst first, and where they are explained; `lister` is what lists every one."""
    lines = lines_of(problems)
    print_err(*(problem_line(line.severity, line.text) for line in lines))
    print_err(*hint(lines, lister))
    point_to_entries(problem.code for problem in worst_first(problems))


def problem_line(severity: Severity, text: str) -> Text:
    """A line about a problem, its severity first."""
    return Text.assemble((f"{severity}: ", _STYLES[severity]), text)


def hint(lines: list[Line], lister: str) -> list[str]:
    """Sentence on the place where every problem is listed, if some lines stand for several."""
    number = sum(line.problems for line in lines)
    return [f"... {number:,} problems in all; {lister} lists each"] if number > len(lines) else []


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """The errors, then the warnings."""
    return sorted(problems, key=lambda problem: problem.severity is not Severity.ERROR)


def point_to_entries(codes: Iterable[Code]) -> None:
    """Print where messages of these codes are explained: to a person at a terminal, or with `--verbose`."""
    if is_quiet() or not (is_verbose() or terminal_width(sys.stderr)):
        return
    if anchors := [f"#{code}" for code in dict.fromkeys(codes) if code not in _NO_ENTRY][:_MOST]:
        print_err(f"See {_PAGE}{', '.join(anchors)}")
