"""Commands that write another checkpoint."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from csf_tool.choices import CompressTo, Target
from csf_tool.cli.command import guarded, open_argument, say, show
from csf_tool.cli.options import (
    AdoptOption,
    AllShardsOption,
    CheckpointArgument,
    ClusterOption,
    ConsumeOption,
    DestinationArgument,
    DeviceOption,
    FamilyOption,
    IgnoreSpaceOption,
    JobsOption,
    JsonOption,
    RecheckOption,
    ShareOption,
    SourceModelOption,
    SourceRevisionOption,
    WritingCacheOption,
    YesOption,
)
from csf_tool.errors import UsageError

if TYPE_CHECKING:
    from csf_tool.checkpoint.model import Checkpoint
    from csf_tool.coders.decoder import Decoder
    from csf_tool.coders.encoder import Encoder
    from csf_tool.progress import Progress
    from csf_tool.write.run import WriteOptions


@dataclass(frozen=True)
class _Writing:
    """The parsed arguments that every writing command has."""

    source: "Checkpoint"
    destination: Path
    options: "WriteOptions"
    progress: "Progress"
    cluster: str | None

    def decoder(self, device: str, tell: Callable[[str], None] = say) -> "Decoder":
        """The decoder for `--device`: here, or of the cluster's workers."""
        from csf_tool.coders.decoder import make_decoder
        from csf_tool.running.cluster import RemoteDecoder

        return RemoteDecoder(device) if self.cluster else make_decoder(device, tell=tell)

    def encoder(self, device: str) -> "Encoder":
        """The encoder for `--device`: here, or of the cluster's workers."""
        from csf_tool.coders.encoder import make_encoder
        from csf_tool.running.cluster import RemoteEncoder

        return RemoteEncoder(device) if self.cluster else make_encoder(device, say)


@contextmanager
def _writing(
    argument: str,
    destination: Path,
    cluster: str | None,
    jobs: int | None,
    share: str | None,
    yes: bool,
    all_shards: bool,
    **how: Any,
) -> Iterator[_Writing]:
    """Open the source, ask for consent where it is needed, and make the options; `how` are fields of `WriteOptions`."""
    from csf_tool.checkpoint.problems import excused, warnings
    from csf_tool.report.console import print_problems
    from csf_tool.report.progress import progress_bar
    from csf_tool.running.cluster import cluster_executor
    from csf_tool.running.jobs import default_jobs
    from csf_tool.write.evidence import evidence_warnings
    from csf_tool.write.run import Share, WriteOptions

    is_here = Path(argument).exists()
    argument = str(Path(argument).absolute()) if cluster and is_here else argument
    opened = open_argument(argument, all_shards=all_shards)
    if cluster and opened.is_remote:
        raise UsageError(f"{opened.label}: workers of a cluster read files: fetch it first with `hf download`")
    # Other errors are raised by the operation, or excused by it.
    print_problems(warnings(opened.problems) + excused(opened.problems) + evidence_warnings(opened))
    if how["consume_source"] and (share or cluster):
        raise UsageError("--consume-source removes what other parts may need: run it without --shards and --cluster")
    if how["consume_source"] and not yes:
        _ask(f"Every shard of {opened.label} will be removed once its replacement is proven. Go on?")
    with cluster_executor(cluster) as executor, progress_bar() as progress:
        options = WriteOptions(jobs=jobs or default_jobs(), share=Share.parse(share), executor=executor, **how)
        yield _Writing(opened, destination.absolute() if cluster else destination, options, progress, cluster)


def _was_complete(argument: str, destination: Path) -> bool:
    """Whether a run with `--consume-source` had only its last source shards to remove, which are gone now."""
    from csf_tool.report.console import print_err
    from csf_tool.write.consume import finish_removal

    if not finish_removal(Path(argument), destination):
        return False
    print_err(f"{destination} is complete already, and the shards of {argument} are gone")
    return True


def _ask(question: str) -> None:
    """Ask the user, and go on only after a yes; without a terminal, refuse."""
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can answer here: --yes says so beforehand")
    if not typer.confirm(question, err=True):
        raise UsageError("nothing was done")


