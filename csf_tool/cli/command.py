"""The parts that all commands share: opening checkpoints, printing, ending."""

import functools
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer

from csf_tool.errors import CsfToolError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from csf_tool.checkpoint.model import Checkpoint

P = ParamSpec("P")
R = TypeVar("R")

TRACEBACK_VARIABLE = "CSF_TOOL_TRACEBACK"

_at_end = ExitStack()
"""Callbacks for the end of the command."""

_INTERRUPTED = 130
_NOT_HERE = 3


def guarded(command: Callable[P, int]) -> Callable[P, None]:
    """Turn a command's result into the exit code, and every error into one line on stderr."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except KeyboardInterrupt:
            say("interrupted" + ("; the same command goes on from there" if "destination" in kwargs else ""))
            code = _INTERRUPTED
        except BrokenPipeError:  # the reader of stdout, such as `head`, has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except Exception as error:
            if os.environ.get(TRACEBACK_VARIABLE) == "1":
                raise
            code = _explain(error)
        finally:
            _at_end.close()
        raise typer.Exit(code)

    return run


def _explain(error: Exception) -> int:
    """Say what went wrong in one line; the exit code."""
    if isinstance(error, CsfToolError):
        say(str(error))
        return error.exit_code
    if isinstance(error, OSError):
        say(f"{error.filename or 'input/output'}: {error.strerror or error}")
    else:
        say(f"internal error: {type(error).__name__}: {error} ({TRACEBACK_VARIABLE}=1 shows where)")
    return _NOT_HERE


def say(message: str) -> None:
    """Print one line of the command's own to stderr, names made harmless."""
    from csf_tool.report.console import print_err
    from csf_tool.text import escape

    print_err(f"csf-tool: {escape(message)}")


def open_argument(argument: str) -> "Checkpoint":
    """The checkpoint that an argument names, here or on the Hub."""
    from csf_tool.checkpoint.open import open_checkpoint
    from csf_tool.hub.name import find_source

    source = find_source(argument, say)
    if not isinstance(source, Path):
        _at_end.callback(source.stop)  # or the process would wait for what is fetched ahead
    return open_checkpoint(source)


def show(
    result: R, document: Callable[[R], dict[str, Any]], report: Callable[[R], list["RenderableType"]], as_json: bool
) -> None:
    """Print a result: as one JSON document, or as lines and tables."""
    from csf_tool.report.console import print_json, print_out

    if as_json:
        print_json(document(result))
    else:
        print_out(*report(result))


def check_figure(path: Path | None) -> None:
    """Refuse a figure that cannot be drawn before there is work to lose."""
    if path:
        from csf_tool.report.figures import require_figures

        require_figures(path)
