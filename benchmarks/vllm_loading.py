#!/usr/bin/env python3
"""Loading in vLLM: a CSF checkpoint through the plug-in beside its dense one in stock vLLM, without an engine.

Makes a model of Qwen3.8's experts (fewer of them, seeded random weights), dense and CSF, and has vLLM's loaders build,
load and finish it (`load_model`), one after another in one process, in turn. Each way is loaded once before it counts,
so that files come from the page cache and modules are there. Printed are medians, and their ratios: seconds of
`load_model` and of its `load_weights`, where the two differ, the processor's seconds of the latter, and the most memory
that the process had while it loaded. `plug-in` beside the dense checkpoint shows what it costs where it has nothing to
do.

Weights are copied by one thread unless OMP_NUM_THREADS says otherwise: several wait for one another by spinning, and on
a busy machine that is all that is measured. Run it in the environment of `.ci/engines`, from the repository's folder:

usage: PYTHONPATH=. .venv-engines/bin/python benchmarks/vllm_loading.py FOLDER [--layers 2] [--experts 128] [--repeat 7]
"""

import argparse
import gc
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

SETTINGS = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
SETTINGS |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": "none", "OMP_NUM_THREADS": "1"}

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=7)
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
        for name, (loader, folder) in sorted(ways.items(), reverse=number % 2 == 0):
            figures = loaded(loader(), folder)
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

    def timed(*args: Any) -> None:
        begun, busy = time.perf_counter(), time.process_time()
        load_weights(*args)
        figures["weights"], figures["processor"] = time.perf_counter() - begun, time.process_time() - busy

    loader.load_weights = timed
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    begun = time.perf_counter()
    with set_current_vllm_config(config):
        loader.load_model(vllm_config=config, model_config=config.model_config)
    figures["model"] = time.perf_counter() - begun
    status = Path("/proc/self/status").read_text().splitlines()
    figures["peak"] = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    return figures


def report(runs: dict[str, list[Figures]]) -> None:
    medians = {name: {k: median(run[k] for run in found) for k in found[0]} for name, found in runs.items()}
    stock = medians["dense, stock"]
    columns = {"model": "load_model", "weights": "load_weights", "processor": "processor", "peak": "peak memory"}
    print(" " * 14 + "".join(f"{title:>15}{'ratio':>7}" for title in columns.values()))
    for name, m in medians.items():
        cells = (f"{m[k]:>11.0f} MiB" if k == "peak" else f"{m[k]:>13.3f} s" for k in columns)
        print(f"{name:14}" + "".join(f"{c}{m[k] / stock[k]:>7.2f}" for c, k in zip(cells, columns, strict=True)))


if __name__ == "__main__":
    main()
