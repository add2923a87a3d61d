"""Commands that measure and try."""

from pathlib import Path
from typing import Annotated

import typer

from csf_tool.cli.command import check_figure, guarded, open_argument, show, write_figure
from csf_tool.cli.help import SPEED, WHAT
from csf_tool.cli.options import FigureOption, JsonOption
from csf_tool.errors import EnvironmentFault, UsageError


@guarded
def bench(
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",  # typer 0.27 would call it --CHECKPOINT, after the metavar
            metavar="CHECKPOINT",
            rich_help_panel=WHAT,
            help="Measure the first gated expert layer of a checkpoint, here or on the Hub.",
            show_default="made-up streams of real shapes",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=3, metavar="N", rich_help_panel=WHAT, help="Number of runs. The result is their median.")
    ] = 20,
    products: Annotated[
        bool,
        typer.Option(
            "--products/--no-products",
            rich_help_panel=WHAT,
            help="Also time matrix products, with and without decoding.",
            show_default="yes",
        ),
    ] = True,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICE",
            rich_help_panel=SPEED,
            help="auto (the first GPU), cuda or cuda:N.",
            show_default=False,
        ),
    ] = "auto",
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> int:
    """Time the GPU decode on real shapes. Compare it with plain copying, other decoders and matrix products.

    Examples:
    csf-tool bench --checkpoint Qwen-CSF --repeats 50
    csf-tool bench --device cuda:1 --no-products --json
    """
    from csf_tool.devices import choose_cuda, why_no_gpu

    check_figure(figure)
    if device == "cpu":
        raise UsageError("--device cpu: bench times a GPU: give cuda or cuda:N")
    name = choose_cuda(device, "timing", lambda _: None)
    if name is None:
        raise EnvironmentFault(f"bench times a GPU: {why_no_gpu(device)}")
    import torch

    from csf_tool.bench.real_layer import load_layer
    from csf_tool.bench.run import BenchOptions, run_bench
    from csf_tool.coders.device_faults import named_for
    from csf_tool.documents.bench import bench_document
    from csf_tool.report.bench import bench_report
    from csf_tool.report.console import print_err
    from csf_tool.report.volume import is_quiet

    index = int(name.partition(":")[2] or 0)
    tell = (lambda _: None) if is_quiet() else print_err
    opened = open_argument(checkpoint) if checkpoint else None
    with named_for(name, replaceable=False):
        layer = load_layer(opened, torch.device("cuda", index)) if opened else None
        found = run_bench(BenchOptions(repeats=repeats, device=index, gemm=products, layer=layer), tell)
    if figure:
        from csf_tool.report.figures.decode_times import bench_figure

        write_figure(bench_figure(found), figure)
    show(found, bench_document, bench_report, as_json)
    return 0


@guarded
def demo(
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", rich_help_panel=WHAT, help="Keep the checkpoints in this new or empty folder."),
    ] = None,
) -> int:
    """Make a small NVFP4 MoE checkpoint, compress it, and run the other commands on it.

    Examples:
    csf-tool demo
    csf-tool demo --keep /tmp/csf-demo
    """
    from csf_tool.demo import run

    return run(keep)
