"""The parts that all commands share: opening checkpoints, printing, ending."""

import errno
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from csf_tool import process
from csf_tool.cli.options import VolumeOptions
from csf_tool.cli.spread import declare
from csf_tool.errors import CsfToolError, EnvironmentFault, system_fault

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from csf_tool.checkpoint.checkpoint import Checkpoint

R = TypeVar("R")

_at_end = ExitStack()
"""Callbacks for the end of the command."""


def guarded(command: Callable[..., int]) -> Callable[..., None]:
    """Turn a command's result into the exit code, and every error into one line on stderr; add `-q` and `-v`."""

    @functools.wraps(command)
    def run(**kwargs: Any) -> None:
        volume = VolumeOptions(quiet=kwargs.pop("quiet", False), verbose=kwargs.pop("verbose", False))
        words = "interrupted" + ("; run the same command again to continue" if "destination" in kwargs else "")
        try:
            with process.Interruptible(words):
                if not process.has_memory(process.COMMAND_BYTES):
                    raise MemoryError
                volume.choose()
                code = command(**kwargs)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) or process.was_interrupted():  # which may arrive as something else
                process.say_interrupted(words)
                code = process.INTERRUPTED
            elif process.shows_tracebacks():
                raise
            else:
                failure = explain(error)
                code = failure.exit_code
                if kwargs.get("as_json"):
                    print_error(failure)
        finally:
            _at_end.close()
        raise typer.Exit(code)

    declare(run, [*_parameters(command), *_parameters(VolumeOptions)])
    return run


def _parameters(of: Callable[..., object]) -> Iterable[inspect.Parameter]:
    return inspect.signature(of, eval_str=True).parameters.values()


def explain(error: Exception, about: str = "") -> CsfToolError:
    """Say in one line what went wrong, with the one of several checkpoints that it is `about`; give it as an error."""
    if isinstance(error, OSError) and not isinstance(error, CsfToolError) and error.errno != errno.ENOMEM:
        error = system_fault(error)
    if isinstance(error, CsfToolError):
        from csf_tool.report.problems import point_to_entries

        say(str(error) if error.file.startswith(about) else f"{about}: {error}")
        if not about:
            point_to_entries([error.code])
    else:
        from csf_tool.text import escape

        error = EnvironmentFault(process.words_for(error))
        process.say(escape(str(error)))  # with what is loaded: memory may be short
    return error


def print_error(error: CsfToolError) -> None:
    """Print the document of an error to stdout, in place of the one that the command would have printed."""
    try:
        from csf_tool.documents.problem import error_document
        from csf_tool.report.console import print_json

        print_json(error_document(error))
    except (ImportError, MemoryError):  # memory is too short for this as well: standard error has it
        pass


def say(message: str) -> None:
    """Print one line of the command's own to stderr, names made harmless."""
    from csf_tool.report.console import print_err
    from csf_tool.text import escape

    print_err(f"csf-tool: {escape(message)}")


def note(message: str) -> None:
    """Say something that is good to know, unless `--quiet` forbids it."""
    from csf_tool.report.volume import is_quiet

    if not is_quiet():
        say(message)


def detail(message: str) -> None:
    """Say something that only `--verbose` asks for."""
    from csf_tool.report.volume import is_verbose

    if is_verbose():
        say(message)


def open_argument(argument: str, *, all_shards: bool = False) -> "Checkpoint":
    """The checkpoint that an argument names, here or on the Hub."""
    from csf_tool.checkpoint.open import open_checkpoint
    from csf_tool.hub.name import find_source
    from csf_tool.text import count

    source = find_source(argument, note)
    if not isinstance(source, Path):
        _at_end.callback(source.stop)  # or the process would wait for what is fetched ahead
    opened = open_checkpoint(source, all_shards=all_shards)
    detail(f"{opened.label}: {opened.kind}, {count(len(opened.shards), 'shard')} in {opened.root}")
    return opened


def show(
    result: R,
    document: Callable[[R], Mapping[str, object]],
    report: Callable[[R], list["RenderableType"]],
    as_json: bool,
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
        from csf_tool.disk.new_file import require_writable
        from csf_tool.report.figures.canvas import require_figures

        require_writable(path, "--figure")
        require_figures(path)


def write_figure(figure: "Figure", path: Path) -> None:
    """Write a figure, and say so unless `--quiet` forbids it."""
    from csf_tool.report.console import print_err
    from csf_tool.report.figures.canvas import save
    from csf_tool.report.volume import is_quiet
    from csf_tool.text import escape

    save(figure, path)
    if not is_quiet():
        print_err(f"Wrote {escape(path)}")
