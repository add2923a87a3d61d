"""The command line: parse, call one operation, render, exit code.

Heavy modules are imported inside the commands, so that `csf-tool --help` costs no more than typer itself.
"""

import functools
import gc
import io
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from csf_tool.errors import CsfToolError, UsageError
from csf_tool.version import __version__

if TYPE_CHECKING:
    from rich.console import RenderableType

    from csf_tool.checkpoint.hashes import PublishedHash
    from csf_tool.checkpoint.hub import HubRepo
    from csf_tool.checkpoint.model import Checkpoint

P = ParamSpec("P")
R = TypeVar("R")

TRACEBACK_VARIABLE = "CSF_TOOL_TRACEBACK"

_hubs: "list[HubRepo]" = []
"""Repositories in use: what still waits to be fetched from them stops when the command ends."""

_INTERRUPTED = 130
_NOT_HERE = 3

app = typer.Typer(
    name="csf-tool",
    help="Inspect, verify and expand FP4 checkpoints whose block scales are CSF-compressed.",
    epilog="Exit codes: 0 good; 1 the checkpoint is at fault; 2 wrong usage; 3 it could not be done here "
    "(disk, network, permission, a missing extra); 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


LOOK, PROVE, WRITE, MEASURE = "Look", "Prove", "Write", "Measure and try"
"""Groups of commands in the help."""


class To(StrEnum):
    """Layouts that `compress` writes."""

    HF = "hf"
    CONTAINER = "container"


class ConvertTo(StrEnum):
    """What `convert` writes."""

    HF = "hf"
    CONTAINER = "container"
    SERVING = "serving"


class CrossCheckBy(StrEnum):
    """How many planes `verify` compares with the CPU."""

    ALL = "all"
    SAMPLE = "sample"
    NONE = "none"


class By(StrEnum):
    """What `stats` groups planes by."""

    LAYER = "layer"
    SHARD = "shard"
    PROJECTION = "projection"


CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="A checkpoint's folder (either CSF layout), one .safetensors file, or a repository on the "
        "Hugging Face Hub: org/name or org/name@revision.",
    ),
]
DestinationArgument = Annotated[Path, typer.Argument(metavar="DEST", help="A new or empty folder.")]
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
CacheOption = Annotated[
    bool | None,
    typer.Option(
        "--drop-cache/--keep-cache",
        help="Keep the run's own files out of the page cache.",
        show_default="drop when they are larger than half of memory",
    ),
]
FigureOption = Annotated[
    Path | None, typer.Option(metavar="FILE.png|svg", help="Draw it as well (needs matplotlib: the extra plot).")
]
IgnoreSpaceOption = Annotated[
    bool, typer.Option("--ignore-space", help="Begin even where the disk reports too little room.")
]
FamilyOption = Annotated[str | None, typer.Option(help="Container: the model family to state.")]
SourceModelOption = Annotated[str | None, typer.Option(help="Container: the source repository to state.")]
SourceRevisionOption = Annotated[str | None, typer.Option(help="Container: the source revision to state.")]


