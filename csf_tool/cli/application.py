"""All commands, by group, each with a few words.

Heavy modules are imported inside the commands, so that `csf-tool --help` costs no more than typer itself.
"""

from typing import Annotated

import typer

from csf_tool.cli.command import print_error
from csf_tool.cli.look import inspect, plan, stats
from csf_tool.cli.measure import bench, demo
from csf_tool.cli.parsing import Command, Commands
from csf_tool.cli.prove import identity, verify
from csf_tool.cli.write import compress, convert, expand, finish
from csf_tool.errors import UsageError
from csf_tool.version import __version__

_Mistake: type[Exception] = typer.BadParameter.__bases__[0]
"""The class of all mistakes in arguments: typer may have a click of its own, which it does not name."""


class Commands(typer.core.TyperGroup):
    """All commands. A mistake in the arguments of one is a JSON document as well, with `--json` among them."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse what stands before the command, and note whether JSON is wanted; see click."""
        context = super().make_context(info_name, [*args], parent, **extra)
        context.meta[__name__] = "--json" in args
        return context

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest, and run the command; see click."""
        try:
            return super().invoke(ctx)
        except _Mistake as mistake:
            if ctx.meta[__name__]:
                print_error(UsageError(mistake.format_message()))  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    name="csf-tool",
    cls=Commands,
    help="Inspect, verify and expand FP4 checkpoints whose block scales are CSF-compressed.",
    epilog="Exit codes: 0 good; 1 the checkpoint is at fault; 2 wrong usage; 3 it could not be done here "
    "(disk, network, permission, a missing extra); 130 interrupted.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_GROUPS = {
    "Look": {
        stats: "Sizes, compressed and dense",
        inspect: "One plane, or all of them ranked",
        plan: "GPU memory that is needed",
    },
    "Prove": {
        verify: "Check every byte and every hash",
        identity: "One hash for the whole checkpoint",
    },
    "Write": {
        expand: "CSF to an ordinary checkpoint",
        finish: "Complete a run made in parts",
        compress: "An ordinary checkpoint to CSF",
        convert: "From one CSF layout to another",
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
