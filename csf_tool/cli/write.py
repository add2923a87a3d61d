"""Commands that write another checkpoint."""

from typing import Annotated

import typer

from csf_tool.choices import CompressTo, Target
from csf_tool.cli.command import guarded, open_argument, show
from csf_tool.cli.options import AllShardsOption, CheckpointArgument, DestinationArgument, DeviceOption, JsonOption
from csf_tool.cli.spread import spread
from csf_tool.cli.writing import OriginOptions, WritingOptions


@guarded
@spread
def expand(
    checkpoint: CheckpointArgument,
    destination: DestinationArgument,
    *,
    device: DeviceOption = "auto",
    how: WritingOptions,
    as_json: JsonOption = False,
) -> int:
    """Write the ordinary dense checkpoint: the original bit for bit where its receipts allow.

    \b
    Examples:
    csf-tool expand ~/models/Qwen3.8-Flash-Next-FP4-Local /data/Qwen3.8-Flash-Next-NVFP4
    csf-tool expand ~/models/Kimi-K3-MXFP4-CSF /data/Kimi-K3-MXFP4 --consume-source
    """
    from csf_tool.report.console import print_problems
    from csf_tool.report.expand import expand_json, expand_report
    from csf_tool.write.expand import expand as run

    if how.was_complete(checkpoint, destination):
        return 0
    with how.opened(checkpoint, destination) as w:
        done = run(w.source, w.destination, w.decoder(device), w.progress, w.options)
    print_problems(done.excused)
    show(done, expand_json, expand_report, as_json)
    return 0


@guarded
def finish(
    checkpoint: CheckpointArgument,
    destination: DestinationArgument,
    device: DeviceOption = "auto",
    all_shards: AllShardsOption = False,
    as_json: JsonOption = False,
) -> int:
    """Write index and configs once all parts of a run with --shards I/N are there.

    The last part does it by itself; this is for when that one was interrupted.

    \b
    Examples:
    csf-tool finish ~/models/Qwen3.8-Flash-Next-FP4-Local /data/Qwen3.8-Flash-Next-NVFP4
    csf-tool finish ~/models/Kimi-K3-MXFP4-CSF /data/Kimi-K3-MXFP4 --json
    """
    from csf_tool.coders.decoder import make_decoder
    from csf_tool.coders.encoder import make_encoder
    from csf_tool.errors import EnvironmentFault
    from csf_tool.progress import Silent
    from csf_tool.report.compress import compress_json, compress_report
    from csf_tool.report.convert import convert_json, convert_report
    from csf_tool.report.expand import expand_json, expand_report
    from csf_tool.text import count
    from csf_tool.write.compress import Compressed
    from csf_tool.write.expand import Expanded
    from csf_tool.write.finish import finish as run

    opened = open_argument(checkpoint, all_shards=all_shards)
    done = run(opened, destination, make_encoder(device), make_decoder(device), Silent())
    if done.missing:
        missing = count(len(done.missing), "shard")
        raise EnvironmentFault(f"{destination}: not complete: {missing} missing, as {done.missing[0]}")
    if isinstance(done, Expanded):
        show(done, expand_json, expand_report, as_json)
    elif isinstance(done, Compressed):
        show(done, compress_json, compress_report, as_json)
    else:
        show(done, convert_json, convert_report, as_json)
    return 0


@guarded
@spread
def compress(
    dense: Annotated[
        str, typer.Argument(metavar="DENSE", help="A dense NVFP4 or MXFP4 checkpoint, here or on the Hub.")
    ],
    destination: DestinationArgument,
    *,
    to: Annotated[
        CompressTo | None,
        typer.Option(help="The layout to write.", show_default="the one whose readers find the planes"),
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
    origin: OriginOptions,
    device: DeviceOption = "auto",
    how: WritingOptions,
    as_json: JsonOption = False,
) -> int:
    """Write a CSF checkpoint of a dense FP4 one: lossless, proven by decoding it again.

    \b
    Examples:
    csf-tool compress ~/models/Qwen3.8-Flash-Next-NVFP4 /data/Qwen3.8-Flash-Next-CSF
    csf-tool compress ~/models/GLM-5.3-Flash-NVFP4 /data/GLM-5.3-Flash-CSF --to container --exclude '*.layers.45.*'
    """
    from csf_tool.report.compress import compress_json, compress_report
    from csf_tool.write.compress import CompressOptions
    from csf_tool.write.compress import compress as run
    from csf_tool.write.selection import Rules

    if how.was_complete(dense, destination):
        return 0
    what = CompressOptions(
        layout=to,
        rules=Rules(tuple(include or ()), tuple(exclude or ()), keep_larger, allow_padded),
        origin=origin.stated(),
    )
    with how.opened(dense, destination) as w:
        encoder, decoder = w.encoder(device), w.decoder(device, lambda _: None)
        done = run(w.source, w.destination, what, encoder, decoder, w.progress, w.options)
    show(done, compress_json, compress_report, as_json)
    return 0


@guarded
@spread
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A CSF checkpoint, here or on the Hub.")],
    destination: DestinationArgument,
    *,
    to: Annotated[Target, typer.Option(help="The layout to write.")],
    link: Annotated[bool, typer.Option("--link", help="Hard-link unchanged shards instead of copying.")] = False,
    checkpoint_root: Annotated[
        str | None, typer.Option(metavar="PATH", help="Serving: the container's path as the server sees it.")
    ] = None,
    origin: OriginOptions,
    how: WritingOptions,
    as_json: JsonOption = False,
) -> int:
    """Move a CSF checkpoint between its layouts without decoding a plane.

    \b
    Examples:
    csf-tool convert ~/models/Qwen-CSF-container /data/Qwen-CSF --to hf --link
    csf-tool convert ~/models/Qwen-CSF-container /data/Qwen-serving --to serving --checkpoint-root /models/csf
    """
    from csf_tool.report.convert import convert_json, convert_report
    from csf_tool.write.convert import ConvertOptions
    from csf_tool.write.convert import convert as run

    if how.was_complete(source, destination):
        return 0
    what = ConvertOptions(checkpoint_root, origin.stated())
    with how.opened(source, destination, link=link) as w:
        done = run(w.source, w.destination, to, what, w.progress, w.options)
    show(done, convert_json, convert_report, as_json)
    return 0