def _guarded(command: Callable[P, int]) -> Callable[P, None]:
    """Turn a command's result into the exit code, and every error into one line on stderr."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except KeyboardInterrupt:
            _say("interrupted" + ("; the same command goes on from there" if "destination" in kwargs else ""))
            code = _INTERRUPTED
        except BrokenPipeError:  # the reader of stdout (`| head`) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except Exception as error:
            if os.environ.get(TRACEBACK_VARIABLE) == "1":
                raise
            code = _explain(error)
        finally:
            while _hubs:
                _hubs.pop().stop()
        raise typer.Exit(code)

    return run


def _explain(error: Exception) -> int:
    """Say what went wrong in one line; the exit code."""
    if isinstance(error, CsfToolError):
        _say(str(error))
        return error.exit_code
    if isinstance(error, OSError):
        _say(f"{error.filename or 'input/output'}: {error.strerror or error}")
    else:
        _say(f"internal error: {type(error).__name__}: {error} ({TRACEBACK_VARIABLE}=1 shows where)")
    return _NOT_HERE


def _say(message: str) -> None:
    from csf_tool.report.console import print_err
    from csf_tool.text import escape

    print_err(f"csf-tool: {escape(message)}")


def _open(argument: str) -> "Checkpoint":
    """The checkpoint that an argument names, here or on the Hub."""
    from csf_tool.checkpoint.layouts import open_checkpoint
    from csf_tool.checkpoint.source import find_source

    source = find_source(argument, _say)
    if not isinstance(source, Path):
        _hubs.append(source)
    checkpoint = open_checkpoint(source)
    gc.freeze()  # it lives as long as the process: there is no garbage in it to look for, not even at the end
    return checkpoint


def _listed_hashes(name: str) -> "list[PublishedHash]":
    """The hashes that the Hub lists for the files of a repository."""
    from csf_tool.checkpoint.hub import list_repo
    from csf_tool.checkpoint.source import HubName

    return list_repo(HubName.parse(name)).published_hashes()


def _ask(question: str) -> None:
    """Go on only when the user says yes; without a terminal nobody can."""
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can answer here: --yes says so beforehand")
    if not typer.confirm(question, err=True):
        raise UsageError("nothing was done")


def _show(
    found: R, document: Callable[[R], dict[str, Any]], report: Callable[[R], list["RenderableType"]], as_json: bool
) -> None:
    """Print a result: as one JSON document, or as lines and tables."""
    from csf_tool.report.console import print_json, print_out

    if as_json:
        print_json(document(found))
    else:
        print_out(*report(found))


def _check_figure(path: Path | None) -> None:
    """Refuse a figure that cannot be drawn before there is work to lose."""
    if path:
        from csf_tool.report.figures import require_figures

        require_figures(path)


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


@app.command(rich_help_panel=LOOK)
@_guarded
def stats(
    checkpoint: CheckpointArgument,
    by: Annotated[By, typer.Option(help="What the table groups planes by.")] = By.PROJECTION,
    figure: FigureOption = None,
    scales: Annotated[
        bool,
        typer.Option(
            "--scales", help="Read and decode all scales, too, and count NaN, negative and zero bytes a layer."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Report compressed against dense scale sizes, from the headers alone unless --scales asks for more.

    \b
    Examples:
    csf-tool stats ~/models/Qwen3.8-Flash-Next-FP4-Local
    csf-tool stats ~/models/Qwen3.8-Flash-Next-FP4-Local --by layer --figure scales.svg
    """
    from csf_tool.checkpoint.layouts import no_garbage_collection
    from csf_tool.checkpoint.problems import errors
    from csf_tool.report.console import print_problems
    from csf_tool.report.stats import stats_json, stats_report
    from csf_tool.stats import collect_stats
    from csf_tool.text import size

    _check_figure(figure)
    with no_garbage_collection():
        opened = _open(checkpoint)
        found = collect_stats(opened)
    if figure:
        from csf_tool.report.figures import save, stats_figure

        save(stats_figure(found), figure)
    if scales:
        from csf_tool.coders.decoder import make_decoder
        from csf_tool.report.progress import progress_bar
        from csf_tool.running.jobs import default_jobs
        from csf_tool.scale_bytes import count_scale_bytes

        with progress_bar() as progress:
            found.scale_bytes = count_scale_bytes(opened, make_decoder("auto"), progress, default_jobs())
        found.problems = found.problems + found.scale_bytes.problems
    _show(found, stats_json, lambda found: stats_report(found, by.value), as_json)
    if opened.hub and opened.is_remote:
        _say(f"{opened.label}: read from the Hub: {size(opened.hub.bytes_by_range)} of its shards' headers")
    print_problems(found.problems)
    return 1 if errors(found.problems) else 0


