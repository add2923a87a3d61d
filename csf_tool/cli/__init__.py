"""The command line: parse, call one operation, render, exit code.

Heavy modules are imported inside the commands, so that `csf-tool --help` costs no more than typer itself.
"""

import io
import os
import sys
from typing import Annotated

import typer

from csf_tool import garbage
from csf_tool.cli.look import inspect, plan, stats
from csf_tool.cli.measure import bench, demo
from csf_tool.cli.prove import identity, verify
from csf_tool.cli.write import compress, convert, expand, finish
from csf_tool.version import __version__

app = typer.Typer(
    name="csf-tool",
    help="Inspect, verify and expand FP4 checkpoints whose block scales are CSF-compressed.",
    epilog="Exit codes: 0 good; 1 the checkpoint is at fault; 2 wrong usage; 3 it could not be done here "
    "(disk, network, permission, a missing extra); 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_GROUPS = {
    "Look": (stats, inspect, plan),
    "Prove": (verify, identity),
    "Write": (expand, finish, compress, convert),
    "Measure and try": (bench, demo),
}
"""The commands, by group, as the help shows them."""

for _group, _commands in _GROUPS.items():
    for _command in _commands:
        app.command(rich_help_panel=_group)(_command)


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


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads of numpy would forbid forked workers
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may have letters that the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    garbage.set_for_one_command()
    app()
