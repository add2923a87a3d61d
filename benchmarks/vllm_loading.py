#!/usr/bin/env python3
"""Loading in vLLM on this machine: a CSF checkpoint through the plug-in beside its dense one in stock vLLM.

Makes a model of Qwen3.8's experts (fewer of them, seeded random weights), dense and CSF, and has vLLM build and load it
in a process of its own, without a kernel being made ready: seconds of `load_weights`, of the processor as well, and the
most memory that the process had. The two take turns; printed are medians, and their ratio. Files come from the page
cache. Run it in the environment of `.ci/engines`, from the repository's folder:

usage: PYTHONPATH=. .venv-engines/bin/python benchmarks/vllm_loading.py FOLDER [--layers 2] [--experts 128] [--repeat 5]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        print(json.dumps(load(args.folder)))
        return
    dense, csf = made(args.folder, args.layers, args.experts)
    runs: dict[str, list[dict[str, float]]] = {"dense, stock": [], "dense, plug-in": [], "CSF, plug-in": []}
    folders = {"dense, stock": dense, "dense, plug-in": dense, "CSF, plug-in": csf}
    for _ in range(args.repeat):
        for name, folder in folders.items():
            runs[name].append(in_a_process(folder, "reference" if "stock" in name else "csf,reference"))
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


def in_a_process(folder: Path, plugins: str) -> dict[str, float]:
    command = [sys.executable, __file__, str(folder), "--load"]
    env = os.environ | {"VLLM_PLUGINS": plugins, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def load(folder: Path) -> dict[str, float]:
    """Build and load a model in this process: seconds, and bytes of memory beyond those before loading."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.plugins import load_general_plugins

    from tests.engines import loading
    from tests.engines.reference_experts import register

    load_general_plugins()
    register()
    measured: dict[str, float] = {}

    def timed(original: Any) -> Any:
        def load_weights(self: Any, *args: Any) -> None:
            begun, busy = time.perf_counter(), time.process_time()
            original(self, *args)
            measured["seconds"] = time.perf_counter() - begun
            measured["processor"] = time.process_time() - busy
            measured["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

        return load_weights

    DefaultModelLoader.load_weights = timed(DefaultModelLoader.load_weights)
    loading.built(folder)
    return measured


def report(runs: dict[str, list[dict[str, float]]]) -> None:
    medians = {name: {k: median(run[k] for run in found) for k in found[0]} for name, found in runs.items()}
    stock = medians["dense, stock"]
    print(f"{'':16}{'seconds':>10}{'ratio':>8}{'processor':>12}{'ratio':>8}{'peak memory':>14}{'ratio':>8}")
    for name, m in medians.items():
        print(
            f"{name:16}{m['seconds']:10.2f}{m['seconds'] / stock['seconds']:8.2f}{m['processor']:12.2f}"
            f"{m['processor'] / stock['processor']:8.2f}{m['peak'] / 2**20:10.0f} MiB{m['peak'] / stock['peak']:8.2f}"
        )


if __name__ == "__main__":
    main()
