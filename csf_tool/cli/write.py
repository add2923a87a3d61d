"""Commands that write another checkpoint."""

from pathlib import Path
from typing import Annotated, Any

import typer

from csf_tool.choices import CompressTo, Target
from csf_tool.cli.command import guarded, note, open_argument, show
from csf_tool.cli.help import WHAT
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
    """Write the ordinary dense checkpoint, every tensor bit for bit.

    Examples:
    csf-tool expand Qwen-CSF Qwen-NVFP4
    csf-tool expand Kimi-CSF Kimi-MXFP4 --consume-source
    """
    from csf_tool.documents.written import expand_document
    from csf_tool.report.expand import expand_report
    from csf_tool.report.problems import print_problems
    from csf_tool.write.consumed import as_expanded
    from csf_tool.write.expand import expand as run

    if consumed := how.consumed(checkpoint, destination, "expand"):
        how.show(as_expanded(consumed), expand_document, lambda _: [], as_json)
        return 0
    with how.opened(checkpoint, destination) as w:
        done = run(w.source, w.destination, w.request.decoder(device), w.progress, w.options)
        w.list_files(done)
    print_problems(done.excused)
    how.show(done, expand_document, expand_report, as_json)
    return 0


@guarded
def finish(
    checkpoint: CheckpointArgument,
    destination: DestinationArgument,
    device: DeviceOption = "auto",
    all_shards: AllShardsOption = False,
    as_json: JsonOption = False,
) -> int:
    """Write the index and the configs when all parts of a run with --shards I/N are done.

    The last part does this itself. Use this command if that part was interrupted.

    Examples:
    csf-tool finish Qwen-CSF Qwen-NVFP4
    csf-tool finish Kimi-CSF Kimi-MXFP4 --json
    """
    from csf_tool.coders.decoder import make_decoder
    from csf_tool.coders.encoder import make_encoder
    from csf_tool.documents.written import written_document
    from csf_tool.progress import Silent
    from csf_tool.report.compress import compress_report
    from csf_tool.report.convert import convert_report
    from csf_tool.report.expand import expand_report
    from csf_tool.write.compress import Compressed
    from csf_tool.write.consumed import consumed_result
    from csf_tool.write.convert import Converted
    from csf_tool.write.expand import Expanded
    from csf_tool.write.finish import finish as run
    from csf_tool.write.finish import require_all_shards

    reports: dict[type, Any] = {Expanded: expand_report, Compressed: compress_report, Converted: convert_report}
    if consumed := consumed_result(Path(checkpoint), destination):
        note(f"{destination} is already complete, and the shards of {checkpoint} are gone")
        show(consumed, written_document, lambda _: [], as_json)
        return 0
    opened = open_argument(checkpoint, all_shards=all_shards)
    done = run(opened, destination, make_encoder(device), make_decoder(device), Silent())
    require_all_shards(done)
    show(done, written_document, reports[type(done)], as_json)
    return 0


@guarded
@spread
def compress(
    dense: Annotated[str, typer.Argument(metavar="DENSE", help="Dense NVFP4 or MXFP4 checkpoint, here or on the Hub.")],
    destination: DestinationArgument,
    *,
    to: Annotated[
        CompressTo | None,
        typer.Option(
            metavar="|".join(CompressTo),
            rich_help_panel=WHAT,
            help="Layout to write.",
            show_default="one that readers know",
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            rich_help_panel=WHAT,
            help="Compress the scales whose name matches.",
            show_default="routed experts",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", rich_help_panel=WHAT, help="Leave dense the scales whose name matches."),
    ] = None,
    keep_larger: Annotated[
        bool, typer.Option("--keep-larger", rich_help_panel=WHAT, help="Also compress planes that become larger.")
    ] = False,
    allow_padded: Annotated[
        bool,
        typer.Option(
            "--allow-padded",
            rich_help_panel=WHAT,
            help="Also compress scales that may be padded or tiled.",
        ),
    ] = False,
    origin: OriginOptions,
    device: DeviceOption = "auto",
    how: WritingOptions,
    as_json: JsonOption = False,
) -> int:
    """Compress a dense FP4 checkpoint to CSF, and decode it again to prove it.

    Examples:
    csf-tool compress Qwen-NVFP4 Qwen-CSF
    csf-tool compress GLM-NVFP4 GLM-CSF --to container --exclude '*.layers.45.*'
    """
    from csf_tool.documents.written import compress_document
    from csf_tool.report.compress import compress_report
    from csf_tool.write.compress import CompressOptions
    from csf_tool.write.compress import compress as run
    from csf_tool.write.consumed import as_compressed
    from csf_tool.write.selection import Rules

    what = CompressOptions(
        layout=to,
        rules=Rules(tuple(include or ()), tuple(exclude or ()), keep_larger, allow_padded),
        origin=origin.stated(to),
    )
    if consumed := how.consumed(dense, destination, "compress", what.wanted(to)):
        how.show(as_compressed(consumed), compress_document, lambda _: [], as_json)
        return 0
    with how.opened(dense, destination) as w:
        encoder, decoder = w.request.encoder(device, note), w.request.decoder(device)
        done = run(w.source, w.destination, what, encoder, decoder, w.progress, w.options)
        w.list_files(done)
    how.show(done, compress_document, compress_report, as_json)
    return 0


@guarded
@spread
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A CSF checkpoint, here or on the Hub.")],
    destination: DestinationArgument,
    *,
    to: Annotated[Target, typer.Option(metavar="|".join(Target), rich_help_panel=WHAT, help="Layout to write.")],
    link: Annotated[
        bool, typer.Option("--link", rich_help_panel=WHAT, help="Hard-link unchanged shards instead of copying.")
    ] = False,
    checkpoint_root: Annotated[
        str | None,
        typer.Option(metavar="PATH", rich_help_panel=WHAT, help="For serving: the container's path on the server."),
    ] = None,
    origin: OriginOptions,
    how: WritingOptions,
    as_json: JsonOption = False,
) -> int:
    """Convert a CSF checkpoint to another layout, without decoding it.

    Examples:
    csf-tool convert Qwen-container Qwen-CSF --to hf --link
    csf-tool convert Qwen-container Qwen-serving --to serving
    """
    from csf_tool.documents.written import convert_document
    from csf_tool.report.convert import convert_report
    from csf_tool.write.consumed import as_converted
    from csf_tool.write.convert import ConvertOptions
    from csf_tool.write.convert import convert as run

    what = ConvertOptions(checkpoint_root, origin.stated(to, checkpoint_root))
    if consumed := how.consumed(source, destination, "convert", what.wanted(to)):
        how.show(as_converted(consumed, to), convert_document, lambda _: [], as_json)
        return 0
    with how.opened(source, destination, link=link) as w:
        done = run(w.source, w.destination, to, what, w.progress, w.options)
        w.list_files(done)
    how.show(done, convert_document, convert_report, as_json)
    return 0
