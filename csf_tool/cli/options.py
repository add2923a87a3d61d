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


def _cache_option(unasked: str) -> Any:
    return typer.Option(
        "--drop-cache/--keep-cache",
        help="Keep the run's own files out of the page cache, or in it.",
        show_default=unasked,
    )


CacheOption = Annotated[bool | None, _cache_option("out when they are larger than half of memory")]
WritingCacheOption = Annotated[
    bool | None, _cache_option("large new files out; all of them when they are larger than half of memory")
]
FigureOption = Annotated[
    Path | None, typer.Option(metavar="FILE.png|svg", help="Draw it as well (needs matplotlib: the extra plot).")
]
ShareOption = Annotated[
    str | None, typer.Option("--shards", metavar="I/N", help="Do the I-th of N parts of the shards by itself.")
]
RecheckOption = Annotated[
    bool, typer.Option("--recheck", help="Read shards that an interrupted run finished, and compare them.")
]
AdoptOption = Annotated[
    bool,
    typer.Option("--adopt", help="Compare files that others put into DEST, and keep what is right."),
]
ConsumeOption = Annotated[
    bool, typer.Option("--consume-source", help="REMOVE each source shard once its replacement is written and proven.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask before --consume-source.")]
ClusterOption = Annotated[str | None, typer.Option(metavar="tcp://HOST:PORT", help="Run the shards on a Dask cluster.")]
IgnoreSpaceOption = Annotated[
    bool, typer.Option("--ignore-space", help="Begin even where the disk reports too little room.")
]
FamilyOption = Annotated[str | None, typer.Option(help="Container: the model family to state.")]
SourceModelOption = Annotated[str | None, typer.Option(help="Container: the source repository to state.")]
SourceRevisionOption = Annotated[str | None, typer.Option(help="Container: the source revision to state.")]
