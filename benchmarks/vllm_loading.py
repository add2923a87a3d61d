#!/usr/bin/env python3
"""Loading in vLLM: a CSF checkpoint through the plug-in beside its dense one in stock vLLM, without an engine.

Makes a model of Qwen3.8's experts (fewer of them, seeded random weights), dense and CSF, and has vLLM's loaders build,
load and finish it (`load_model`), one after another in one process, in rounds of changing order. Each way is loaded
once before it counts, so that files come from the page cache and modules are there. Printed are the seconds of
`load_model` and of its `load_weights`, where the two differ, the processor's seconds of the latter, and the most memory
that the process had while it loaded. `plug-in` beside the dense checkpoint shows what it costs where it has nothing to
do, and how much is noise.

Of each there is the median; the median of its ratios to stock vLLM in the same round, with the middle half of them; and
the ratio of the least of both, which other programs disturb least.

Every load begins with a heap that holds no free memory, as the first of a process does. Otherwise what a load finds in
it is what the ones before it left, by chance: up to 150,000 pages need not be mapped anew, which is a fifth of a load.
With `--again` the weights of one model are loaded over and over, into memory that is mapped: that is the quickest that
stock vLLM can be, and what csf-tool adds shows most.

Weights are copied by one thread unless OMP_NUM_THREADS says otherwise: several wait for one another by spinning, and on
a busy machine that is all that is measured. Run it in the environment of `.ci/engines`, from the repository's folder:

usage: PYTHONPATH=. .venv-engines/bin/python benchmarks/vllm_loading.py FOLDER [--layers 2] [--experts 128] [--again]
"""

import argparse
import ctypes
import gc
import os
import time
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import Any

SETTINGS = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
SETTINGS |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": "none", "OMP_NUM_THREADS": "1"}

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    dense, csf = made(args.folder, args.layers, args.experts)

    import torch

    from csf_tool.engines.vllm.plugin import register
    from tests.engines import loading
    from tests.engines.reference_experts import register as register_experts

    register()
    register_experts()
    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = lambda: None  # as vLLM's worker for CPUs has it
    ways = {
        "dense, stock": (loading.stock, dense),
        "dense, plug-in": (loading.loader, dense),
        "CSF, plug-in": (loading.loader, csf),
    }
    runs: dict[str, list[Figures]] = {name: [] for name in ways}
    for number in range(args.repeat + 1):
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            loader, folder = ways[name]
            figures = (loaded_again if args.again else loaded)(loader(), folder)
            if number:
                runs[name].append(figures)
    report(runs)


def made(folder: Path, layers: int, experts: int) -> tuple[Path, Path]:
    """The dense checkpoint and the CSF one, made unless they are there."""
    from tests.engines import checkpoints, models

    size = models.Size(layers, hidden=2560, width=640, experts=experts, heads=16)
    dense = folder / f"dense-{layers}x{experts}"
    if not dense.exists():
        models.write(dense, models.modelopt, models.mixed_precision(size), size, shards=True)
        checkpoints.csf(dense, size=size)
    return dense, dense.with_name(f"{dense.name}-csf")


def loaded(loader: Any, folder: Path) -> Figures:
    """Figures of loading a model, which is gone afterwards."""
    from vllm.config import set_current_vllm_config

    from tests.engines import loading

    config = loading.config_of(folder)
    figures: Figures = {}
    load_weights = loader.load_weights
    loader.load_weights = lambda *args: figures.update(timed(load_weights, *args))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    begun = time.perf_counter()
    with set_current_vllm_config(config):
        loader.load_model(vllm_config=config, model_config=config.model_config)
    figures["model"] = time.perf_counter() - begun
    status = Path("/proc/self/status").read_text().splitlines()
    figures["peak"] = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    return figures


def loaded_again(loader: Any, folder: Path) -> Figures:
    """Figures of loading the weights of a model that is built once for each folder."""
    from vllm.config import set_current_vllm_config

    model, config = built(folder)
    gc.collect()
    with set_current_vllm_config(config):
        return timed(loader.load_weights, model, config.model_config)


@cache
def built(folder: Path) -> tuple[Any, Any]:
    """A model whose weights have been loaded, and its config."""
    from tests.engines import loading

    return loading.built(folder), loading.config_of(folder)


def timed(load_weights: Any, *args: Any) -> Figures:
    """Seconds that loading weights takes."""
    begun, busy = time.perf_counter(), time.process_time()
    load_weights(*args)
    return {"weights": time.perf_counter() - begun, "processor": time.process_time() - busy}


def report(runs: dict[str, list[Figures]]) -> None:
    titles = {"model": "load_model", "weights": "load_weights", "processor": "processor", "peak": "peak memory"}
    columns = {key: title for key, title in titles.items() if key in runs["dense, stock"][0]}
    print(" " * 14 + "".join(f"{title:>15}  {'ratio (middle half) least':>27}" for title in columns.values()))
    for name, found in runs.items():
        print(f"{name:14}" + "".join(cell(key, found, runs["dense, stock"]) for key in columns))


def cell(key: str, found: list[Figures], stock: list[Figures]) -> str:
    """The median of a figure, and its ratios to stock."""
    mine, theirs = [run[key] for run in found], [run[key] for run in stock]
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    value = f"{median(mine):>11.0f} MiB" if key == "peak" else f"{median(mine):>13.3f} s"
    return f"{value}  {f'{middle:.3f} ({low:.3f}-{high:.3f}) {min(mine) / min(theirs):.3f}':>27}"


if __name__ == "__main__":
    main()
