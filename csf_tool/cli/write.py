"""Commands that write another checkpoint."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from csf_tool.cli.guarding import guarded, open_argument, say, show
from csf_tool.cli.options import (
    CheckpointArgument,
    DestinationArgument,
    DeviceOption,
    FamilyOption,
    IgnoreSpaceOption,
    JobsOption,
    JsonOption,
    SourceModelOption,
    SourceRevisionOption,
    WritingCacheOption,
)
from csf_tool.errors import UsageError


class To(StrEnum):
    """Layouts that `compress` writes."""

    HF = "hf"
    CONTAINER = "container"


class ConvertTo(StrEnum):
    """What `convert` writes."""

    HF = "hf"
    CONTAINER = "container"
    SERVING = "serving"


@guarded
def expand(
    checkpoint: CheckpointArgument,
    destination: DestinationArgument,
    device: DeviceOption = "auto",
    jobs: JobsOption = None,
    part: Annotated[
        str | None, typer.Option("--shards", metavar="I/N", help="Do the I-th of N parts of the shards by itself.")
    ] = None,
    recheck: Annotated[
        bool, typer.Option("--recheck", help="Read shards that an interrupted run finished, and compare them.")
    ] = False,
    drop_cache: WritingCacheOption = None,
    ignore_space: IgnoreSpaceOption = False,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Compare files that are in DEST already, from elsewhere, and keep what is right."),
    ] = False,
    consume_source: Annotated[
        bool,
        typer.Option("--consume-source", help="REMOVE each source shard once its replacement is written and proven."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --consume-source.")] = False,
    cluster: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Run the shards on a Dask cluster.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write the ordinary dense checkpoint: the original bit for bit where its receipts allow.

    \b
    Examples:
    csf-tool expand ~/models/Qwen3.8-Flash-Next-FP4-Local /data/Qwen3.8-Flash-Next-NVFP4
    csf-tool expand ~/models/Kimi-K3-MXFP4-CSF /data/Kimi-K3-MXFP4 --consume-source
    """
    from csf_tool.checkpoint.problems import warnings
    from csf_tool.coders.decoder import make_decoder
    from csf_tool.report.console import print_err, print_problems
    from csf_tool.report.expand import expand_json, expand_report
    from csf_tool.report.progress import progress_bar
    from csf_tool.running.cluster import RemoteDecoder, cluster_executor
    from csf_tool.running.jobs import default_jobs
    from csf_tool.write.consume import finish_removal
    from csf_tool.write.expand import ExpandOptions, Part
    from csf_tool.write.expand import expand as run

    if consume_source and finish_removal(Path(checkpoint), destination):
        print_err(f"{destination} was complete already; what was left to remove is gone")
        return 0
    is_here = Path(checkpoint).exists()
    opened = open_argument(str(Path(checkpoint).absolute()) if cluster and is_here else checkpoint)
    if cluster and opened.is_remote:
        raise UsageError(f"{opened.label}: workers of a cluster read files: fetch it first with `hf download`")
    print_problems(warnings(opened.problems))  # errors are raised by the operation, or excused by it
    if consume_source and (part or cluster):
        raise UsageError("--consume-source removes what other parts may need: run it without --shards and --cluster")
    if consume_source and not yes:
        _ask(f"Every shard of {opened.label} will be removed once its replacement is proven. Go on?")
    options = ExpandOptions(
        jobs=jobs or default_jobs(),
        part=Part.parse(part),
        recheck=recheck,
        drop_cache=drop_cache,
        consume_source=consume_source,
        ignore_space=ignore_space,
        adopt=adopt,
    )
    with cluster_executor(cluster) as executor, progress_bar() as progress:
        decoder = RemoteDecoder(device) if cluster else make_decoder(device, tell=say)
        done = run(opened, destination.absolute() if cluster else destination, decoder, progress, options, executor)
    print_problems(done.excused)
    show(done, expand_json, expand_report, as_json)
    return 0


def _ask(question: str) -> None:
    """Go on only when the user says yes; without a terminal nobody can."""
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can answer here: --yes says so beforehand")
    if not typer.confirm(question, err=True):
        raise UsageError("nothing was done")


@guarded
def finish(checkpoint: CheckpointArgument, destination: DestinationArgument, as_json: JsonOption = False) -> int:
    """Write index and configs once all parts of an `expand --shards I/N` are there.

    The last part does it by itself; this is for when that one was interrupted.

    \b
    Examples:
    csf-tool finish ~/models/Qwen3.8-Flash-Next-FP4-Local /data/Qwen3.8-Flash-Next-NVFP4
    csf-tool finish ~/models/Kimi-K3-MXFP4-CSF /data/Kimi-K3-MXFP4 --json
    """
    from csf_tool.coders.decoder import NumpyDecoder
    from csf_tool.errors import EnvironmentFault
    from csf_tool.progress import Silent
    from csf_tool.report.expand import expand_json, expand_report
    from csf_tool.text import count
    from csf_tool.write.expand import NOTHING, ExpandOptions
    from csf_tool.write.expand import expand as run

    done = run(open_argument(checkpoint), destination, NumpyDecoder(), Silent(), ExpandOptions(part=NOTHING))
    if done.missing:
        missing = count(len(done.missing), "shard")
        raise EnvironmentFault(f"{destination}: not complete: {missing} missing, as {done.missing[0]}")
    show(done, expand_json, expand_report, as_json)
    return 0


