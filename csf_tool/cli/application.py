"""All commands, by group, each with a few words.

Heavy modules are imported inside the commands, so that `csf-tool --help` costs no more than typer itself.
"""

from typing import Annotated

import typer

from csf_tool.cli.look import inspect, ls, plan, stats
from csf_tool.cli.measure import bench, demo
from csf_tool.cli.parsing import Command, Commands
from csf_tool.cli.prove import identity, verify
from csf_tool.cli.write import compress, convert, expand, finish
from csf_tool.version import __version__

app = typer.Typer(
    name="csf-tool",
    cls=Commands,
    help="Inspect, verify and expand FP4 checkpoints whose block scales are CSF-compressed.",
    epilog="Exit codes: 0 success; 1 the checkpoint is at fault; 2 wrong usage; 3 not possible here "
    "(disk, network, permission, missing package); 130 interrupted.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_GROUPS = {
    "Look": {
        stats: "Show sizes, compressed and dense",
        ls: "List tensors: dtypes, shapes and sizes",
        inspect: "Show one plane, or rank all",
        plan: "Show how much GPU memory is needed",
    },
    "Prove": {
        verify: "Check every byte and every hash",
        identity: "Print one hash of the whole checkpoint",
    },
    "Write": {
        expand: "Turn CSF into an ordinary checkpoint",
        finish: "Complete a run made in parts",
        compress: "Turn an ordinary checkpoint into CSF",
        convert: "Change from one CSF layout to another",
    },
    "Measure and try": {
        bench: "Time the decode on a GPU",
        demo: "Try everything on a small checkpoint",
    },
}
"""The commands, by group, as the help shows them."""

for _group, _commands in _GROUPS.items():
    for _command, _words in _commands.items():
        app.command(cls=Command, rich_help_panel=_group, short_help=_words)(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"csf-tool {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