@app.command(rich_help_panel=PROVE)
@_guarded
def verify(
    checkpoint: CheckpointArgument,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="DENSE",
            help="A dense checkpoint, here or on the Hub, that every tensor, config and tokenizer must equal.",
        ),
    ] = None,
    hub: Annotated[
        str | None,
        typer.Option(metavar="ORG/NAME[@REVISION]", help="Compare the files' hashes with those that the Hub lists."),
    ] = None,
    tensors_only: Annotated[
        bool, typer.Option("--tensors-only", help="With --against: do not compare config, tokenizer and metadata.")
    ] = False,
    all_tensors: Annotated[
        bool, typer.Option("--all-tensors", help="On the Hub: fetch every tensor, not just the scales.")
    ] = False,
    device: DeviceOption = "auto",
    cross_check: Annotated[
        CrossCheckBy, typer.Option(help="Planes decoded on a GPU to be compared with the CPU's decode.")
    ] = CrossCheckBy.ALL,
    manifest: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="SHA-256 of files as sha256sum or --save-hashes lists them, saved elsewhere."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Headers, and sizes by --manifest: seconds, but no data are read.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="SHARD", help="Read these shards alone (names or globs).")
    ] = None,
    save_hashes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="If no check fails, list every file's SHA-256 in this new file.")
    ] = None,
    jobs: JobsOption = None,
    drop_cache: CacheOption = None,
    as_json: JsonOption = False,
) -> int:
    """Prove the decoded bytes, bit for bit, by every hash there is, and say what could not be proved.

    \b
    Examples:
    csf-tool verify ~/models/DeepSeek-V4.1-Flash-lossless-CSF
    csf-tool verify ~/models/Qwen3.8-Flash-Next-FP4-Local --against ~/models/Qwen3.8-Flash-Next-NVFP4
    """
    from csf_tool.checkpoint.hash_list import read_hash_list
    from csf_tool.checkpoint.layouts import no_garbage_collection
    from csf_tool.coders.decoder import CrossCheck, NumpyDecoder, make_decoder
    from csf_tool.report.progress import progress_bar
    from csf_tool.report.verify import verify_json, verify_report
    from csf_tool.running.jobs import default_jobs, drops_cache
    from csf_tool.verify import VerifyOptions
    from csf_tool.verify import verify as run

    if quick and (against or only or save_hashes):
        raise UsageError("--quick reads no data: give it without --against, --only and --save-hashes")
    if save_hashes and (only or save_hashes.exists()):
        raise UsageError(f"--save-hashes {save_hashes}: {'lists all files: give no --only' if only else 'exists'}")
    with no_garbage_collection():
        opened = _open(checkpoint)
        reference = _open(against) if against else None
        decoder = NumpyDecoder() if quick else make_decoder(device, CrossCheck(cross_check.value), _say)
        options = VerifyOptions(
            jobs=jobs or default_jobs(),
            drop_cache=drops_cache(opened, drop_cache),
            all_tensors=all_tensors,
            tensors_only=tensors_only,
            published=_listed_hashes(hub) if hub else [],
            only=tuple(only or ()),
            quick=quick,
            listed=read_hash_list(manifest) if manifest else None,
            save_hashes=save_hashes.name if save_hashes else "",
        )
        with progress_bar() as progress:
            found = run(opened, reference, decoder, progress, options)
    _show(found, verify_json, verify_report, as_json)
    if save_hashes and found.hashes:
        save_hashes.write_text(found.hashes.render(), "utf-8")
    elif save_hashes:
        _say(f"{save_hashes} is not written: a check failed")
    return 0 if found.ok else 1


@app.command(rich_help_panel=WRITE)
@_guarded
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
    drop_cache: CacheOption = None,
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
    from csf_tool.expand import ExpandOptions, Part
    from csf_tool.expand import expand as run
    from csf_tool.report.console import print_err, print_problems
    from csf_tool.report.expand import expand_json, expand_report
    from csf_tool.report.progress import progress_bar
    from csf_tool.running.cluster import RemoteDecoder, cluster_executor
    from csf_tool.running.jobs import default_jobs, drops_cache
    from csf_tool.writing.consume import finish_removal

    if consume_source and finish_removal(Path(checkpoint), destination):
        print_err(f"{destination} was complete already; what was left to remove is gone")
        return 0
    is_here = Path(checkpoint).exists()
    opened = _open(str(Path(checkpoint).absolute()) if cluster and is_here else checkpoint)
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
        drop_cache=drops_cache(opened, drop_cache),
        consume_source=consume_source,
        ignore_space=ignore_space,
        adopt=adopt,
    )
    with cluster_executor(cluster) as executor, progress_bar() as progress:
        decoder = RemoteDecoder(device) if cluster else make_decoder(device, tell=_say)
        done = run(opened, destination.absolute() if cluster else destination, decoder, progress, options, executor)
    print_problems(done.excused)
    _show(done, expand_json, expand_report, as_json)
    return 0


