"""Commands that look: what a checkpoint holds, by its headers or plane by plane."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from csf_tool.choices import GroupBy
from csf_tool.cli.command import check_figure, guarded, note, open_argument, show, write_figure
from csf_tool.cli.help import OUTPUT, WHAT
from csf_tool.cli.options import (
    AllShardsOption,
    CheckpointArgument,
    CheckpointsArgument,
    FigureOption,
    JsonOption,
)
from csf_tool.errors import UsageError

if TYPE_CHECKING:
    from csf_tool.checkpoint.checkpoint import Checkpoint


@guarded
def stats(
    checkpoints: CheckpointsArgument,
    by: Annotated[
        GroupBy | None,
        typer.Option(
            metavar="|".join(GroupBy),
            rich_help_panel=WHAT,
            help="Group the table by this.",
            show_default=GroupBy.PROJECTION.value,
        ),
    ] = None,
    figure: FigureOption = None,
    scales: Annotated[
        bool,
        typer.Option(
            "--scales",
            rich_help_panel=WHAT,
            help="Also read and decode all scales, and count NaN, negative and zero bytes per layer.",
        ),
    ] = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", rich_help_panel=OUTPUT, help="Print tables for a model card or an issue."),
    ] = False,
    all_shards: AllShardsOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compare the sizes of compressed and dense scales. Only headers are read, unless --scales is given.

    Of several checkpoints it prints a table with one row each, or one document with --json.

    Examples:
    csf-tool stats Qwen-CSF
    csf-tool stats Qwen-CSF --by layer --figure scales.svg
    """
    from csf_tool.checkpoint.problems import errors
    from csf_tool.documents.stats import stats_document
    from csf_tool.look.stats import collect_stats
    from csf_tool.report.markdown import stats_markdown
    from csf_tool.report.problems import print_problems
    from csf_tool.report.stats import stats_report
    from csf_tool.text import size

    if len(checkpoints) > 1:
        return _stats_of_each(
            checkpoints,
            {"--by": by, "--figure": figure, "--scales": scales, "--markdown": markdown},
            all_shards=all_shards,
            as_json=as_json,
        )
    by = by or GroupBy.PROJECTION
    if markdown and (other := "--json" if as_json else "--scales" if scales else None):
        raise UsageError(f"--markdown and {other}: give one of them")
    check_figure(figure)
    opened = open_argument(checkpoints[0], all_shards=all_shards)
    found = collect_stats(opened)
    if figure:
        from csf_tool.report.figures.stored_sizes import stats_figure

        write_figure(stats_figure(found, by), figure)
    if scales:
        from csf_tool.coders.decoder import NumpyDecoder
        from csf_tool.look.scale_bytes import count_scale_bytes
        from csf_tool.report.progress import progress_bar
        from csf_tool.running.jobs import default_jobs

        with progress_bar() as progress:
            found.scale_bytes = count_scale_bytes(opened, NumpyDecoder(), progress, default_jobs())
        found.problems = found.problems + found.scale_bytes.problems
    if markdown:
        typer.echo("\n".join(stats_markdown(found, by)))
    else:
        show(found, stats_document, lambda found: stats_report(found, by), as_json)
    if opened.hub and opened.is_remote:
        note(f"{opened.label}: read from the Hub: {size(opened.hub.bytes_by_range)} of its shards' headers")
    print_problems(found.problems, "--json")
    return 1 if errors(found.problems) else 0


def _stats_of_each(checkpoints: list[str], for_one: Mapping[str, object], *, all_shards: bool, as_json: bool) -> int:
    """Print a row of sizes for each of several checkpoints; options `for_one` are refused."""
    from csf_tool.checkpoint.problems import errors
    from csf_tool.cli.several import look_at_each, refuse_for_several, show_several
    from csf_tool.documents.stats import stats_document
    from csf_tool.look.stats import collect_stats
    from csf_tool.report.several import stats_table

    refuse_for_several(checkpoints, for_one)
    found = look_at_each(checkpoints, collect_stats, lambda stats: stats.problems, all_shards=all_shards)
    return show_several(found, lambda stats: not errors(stats.problems), stats_document, stats_table, as_json=as_json)


@guarded
def ls(
    checkpoint: CheckpointArgument,
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="GLOB", help="Name of a tensor or a stream, or a glob in quotes.", show_default="all"),
    ] = None,
    stored: Annotated[
        bool,
        typer.Option("--stored", rich_help_panel=WHAT, help="List what the shards hold: streams instead of scales."),
    ] = False,
    all_shards: AllShardsOption = False,
    as_json: JsonOption = False,
) -> int:
    """List the tensors of the dense checkpoint or, with --stored, the tensors in the shards. Only headers are read.

    In a file or a pipe, the output is one line per tensor, without titles: name, dtype, shape, bytes and shard, with
    tabs between them.

    Examples:
    csf-tool ls Qwen-CSF '*.layers.3.*gate_proj*'
    csf-tool ls Qwen-CSF --stored
    """
    from csf_tool.checkpoint.problems import errors
    from csf_tool.look.listing import list_tensors
    from csf_tool.report.listing import print_json_listing, print_listing
    from csf_tool.report.problems import print_problems

    opened = open_argument(checkpoint, all_shards=all_shards)
    listing = list_tensors(opened, pattern, stored=stored)
    (print_json_listing if as_json else print_listing)(listing)
    print_problems(opened.problems)
    return 1 if errors(opened.problems) else 0