@guarded
def compress(
    dense: Annotated[
        str, typer.Argument(metavar="DENSE", help="A dense NVFP4 or MXFP4 checkpoint, here or on the Hub.")
    ],
    destination: DestinationArgument,
    to: Annotated[
        To | None, typer.Option(help="The layout to write.", show_default="hf for NVFP4, container for MXFP4")
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Scales to compress, by tensor name.", show_default="routed experts"),
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Scales to leave dense.")] = None,
    keep_larger: Annotated[bool, typer.Option("--keep-larger", help="Compress planes that grow, too.")] = False,
    allow_padded: Annotated[
        bool, typer.Option("--allow-padded", help="Compress scales that may be padded or in tile order, byte by byte.")
    ] = False,
    family: FamilyOption = None,
    source_model_id: SourceModelOption = None,
    source_revision: SourceRevisionOption = None,
    device: DeviceOption = "auto",
    jobs: JobsOption = None,
    drop_cache: WritingCacheOption = None,
    ignore_space: IgnoreSpaceOption = False,
    as_json: JsonOption = False,
) -> int:
    """Write a CSF checkpoint of a dense FP4 one: lossless, proven by rebuilding it.

    \b
    Examples:
    csf-tool compress ~/models/Qwen3.8-Flash-Next-NVFP4 /data/Qwen3.8-Flash-Next-CSF
    csf-tool compress ~/models/GLM-5.3-Flash-NVFP4 /data/GLM-5.3-Flash-CSF --to container --exclude '*.layers.45.*'
    """
    from csf_tool.checkpoint.container_documents import StatedOrigin
    from csf_tool.checkpoint.model import Layout
    from csf_tool.checkpoint.problems import warnings
    from csf_tool.coders.decoder import make_decoder
    from csf_tool.coders.encoder import make_encoder
    from csf_tool.report.compress import compress_json, compress_report
    from csf_tool.report.console import print_problems
    from csf_tool.report.progress import progress_bar
    from csf_tool.running.jobs import default_jobs
    from csf_tool.write.compress import CompressOptions
    from csf_tool.write.compress import compress as run
    from csf_tool.write.selection import Rules

    opened = open_argument(dense)
    print_problems(warnings(opened.problems))
    options = CompressOptions(
        layout=Layout(to.value) if to else None,
        rules=Rules(tuple(include or ()), tuple(exclude or ()), keep_larger, allow_padded),
        origin=StatedOrigin(family, source_model_id, source_revision),
        jobs=jobs or default_jobs(),
        drop_cache=drop_cache,
        ignore_space=ignore_space,
    )
    with progress_bar() as progress:
        encoder, decoder = make_encoder(device, say), make_decoder(device)
        done = run(opened, destination, options, encoder, decoder, progress)
    show(done, compress_json, compress_report, as_json)
    return 0


@guarded
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A CSF checkpoint, here or on the Hub.")],
    destination: DestinationArgument,
    to: Annotated[ConvertTo, typer.Option(help="The layout to write.")],
    link: Annotated[bool, typer.Option("--link", help="Hard-link unchanged shards instead of copying.")] = False,
    checkpoint_root: Annotated[
        str | None, typer.Option(metavar="PATH", help="Serving: the container's path as the server sees it.")
    ] = None,
    family: FamilyOption = None,
    source_model_id: SourceModelOption = None,
    source_revision: SourceRevisionOption = None,
    ignore_space: IgnoreSpaceOption = False,
    as_json: JsonOption = False,
) -> int:
    """Move a CSF checkpoint between its layouts without decoding a plane.

    \b
    Examples:
    csf-tool convert ~/models/Qwen-CSF-container /data/Qwen-CSF --to hf --link
    csf-tool convert ~/models/Qwen-CSF-container /data/Qwen-serving --to serving --checkpoint-root /models/csf
    """
    from csf_tool.checkpoint.container_documents import StatedOrigin
    from csf_tool.checkpoint.problems import warnings
    from csf_tool.report.console import print_problems
    from csf_tool.report.convert import convert_json, convert_report
    from csf_tool.report.progress import progress_bar
    from csf_tool.write.convert import ConvertOptions, Target
    from csf_tool.write.convert import convert as run

    opened = open_argument(source)
    print_problems(warnings(opened.problems))
    options = ConvertOptions(
        link, checkpoint_root, StatedOrigin(family, source_model_id, source_revision), ignore_space
    )
    with progress_bar() as progress:
        done = run(opened, destination, Target(to.value), options, progress)
    show(done, convert_json, convert_report, as_json)
    return 0
