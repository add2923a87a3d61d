"""The command line: parse, call one operation, render, exit code.

Heavy modules are imported inside the commands, so that `csf-tool --help` costs no more than typer itself.
"""

import functools
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from csf_tool.errors import CsfToolError
from csf_tool.version import __version__

P = ParamSpec("P")

TRACEBACK_VARIABLE = "CSF_TOOL_TRACEBACK"

_INTERRUPTED = 130
_NOT_HERE = 3

app = typer.Typer(
    name="csf-tool",
    help="Inspect, verify and expand FP4 checkpoints whose block scales are CSF-compressed.",
    epilog="Exit codes: 0 good; 1 the checkpoint is at fault; 2 wrong usage; 3 it could not be done here "
    "(disk, network, permission, a missing extra); 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class By(StrEnum):
    """What `stats` groups planes by."""

    LAYER = "layer"
    SHARD = "shard"
    PROJECTION = "projection"


CheckpointArgument = Annotated[
    Path,
    typer.Argument(metavar="CHECKPOINT", help="A checkpoint's folder (either CSF layout), or one .safetensors file."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def _guarded(command: Callable[P, int]) -> Callable[P, None]:
    """Turn a command's result into the exit code, and every error into one line on stderr."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except KeyboardInterrupt:
            _say("interrupted")
            code = _INTERRUPTED
        except BrokenPipeError:  # the reader of stdout (`| head`) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except Exception as error:
            if os.environ.get(TRACEBACK_VARIABLE) == "1":
                raise
            code = _explain(error)
        raise typer.Exit(code)

    return run


def _explain(error: Exception) -> int:
    """Say what went wrong in one line; the exit code."""
    if isinstance(error, CsfToolError):
        _say(str(error))
        return error.exit_code
    if isinstance(error, OSError):
        _say(f"{error.filename or 'input/output'}: {error.strerror or error}")
    else:
        _say(f"internal error: {type(error).__name__}: {error} ({TRACEBACK_VARIABLE}=1 shows where)")
    return _NOT_HERE


def _say(message: str) -> None:
    from csf_tool.report.console import print_err
    from csf_tool.text import escape

    print_err(f"csf-tool: {escape(message)}")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"csf-tool {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
@_guarded
def stats(
    checkpoint: CheckpointArgument,
    by: Annotated[By, typer.Option(help="What the table groups planes by.")] = By.PROJECTION,
    as_json: JsonOption = False,
) -> int:
    """Report compressed against dense scale sizes, from the headers alone.

    Example: csf-tool stats ~/models/Qwen3.8-Flash-Next-FP4-Local --by layer
    """
    from csf_tool.checkpoint.layouts import open_checkpoint
    from csf_tool.checkpoint.problems import errors
    from csf_tool.report.console import print_json, print_out, print_problems
    from csf_tool.report.stats import stats_json, stats_report
    from csf_tool.stats import collect_stats

    found = collect_stats(open_checkpoint(checkpoint))
    if as_json:
        print_json(stats_json(found))
    else:
        print_out(*stats_report(found, by.value))
    print_problems(found.problems)
    return 1 if errors(found.problems) else 0


@app.command()
@_guarded
def verify(
    checkpoint: CheckpointArgument,
    against: Annotated[
        Path | None, typer.Option(metavar="DENSE", help="A dense checkpoint that every tensor must equal.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Prove the decoded bytes, bit for bit, by every hash there is, and say what could not be proved.

    Example: csf-tool verify ~/models/DeepSeek-V4.1-Flash-lossless-CSF
    """
    from csf_tool.checkpoint.layouts import open_checkpoint
    from csf_tool.decoder import NumpyDecoder
    from csf_tool.report.console import print_json, print_out
    from csf_tool.report.progress import progress_bar
    from csf_tool.report.verify import verify_json, verify_report
    from csf_tool.verify import verify as run

    opened = open_checkpoint(checkpoint)
    reference = open_checkpoint(against) if against else None
    with progress_bar() as progress:
        found = run(opened, reference, NumpyDecoder(), progress)
    if as_json:
        print_json(verify_json(found))
    else:
        print_out(*verify_report(found))
    return 0 if found.ok else 1


@app.command()
@_guarded
def expand(
    checkpoint: CheckpointArgument,
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="A new or empty folder.")],
    as_json: JsonOption = False,
) -> int:
    """Write the ordinary dense checkpoint: the original bit for bit where its receipts allow.

    Example: csf-tool expand ~/models/Qwen3.8-Flash-Next-FP4-Local /data/Qwen3.8-Flash-Next-NVFP4
    """
    from csf_tool.checkpoint.layouts import open_checkpoint
    from csf_tool.checkpoint.problems import Severity
    from csf_tool.decoder import NumpyDecoder
    from csf_tool.expand import expand as run
    from csf_tool.report.console import print_json, print_out, print_problems
    from csf_tool.report.expand import expand_json, expand_report
    from csf_tool.report.progress import progress_bar

    opened = open_checkpoint(checkpoint)
    print_problems([p for p in opened.problems if p.severity is not Severity.ERROR])  # errors: expand raises them
    with progress_bar() as progress:
        done = run(opened, destination, NumpyDecoder(), progress)
    if as_json:
        print_json(expand_json(done))
    else:
        print_out(*expand_report(done))
    return 0


@app.command()
@_guarded
def demo(
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Leave the checkpoints in this new or empty folder.")
    ] = None,
) -> int:
    """Make a small NVFP4 MoE checkpoint, compress it, and run the other commands on it.

    Example: csf-tool demo --keep /tmp/csf-demo
    """
    from csf_tool.demo import run

    return run(keep)


def main() -> None:
    """Run the command line."""
    app()
