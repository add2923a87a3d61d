"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated, Any

import typer

CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="A checkpoint's folder (either CSF layout), one .safetensors file, or a repository on the "
        "Hugging Face Hub: org/name or org/name@revision.",
    ),
]
DestinationArgument = Annotated[Path, typer.Argument(metavar="DEST", help="A new or empty folder.")]
AllShardsOption = Annotated[
    bool,
    typer.Option(
        "--all-shards", help="Leave no shard aside, though the index does not list it and others hold its tensors."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda[:N]", help="Where planes are decoded or encoded; auto takes a GPU if there is one."
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Shards in flight together.", show_default="one a core, up to 4"),
]


def cache_option(unasked: str) -> Any:
    """The option `--drop-cache`, with what happens unasked."""
    return typer.Option(
        "--drop-cache/--keep-cache",
        help="Keep the run's own files out of the page cache, or in it.",
        show_default=unasked,
    )


CacheOption = Annotated[bool | None, cache_option("out when they are larger than half of memory")]
FigureOption = Annotated[
    Path | None, typer.Option(metavar="FILE.png|svg", help="Draw it as well (needs matplotlib: the extra plot).")
]
