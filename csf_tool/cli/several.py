"""Several checkpoints in one call: each by itself, one row each, and the highest exit code of all."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from csf_tool import process
from csf_tool.cli.command import explain, open_argument
from csf_tool.codes import Code
from csf_tool.errors import CsfToolError, UsageError

if TYPE_CHECKING:
    from csf_tool.checkpoint.checkpoint import Checkpoint
    from csf_tool.checkpoint.problems import Problem
    from csf_tool.documents.stats import StatsDocument
    from csf_tool.documents.verify import VerifyDocument
    from csf_tool.report.table import Table

R = TypeVar("R")

Outcomes = list[tuple[str, R | CsfToolError]]
"""Each argument, with what was found of it, or with the error that ended the look at it."""


def refuse_for_several(arguments: Sequence[str], options: Mapping[str, object]) -> None:
    """Refuse options that are for one checkpoint where several are given.

    Raises:
        UsageError: one of them is given.
    """
    for option, value in options.items():
        if value:
            raise UsageError(f"{option}: is for one checkpoint, and {len(arguments)} are given ({arguments[1]}, ...)")


def look_at_each(
    arguments: Iterable[str],
    look: Callable[["Checkpoint"], R],
    problems: Callable[[R], list["Problem"]],
    *,
    all_shards: bool,
) -> Outcomes[R]:
    """Look at each checkpoint, and say on stderr what is wrong with it: that stops none of the others."""
    from csf_tool.report.console import print_err
    from csf_tool.report.problems import point_to_entries, worst_first
    from csf_tool.report.several import problem_lines

    codes: list[Code] = []
    outcomes: Outcomes[R] = []
    for argument in arguments:
        found: R | CsfToolError
        try:
            opened = open_argument(argument, all_shards=all_shards)
            found = look(opened)
            opened.stop_fetching()
            print_err(*problem_lines(argument, problems(found)))
            codes += [problem.code for problem in worst_first(problems(found))]
        except Exception as error:
            if process.was_interrupted() or process.shows_tracebacks():
                raise
            found = explain(error, argument)
            codes.append(found.code)
        outcomes.append((argument, found))
    point_to_entries(codes)
    return outcomes


def show_several(
    outcomes: Outcomes[R],
    is_good: Callable[[R], bool],
    document: Callable[[R], "StatsDocument | VerifyDocument"],
    table: Callable[[Outcomes[R]], "Table"],
    *,
    as_json: bool,
) -> int:
    """Print a table with one row for each checkpoint, or one JSON document; the exit code."""
    from csf_tool.documents.problem import error_document
    from csf_tool.documents.several import several_document
    from csf_tool.report.console import print_json, print_out

    codes = [found.exit_code if isinstance(found, CsfToolError) else 1 - is_good(found) for _, found in outcomes]
    if as_json:
        shown = [error_document(each) if isinstance(each, CsfToolError) else document(each) for _, each in outcomes]
        print_json(several_document([argument for argument, _ in outcomes], codes, shown))
    else:
        print_out(table(outcomes))
    return max(codes)