@app.command(rich_help_panel=WRITE)
@_guarded
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
    from csf_tool.expand import NOTHING, ExpandOptions
    from csf_tool.expand import expand as run
    from csf_tool.progress import Silent
    from csf_tool.report.expand import expand_json, expand_report
    from csf_tool.text import count

    done = run(_open(checkpoint), destination, NumpyDecoder(), Silent(), ExpandOptions(part=NOTHING))
    if done.missing:
        missing = count(len(done.missing), "shard")
        raise EnvironmentFault(f"{destination}: not complete: {missing} missing, as {done.missing[0]}")
    _show(done, expand_json, expand_report, as_json)
    return 0


@app.command(rich_help_panel=WRITE)
@_guarded
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
    drop_cache: CacheOption = None,
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
    from csf_tool.compress import CompressOptions
    from csf_tool.compress import compress as run
    from csf_tool.compression.selection import Rules
    from csf_tool.report.compress import compress_json, compress_report
    from csf_tool.report.console import print_problems
    from csf_tool.report.progress import progress_bar
    from csf_tool.running.jobs import default_jobs, drops_cache

    opened = _open(dense)
    print_problems(warnings(opened.problems))
    options = CompressOptions(
        layout=Layout(to.value) if to else None,
        rules=Rules(tuple(include or ()), tuple(exclude or ()), keep_larger, allow_padded),
        origin=StatedOrigin(family, source_model_id, source_revision),
        jobs=jobs or default_jobs(),
        drop_cache=drops_cache(opened, drop_cache),
        ignore_space=ignore_space,
    )
    with progress_bar() as progress:
        encoder, decoder = make_encoder(device, _say), make_decoder(device)
        done = run(opened, destination, options, encoder, decoder, progress)
    _show(done, compress_json, compress_report, as_json)
    return 0


@app.command(rich_help_panel=WRITE)
@_guarded
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
    from csf_tool.convert import Options, Target
    from csf_tool.convert import convert as run
    from csf_tool.report.console import print_problems
    from csf_tool.report.convert import convert_json, convert_report
    from csf_tool.report.progress import progress_bar

    opened = _open(source)
    print_problems(warnings(opened.problems))
    options = Options(link, checkpoint_root, StatedOrigin(family, source_model_id, source_revision), ignore_space)
    with progress_bar() as progress:
        done = run(opened, destination, Target(to.value), options, progress)
    _show(done, convert_json, convert_report, as_json)
    return 0


