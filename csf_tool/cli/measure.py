"""Commands that measure and try."""

from pathlib import Path
from typing import Annotated

import typer

from csf_tool.cli.command import check_figure, guarded, open_argument, say, show
from csf_tool.cli.options import FigureOption, JsonOption


@guarded
def bench(
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",  # typer 0.27 would call it --CHECKPOINT, after the metavar
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

    check_figure(figure)
    choose_cuda(f"cuda:{device}", "timing", say)
    import torch

    from csf_tool.bench.real_layer import load_layer
    from csf_tool.bench.run import BenchOptions, run_bench
    from csf_tool.report.bench import bench_json, bench_report
    from csf_tool.report.console import print_err

    layer = load_layer(open_argument(checkpoint), torch.device("cuda", device)) if checkpoint else None
    found = run_bench(BenchOptions(repeats=repeats, device=device, gemm=products, layer=layer), print_err)
    if figure:
        from csf_tool.report.figures import bench_figure, save

        save(bench_figure(found), figure)
    show(found, bench_json, bench_report, as_json)
    return 0


@guarded
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
