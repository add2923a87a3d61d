"""Arguments and options that several commands have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from csf_tool.cli.help import OUTPUT, SPEED, WHAT
from csf_tool.errors import UsageError

CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="A checkpoint's folder, one .safetensors file, or a repository on the Hub, org/name or org/name@revision.",
    ),
]
CheckpointsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="CHECKPOINT",
        help="Folders of checkpoints, .safetensors files, or repositories on the Hub, org/name or org/name@revision.",
    ),
]
DestinationArgument = Annotated[Path, typer.Argument(metavar="DEST", help="A new or empty folder.")]
AllShardsOption = Annotated[
    bool,
    typer.Option("--all-shards", rich_help_panel=WHAT, help="Also use shards that the index does not list."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print one JSON document instead of tables.")
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        rich_help_panel=SPEED,
        help="auto (a GPU if it saves time), cpu, cuda or cuda:N.",
        show_default=False,
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        rich_help_panel=SPEED,
        help="Shards at a time.",
        show_default="one per core, up to 4",
    ),
]


def cache_option(unasked: str) -> Any:
    """The option `--drop-cache`, with what happens unasked."""
    return typer.Option(
        "--drop-cache/--keep-cache",
        rich_help_panel=SPEED,
        help="Do not leave the files in the system's page cache.",
        show_default=unasked,
    )


CacheOption = Annotated[bool | None, cache_option("by size")]
FigureOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Also draw a figure, as .png, .svg or .pdf."),
]


@dataclass(frozen=True, kw_only=True)
class VolumeOptions:
    """Options about what a command says beside its result; every command has them."""

    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help="Print no notes and no progress.")
    ] = False
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", rich_help_panel=OUTPUT, help="Print what is read, and what becomes of each file."
        ),
    ] = False

    def choose(self) -> None:
        """Make it so for this process.

        Raises:
            UsageError: both are asked for.
        """
        from csf_tool.report.volume import Volume, set_volume

        if self.quiet and self.verbose:
            raise UsageError("--quiet and --verbose: give one of them")
        set_volume(Volume.QUIET if self.quiet else Volume.VERBOSE if self.verbose else Volume.USUAL)