@app.command(rich_help_panel=PROVE)
@_guarded
def identity(
    checkpoint: CheckpointArgument,
    compute_hashes: Annotated[
        bool, typer.Option("--hash", help="Hash every shard instead of trusting records.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Print the content identity that launchers pin: the same string for the same checkpoint everywhere.

    \b
    Examples:
    csf-tool identity ~/models/Qwen3.8-Flash-Next-FP4-Local
    csf-tool identity ~/models/Qwen3.8-Flash-Next-FP4-Local --hash --json
    """
    from csf_tool.identity import find_identity
    from csf_tool.report.console import print_err, print_json, print_out
    from csf_tool.report.convert import identity_json
    from csf_tool.report.progress import progress_bar

    opened = _open(checkpoint)
    with progress_bar() as progress:
        found = find_identity(opened, compute_hashes, progress)
    if as_json:
        print_json(identity_json(found))
    else:
        print_out(found.digest)
        print_err(f"{found.scheme}, {found.basis.words}")
    return 0


@app.command(rich_help_panel=LOOK)
@_guarded
def inspect(
    checkpoint: CheckpointArgument,
    plane: Annotated[
        str | None,
        typer.Argument(
            metavar="PLANE", help="A scale's name, its streams' or its weight's, or a glob.", show_default="all"
        ),
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Print a corner of the plane as numbers.")] = False,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Planes to list in each order.")] = 10,
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> int:
    """Look into one plane, or rank all of them by exceptions and by bytes saved.

    \b
    Examples:
    csf-tool inspect ~/models/Qwen3.8-Flash-Next-FP4-Local --top 20
    csf-tool inspect ~/models/Qwen3.8-Flash-Next-FP4-Local '*.layers.3.*.17.gate_proj' --values
    """
    from csf_tool.checkpoint.model import Plane
    from csf_tool.inspection import choose_planes, inspect_plane
    from csf_tool.report.console import print_problems
    from csf_tool.report.inspection import plane_json, plane_report, ranking_json, ranking_report

    _check_figure(figure)
    opened = _open(checkpoint)
    print_problems(opened.problems)
    chosen = choose_planes(opened, plane)
    if len(chosen) == 1:
        found = inspect_plane(chosen[0])
        if figure:
            from csf_tool.report.figures import plane_figure, save

            save(plane_figure(found, str(checkpoint)), figure)
        _show(found, plane_json, lambda found: plane_report(found, values=values), as_json)
        return 1 if found.faults else 0
    if figure:
        raise UsageError(f"--figure: draws one plane, {len(chosen)} are meant: name one")
    compressed = [p for p in chosen if isinstance(p, Plane)]
    if not compressed:
        raise UsageError(f"{checkpoint}: {len(chosen)} dense planes: headers cannot rank these, name one of them")
    _show(compressed, ranking_json, lambda planes: ranking_report(planes, top), as_json)
    return 0


@app.command(rich_help_panel=LOOK)
@_guarded
def plan(
    checkpoint: CheckpointArgument,
    resident: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stacks that stay in GPU memory.", show_default="all")
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of one GPU, such as 96GiB: what else fits.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, metavar="N", help="GPUs that the stacks are divided among.")] = 1,
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compare GPU memory: scales decoded when loading, or kept compressed and decoded before each product.

    \b
    Examples:
    csf-tool plan ~/models/Qwen3.8-Flash-Next-FP4-Local --gpu-memory 96GiB --tp 2
    csf-tool plan ~/models/Qwen3.8-Flash-Next-FP4-Local --resident 24 --figure memory.png
    """
    from csf_tool.checkpoint.layouts import no_garbage_collection
    from csf_tool.checkpoint.problems import errors
    from csf_tool.plan import make_plan
    from csf_tool.report.console import print_problems
    from csf_tool.report.plan import plan_json, plan_report
    from csf_tool.text import parse_size

    _check_figure(figure)
    try:
        memory = parse_size(gpu_memory) if gpu_memory else None
    except ValueError as error:
        raise UsageError(f"--gpu-memory: {error}") from error
    with no_garbage_collection():
        opened = _open(checkpoint)
        found = make_plan(opened, resident, memory, tp)
    if figure:
        from csf_tool.report.figures import plan_figure, save

        save(plan_figure(found), figure)
    _show(found, plan_json, plan_report, as_json)
    print_problems(opened.problems)
    return 1 if errors(opened.problems) else 0


@app.command(rich_help_panel=MEASURE)
@_guarded
def bench(
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="Measure the first gated expert layer of a checkpoint, here or on the Hub.",
            show_default="made-up streams of real geometries",
        ),
    ] = None,
    device: Annotated[int, typer.Option(help="The GPU, by its number.")] = 0,
    repeats: Annotated[int, typer.Option(min=3, help="Replays that the medians are of.")] = 20,
    products: Annotated[
        bool, typer.Option("--products/--no-products", help="Time matrix products with and without decoding first.")
    ] = True,
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> int:
    """Time the GPU decode at real geometries, beside a streaming floor, every peer, and the matrix product after it.

    \b
    Examples:
    csf-tool bench --checkpoint ~/models/Qwen3.8-Flash-Next-FP4-Local --repeats 50
    csf-tool bench --device 1 --no-products --json
    """
    from csf_tool.devices import choose_cuda

    _check_figure(figure)
    choose_cuda(f"cuda:{device}", _say)
    import torch

    from csf_tool.bench.real_layer import load_layer
    from csf_tool.bench.run import BenchOptions, run_bench
    from csf_tool.report.bench import bench_json, bench_report
    from csf_tool.report.console import print_err

    layer = load_layer(_open(checkpoint), torch.device("cuda", device)) if checkpoint else None
    found = run_bench(BenchOptions(repeats=repeats, device=device, gemm=products, layer=layer), print_err)
    if figure:
        from csf_tool.report.figures import bench_figure, save

        save(bench_figure(found), figure)
    _show(found, bench_json, bench_report, as_json)
    return 0


@app.command(rich_help_panel=MEASURE)
@_guarded
def demo(
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Leave the checkpoints in this new or empty folder.")
    ] = None,
) -> int:
    """Make a small NVFP4 MoE checkpoint, compress it, and run the other commands on it.

    \b
    Examples:
    csf-tool demo
    csf-tool demo --keep /tmp/csf-demo
    """
    from csf_tool.demo import run

    return run(keep)


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's products: none are used, and threads forbid copies
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may have letters that the terminal's encoding has not
            stream.reconfigure(errors="backslashreplace")
    app()
