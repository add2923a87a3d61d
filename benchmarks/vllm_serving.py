#!/usr/bin/env python3
"""Serving by vLLM on a GPU: dense, CSF decoded when loading, and CSF kept compressed, side by side.

Makes a model of random weights at Qwen3.8's geometry (512 experts, hidden 2560, width 640) and compresses it. Each way
of serving it runs in a process of its own: dense, mode 1 and mode 2 with vLLM's own back end, dense and mode 2 with
the emulation, which takes scales as they are. Compared are tokens and log-probabilities, to the bit; measured are bytes
on the device, seconds of loading, and tokens a second, medians of `--repeat`. With the back end that vLLM chooses, the
model is loaded `--loads` times, and once more, before the one that serves: the first load is shown by itself, for it
imports modules and makes kernels ready, too. Of the others the memory is shown that one took at most, of the process
(resident, with mapped files) and of the device: the least of them, for vLLM may hold models that were let go. Runs are
repeated in a second and third round as long as the time lasts; their samples are put together.

usage: PYTHONPATH=. python benchmarks/vllm_serving.py FOLDER [--layers 4] [--limit 420] [--out FILE.json] [--ways ...]
       ... --together [--repeat 5] [--rounds 3] [--ways ...]

`--ways dense "mode 1"` compares these two alone. Against the time limit, rounds after the first are dropped first, then
the runs at the end of the first. `--tiny` tries all of it on a CPU, with experts that the tests have.

`--together` measures the speed alone, of all ways in one process (`vllm_together.py`): processes differ by more than
ways do. The models are made in the order of `--ways`; a round lets each of them generate once, and there are `--repeat`
rounds of each batch size, `--rounds` times over.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import vllm_together
from vllm_served import Served, measure_loading
from vllm_ways import (
    BATCHES,
    STARTED,
    WAYS,
    child,
    compare,
    environment,
    lines_of,
    plug_in_says,
    say,
    seconds_left,
    tell,
    told,
)

ALONE = [name for name in WAYS if name != "dense again"]
"""For each of these, a process of its own is made unless others are asked for."""


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--limit", type=float, default=420, help="seconds that all may take")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--loads", type=int, default=3, help="loads that are measured after the first in each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ways", nargs="+", choices=WAYS)
    parser.add_argument("--together", action="store_true", help="all ways in one process, in turn")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.ways = args.ways or (vllm_together.DEFAULT if args.together else ALONE)
    if args.serve:
        vllm_together.serve(args) if args.together else serve(args.serve, args)
        return
    make(args)
    vllm_together.measure(args) if args.together else measure(args)


def make(args: argparse.Namespace) -> None:
    """Make the model, unless it is there, in processes whose memory is given back."""
    dense, csf = str(args.folder / "dense"), str(args.folder / "csf")
    if Path(csf).exists():
        return
    script = str(Path(__file__).with_name("vllm_model.py"))
    making = [script, dense, "--layers", str(args.layers), *(["--tiny"] if args.tiny else [])]
    for command in (making, ["-m", "csf_tool", "compress", dense, csf]):
        left = max(seconds_left(args.limit), 1)
        code = [sys.executable, *command]
        subprocess.run(code, env=environment(args, []), check=True, timeout=left, stdout=subprocess.DEVNULL)
    say(f"made the model and compressed it: {time.monotonic() - STARTED:.0f} s since the start")


# The parent: runs one process after another, and compares


def measure(args: argparse.Namespace) -> None:
    ways = [name for name in WAYS if name in args.ways]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    longest = 0.0
    for number in range(args.rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            left = seconds_left(args.limit)
            if left < max(longest * 1.1, 20):
                say(f"round {number + 1}: {name}: left out, {left:.0f} s are left")
                continue
            began = time.monotonic()
            results[name].append(served(args, name, left))
            longest = max(longest, time.monotonic() - began)
            say(f"round {number + 1}: {name}: {time.monotonic() - began:.0f} s; {brief(results[name][-1])}")
    table(results)
    compare(results)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


def served(args: argparse.Namespace, name: str, seconds: float) -> dict[str, Any]:
    """What a process says that serves the model one way: all that it has said when it ends, or is stopped."""
    env = environment(args, ["csf"] if WAYS[name].compressed else [])
    lines = list(lines_of(child(args, "--serve", name), env, seconds))
    found: dict[str, Any] = {}
    for line in lines:
        found |= told(line) or {}
        if said := plug_in_says(line):
            found.setdefault("said", []).append(said)
    if "speed" not in found:
        say("".join(lines[-25:]))
    return found


def brief(found: dict[str, Any]) -> str:
    speed = ", ".join(f"{median(found['speed'][n]):,.0f}" for n in found.get("speed", {}))
    return f"tokens/s {speed or 'none'}; " + "; ".join(found.get("said", []))


def table(results: dict[str, list[dict[str, Any]]]) -> None:
    """Print the figures of each way, and how its speed relates to that of the dense way beside it."""
    speeds = {name: [samples(results[name], n) for n in BATCHES] for name in results}
    head = (
        f"{'bytes at rest':>15} {'first load':>11} {'later loads':>14} {'of dense':>8} {'MiB at most':>15} {'start':>7}"
    )
    say(f"\n{'':<20} {head}  tokens/s at batch {BATCHES} (of dense)")
    for name, found in results.items():
        if not any("speed" in one for one in found):
            continue
        rest = next(one["bytes"] for one in found if "bytes" in one)
        first = median(one["first_load"] for one in found if "first_load" in one)
        own, dense = of(found, "later_loads"), of(results.get(WAYS[name].beside, []), "later_loads")
        later = f"{median(own):.2f} s (n={len(own)})" if own else "-"
        share = f"{median(own) / median(dense):.3f}" if own and dense else "-"
        start = median(one["start"] for one in found if "start" in one)
        cells = []
        for mine, theirs in zip(speeds[name], speeds.get(WAYS[name].beside, [[]] * len(BATCHES)), strict=True):
            of_dense = f"{median(mine) / median(theirs):.3f}" if mine and theirs else "-"
            cells.append(f"{median(mine):>9,.0f} ({of_dense}, n={len(mine)})" if mine else "-")
        peaks = [f"{min(of(found, kind)) / 2**20:,.0f}" for kind in ("host", "device") if of(found, kind)]
        loading = f"{first:>9.2f} s {later:>14} {share:>8} {' + '.join(peaks) or '-':>15}"
        say(f"{name:<20} {rest:>15,} {loading} {start:>5.0f} s  " + "  ".join(cells))


def of(found: list[dict[str, Any]], figure: str) -> list[float]:
    return [sample for one in found for sample in one.get(figure, [])]


def samples(found: list[dict[str, Any]], batch: int) -> list[float]:
    return [speed for one in found for speed in one.get("speed", {}).get(str(batch), [])]


# The child that serves


def serve(name: str, args: argparse.Namespace) -> None:
    began = time.monotonic()
    measure_loading(0 if WAYS[name].backend else args.loads)
    model = Served(name, args, {"gpu_memory_utilization": 0.6})
    tell(start=time.monotonic() - began)
    tell(**model.answers())
    speed: dict[str, list[float]] = {}
    for batch in BATCHES:
        model.seconds(batch, args.tokens)
        speed[str(batch)] = [batch * args.tokens / model.seconds(batch, args.tokens) for _ in range(args.repeat)]
        tell(speed=speed)


if __name__ == "__main__":
    main()