@guarded
def expand(
    checkpoint: CheckpointArgument,
    destination: DestinationArgument,
    device: DeviceOption = "auto",
    jobs: JobsOption = None,
    shards: ShareOption = None,
    recheck: RecheckOption = False,
    drop_cache: WritingCacheOption = None,
    ignore_space: IgnoreSpaceOption = False,
    adopt: AdoptOption = False,
    consume_source: ConsumeOption = False,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    all_shards: AllShardsOption = False,
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

    if consume_source and _was_complete(checkpoint, destination):
        return 0
    with _writing(
        checkpoint,
        destination,
        cluster,
        jobs,
        shards,
        yes,
        all_shards,
        recheck=recheck,
        drop_cache=drop_cache,
        ignore_space=ignore_space,
        adopt=adopt,
        consume_source=consume_source,
    ) as w:
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
def compress(
    dense: Annotated[
        str, typer.Argument(metavar="DENSE", help="A dense NVFP4 or MXFP4 checkpoint, here or on the Hub.")
    ],
    destination: DestinationArgument,
    to: Annotated[
        CompressTo | None,
        typer.Option(help="The layout to write.", show_default="hf for NVFP4 or both codecs, container for MXFP4"),
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
    shards: ShareOption = None,
    recheck: RecheckOption = False,
    drop_cache: WritingCacheOption = None,
    ignore_space: IgnoreSpaceOption = False,
    adopt: AdoptOption = False,
    consume_source: ConsumeOption = False,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    all_shards: AllShardsOption = False,
    as_json: JsonOption = False,
) -> int:
    """Write a CSF checkpoint of a dense FP4 one: lossless, proven by decoding it again.

    \b
    Examples:
    csf-tool compress ~/models/Qwen3.8-Flash-Next-NVFP4 /data/Qwen3.8-Flash-Next-CSF
    csf-tool compress ~/models/GLM-5.3-Flash-NVFP4 /data/GLM-5.3-Flash-CSF --to container --exclude '*.layers.45.*'
    """
    from csf_tool.checkpoint.published import StatedOrigin
    from csf_tool.report.compress import compress_json, compress_report
    from csf_tool.write.compress import CompressOptions
    from csf_tool.write.compress import compress as run
    from csf_tool.write.selection import Rules

    if consume_source and _was_complete(dense, destination):
        return 0
    what = CompressOptions(
        layout=to,
        rules=Rules(tuple(include or ()), tuple(exclude or ()), keep_larger, allow_padded),
        origin=StatedOrigin(family, source_model_id, source_revision),
    )
    with _writing(
        dense,
        destination,
        cluster,
        jobs,
        shards,
        yes,
        all_shards,
        recheck=recheck,
        drop_cache=drop_cache,
        ignore_space=ignore_space,
        adopt=adopt,
        consume_source=consume_source,
    ) as w:
        encoder, decoder = w.encoder(device), w.decoder(device, lambda _: None)
        done = run(w.source, w.destination, what, encoder, decoder, w.progress, w.options)
    show(done, compress_json, compress_report, as_json)
    return 0


@guarded
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A CSF checkpoint, here or on the Hub.")],
    destination: DestinationArgument,
    to: Annotated[Target, typer.Option(help="The layout to write.")],
    link: Annotated[bool, typer.Option("--link", help="Hard-link unchanged shards instead of copying.")] = False,
    checkpoint_root: Annotated[
        str | None, typer.Option(metavar="PATH", help="Serving: the container's path as the server sees it.")
    ] = None,
    family: FamilyOption = None,
    source_model_id: SourceModelOption = None,
    source_revision: SourceRevisionOption = None,
    jobs: JobsOption = None,
    shards: ShareOption = None,
    recheck: RecheckOption = False,
    drop_cache: WritingCacheOption = None,
    ignore_space: IgnoreSpaceOption = False,
    adopt: AdoptOption = False,
    consume_source: ConsumeOption = False,
    yes: YesOption = False,
    cluster: ClusterOption = None,
    all_shards: AllShardsOption = False,
    as_json: JsonOption = False,
) -> int:
    """Move a CSF checkpoint between its layouts without decoding a plane.

    \b
    Examples:
    csf-tool convert ~/models/Qwen-CSF-container /data/Qwen-CSF --to hf --link
    csf-tool convert ~/models/Qwen-CSF-container /data/Qwen-serving --to serving --checkpoint-root /models/csf
    """
    from csf_tool.checkpoint.published import StatedOrigin
    from csf_tool.report.convert import convert_json, convert_report
    from csf_tool.write.convert import ConvertOptions
    from csf_tool.write.convert import convert as run

    if consume_source and _was_complete(source, destination):
        return 0
    what = ConvertOptions(checkpoint_root, StatedOrigin(family, source_model_id, source_revision))
    with _writing(
        source,
        destination,
        cluster,
        jobs,
        shards,
        yes,
        all_shards,
        recheck=recheck,
        drop_cache=drop_cache,
        ignore_space=ignore_space,
        adopt=adopt,
        consume_source=consume_source,
        link=link,
    ) as w:
        done = run(w.source, w.destination, to, what, w.progress, w.options)
    show(done, convert_json, convert_report, as_json)
    return 0