@guarded
def inspect(
    checkpoint: CheckpointArgument,
    plane: Annotated[
        str | None,
        typer.Argument(
            metavar="PLANE", help="Name of a scale, its weight or its streams, or a glob.", show_default="all"
        ),
    ] = None,
    values: Annotated[
        bool, typer.Option("--values", rich_help_panel=WHAT, help="Print a corner of the plane as numbers.")
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            rich_help_panel=WHAT,
            help="Without PLANE: length of each list.",
            show_default="10",
        ),
    ] = None,
    figure: FigureOption = None,
    all_shards: AllShardsOption = False,
    as_json: JsonOption = False,
) -> int:
    """Show one plane in detail, or rank all planes by exceptions and by bytes saved.

    Examples:
    csf-tool inspect Qwen-CSF --top 20 --figure exceptions.svg
    csf-tool inspect Qwen-CSF '*.layers.3.*.17.gate_proj' --values
    """
    from csf_tool.checkpoint.plane_tables import Plane
    from csf_tool.documents.inspection import plane_document, planes_document
    from csf_tool.look.inspection import choose_planes, inspect_plane
    from csf_tool.report.inspection import plane_report, ranking_report
    from csf_tool.report.problems import print_problems

    check_figure(figure)
    opened = open_argument(checkpoint, all_shards=all_shards)
    print_problems(opened.problems)
    chosen = choose_planes(opened, plane)
    if values and len(chosen) != 1:
        matching = f"{len(chosen)} planes match" if chosen else "none matches"
        raise UsageError(f"--values: needs one plane, but {matching}: name one")
    if figure and not chosen:
        raise UsageError("--figure: needs planes, but none matches")
    if len(chosen) == 1 and top:
        raise UsageError("--top: is for lists of many planes, but only one matches")
    if not chosen:
        return _inspect_others(opened, plane, as_json)
    if len(chosen) == 1:
        found = inspect_plane(chosen[0])
        if figure:
            from csf_tool.report.figures.plane import plane_figure

            write_figure(plane_figure(found, opened.label), figure)
        show(found, plane_document, lambda found: plane_report(found, values=values), as_json)
        return 1 if found.faults else 0
    compressed = [p for p in chosen if isinstance(p, Plane)]
    if not compressed:
        raise UsageError(
            f"{checkpoint}: headers cannot rank the {len(chosen)} dense planes that match: name one of them"
        )
    if figure:
        from csf_tool.look.stats import layers_and_projections
        from csf_tool.report.figures.exceptions import exceptions_figure

        write_figure(exceptions_figure(layers_and_projections(opened, compressed), opened.label), figure)
    show(compressed, planes_document, lambda planes: ranking_report(planes, top or 10), as_json)
    return 0


def _inspect_others(opened: "Checkpoint", pattern: str | None, as_json: bool) -> int:
    """Look into one scale that is no plane, or list their kinds."""
    from csf_tool.checkpoint.other_scales import grouped
    from csf_tool.documents.other_scales import scale_document, scales_document
    from csf_tool.look.scale_inspection import choose_scales, inspect_scale
    from csf_tool.report.other_scales import groups_report
    from csf_tool.report.scale_inspection import scale_report

    chosen = choose_scales(opened, pattern)
    if len(chosen) == 1:
        show(inspect_scale(chosen[0]), scale_document, scale_report, as_json)
    else:
        show(grouped(chosen), scales_document, groups_report, as_json)
    return 0


@guarded
def plan(
    checkpoint: CheckpointArgument,
    resident: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            rich_help_panel=WHAT,
            help="Number of stacks that stay in GPU memory.",
            show_default="all",
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            rich_help_panel=WHAT,
            help="Memory of one GPU, for example 96GiB. Shows what is left.",
        ),
    ] = None,
    tp: Annotated[
        int,
        typer.Option(min=1, metavar="N", rich_help_panel=WHAT, help="Number of GPUs that share the stacks."),
    ] = 1,
    figure: FigureOption = None,
    all_shards: AllShardsOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compare the GPU memory for scales that are decoded when loading, and for scales that are kept compressed.

    Examples:
    csf-tool plan Qwen-CSF --gpu-memory 96GiB --tp 2
    csf-tool plan Qwen-CSF --resident 24 --figure memory.png
    """
    from csf_tool.checkpoint.problems import errors
    from csf_tool.documents.plan import plan_document
    from csf_tool.look.plan import make_plan
    from csf_tool.report.plan import plan_report
    from csf_tool.report.problems import print_problems
    from csf_tool.text import parse_size

    check_figure(figure)
    try:
        memory = parse_size(gpu_memory) if gpu_memory else None
    except ValueError as error:
        raise UsageError(f"--gpu-memory {gpu_memory}: {error}") from error
    opened = open_argument(checkpoint, all_shards=all_shards)
    found = make_plan(opened, resident, memory, tp)
    if figure:
        from csf_tool.report.figures.memory import plan_figure

        write_figure(plan_figure(found), figure)
    show(found, plan_document, plan_report, as_json)
    print_problems(opened.problems)
    return 1 if errors(opened.problems) else 0
