"""All commands, by group, and what is asked of every argument.

Heavy modules are imported inside the commands, so that `csf-tool --help` costs no more than typer itself.
"""

from typing import Annotated, Any

import typer
import typer.core

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


class Command(typer.core.TyperCommand):
    """A command that takes no empty argument: `"$UNSET"` is not the working folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what was typed; see typer.

        Raises:
            typer.BadParameter: an argument or an option's value is empty, or nothing but blanks.
        """
        if not ctx.resilient_parsing:  # completion has empty words
            given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            parameter: Any
            for parameter in self.get_params(ctx):
                found = given.get(parameter.name)
                for value in found if isinstance(found, list | tuple) else [found]:
                    if isinstance(value, str) and not value.strip():
                        raise typer.BadParameter("is empty (a variable that is not set?)", ctx=ctx, param=parameter)
        return super().parse_args(ctx, args)


_GROUPS = {
    "Look": (stats, inspect, plan),
    "Prove": (verify, identity),
    "Write": (expand, finish, compress, convert),
    "Measure and try": (bench, demo),
}
"""The commands, by group, as the help shows them."""

for _group, _commands in _GROUPS.items():
    for _command in _commands:
        app.command(cls=Command, rich_help_panel=_group)(_command)


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
