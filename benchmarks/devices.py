#!/usr/bin/env python3
"""Where a GPU helps the commands and the loader: each on the CPU, on the GPU and with auto, and the first load of all.

Makes checkpoints of Qwen3.8's geometry: one layer (`benchmarks/files.py`), the others copies of it under their own
names. Whole commands are timed, start-up included, and `csf_tool.load_file` in a process after `import torch`. The
devices take turns, and the median counts. "free" is the CPU with a decode that takes no time and gives wrong bytes:
what no device can beat. The lines TABLE have what `auto` is judged by: 1.05 at most. Every run is appended to the file
as soon as it is done; what would begin after --seconds is left out.

usage: benchmarks/devices.py FOLDER [--layers 1 4 16] [--repeat 2 2 1] [--seconds 200] [--json FILE]
       [--devices cpu cuda auto free] [--commands expand encode ...]
       FOLDER needs 4.1 GB of room a layer of the largest; /dev/shm leaves the disk out
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from files import make_dense
from notes import Note

from csf_tool.coders.gpu_worth import gpu_pays
from csf_tool.running.jobs import default_jobs

Times = dict[tuple[int, str, str], float]
"""Median seconds by layers, command and device."""

LAYER_BYTES = 157_286_400
"""Scales of a layer."""

DEVICES = ("cpu", "cuda", "auto", "free")
COMMANDS = ("expand", "verify --against", "encode", "compress", "verify")
"""Commands that are timed; "encode" is a dry run of compress, which encodes everything and writes nothing."""

FREE = """
import sys
import numpy as np
from csf_tool.coders import decoder, encoder
from csf_tool.coders.coded import CodedPlane
from csf_tool.checkpoint.streams import PlaneStreams
made = {}
def decode(self, streams):
    for s in streams:
        shape = s.plane.rows, s.plane.cols
        if shape not in made:
            made[shape] = s.decode()
        yield CodedPlane(s, made[shape], agreed=True)
decoder.NumpyDecoder.decode = decode
from csf_tool.__main__ import main
sys.argv[0] = "csf-tool"
main()
"""
"""csf-tool with a decode that takes no time: every plane gets the bytes of the first of its shape."""

LOADS = """
import json, sys, time
import torch
import csf_tool
device, path = sys.argv[1:]
seconds = []
for _ in range(3):
    begin = time.monotonic()
    tensors = csf_tool.load_file(path, device=device)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds.append(round(time.monotonic() - begin, 3))
    del tensors
heavy = [name for name in ("torch._dynamo", "sympy", "torch._inductor") if name in sys.modules]
print(json.dumps({"first, second, third": seconds, "imported": heavy}))
"""

STARTS = """
import json, sys, time
begin, steps = time.monotonic(), {}
def step(name):
    global begin
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    now = time.monotonic()
    steps[name], begin = round(now - begin, 3), now
import torch
device = sys.argv[1]
step("import torch")
torch.zeros(1, device=device)
step("CUDA")
pinned = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=device == "cuda")
step("64 MiB pinned")
from csf_tool.codec.formats import NVFP4
from csf_tool.gpu.encode import compress_csf_scales
from csf_tool.gpu.scales import decompress_csf_scales, prepare_csf_scales
step("import triton and csf_tool.gpu")
scales = torch.full((2, 640, 160), 60, dtype=torch.uint8, device=device)
for turn in ("first", "second"):
    streams = compress_csf_scales(NVFP4, scales)
    words = streams.words
    step(turn + " encode")
for turn in ("first", "second"):
    prepared = prepare_csf_scales(NVFP4, streams.fixed, words, streams.counts, rows=640, cols=160, reused=False)
    assert torch.equal(decompress_csf_scales(prepared).view(torch.uint8), scales)
    step(turn + " decode")
print(json.dumps(steps))
"""
"""What the start of a GPU consists of, step by step, in seconds."""


def tool(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "csf_tool", *map(str, arguments)]


def run(command: list[str]) -> float:
    """How long a command takes."""
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    taken = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(f"FAILED {' '.join(command)}\n{done.stdout}{done.stderr}")
    return round(taken, 2)


def python(code: str, *arguments: str) -> Any:
    """What a script prints as JSON; the end of its errors where it fails."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    return json.loads(done.stdout) if not done.returncode else done.stderr[-500:]


def spread(value: Any, layers: int) -> Any:
    """JSON about layer 0 as JSON about `layers` of them."""
    if isinstance(value, dict):
        return {name: spread(item, layers) for key, item in value.items() for name in _names(key, layers)}
    if isinstance(value, list):
        return [new for item in value for new in (_names(item, layers) if isinstance(item, str) else [item])]
    return value


def _names(name: str, layers: int) -> list[str]:
    return [name.replace("layers.0.", f"layers.{i}.") for i in range(layers)] if "layers.0." in name else [name]


def copy_layers(source: Path, to: Path, layers: int, larger: Path | None) -> None:
    """A checkpoint of so many layers out of one of a single layer; its shards are links to those of a `larger` one."""
    to.mkdir(parents=True)
    [shard] = source.glob("*.safetensors")
    with shard.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shards = {i: f"model-{i + 1:05}-of-{layers:05}.safetensors" for i in range(layers)}

    def write(layer: int) -> None:
        if larger:
            os.link(next(larger.glob(f"model-{layer + 1:05}-of-*")), to / shards[layer])
            return
        renamed = {_names(name, layers)[layer] if "layers.0." in name else name: at for name, at in header.items()}
        text = json.dumps(renamed, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with shard.open("rb") as old, (to / shards[layer]).open("wb") as new:
            old.seek(int.from_bytes(old.read(8), "little"), 1)
            new.write(len(text).to_bytes(8, "little") + text)
            shutil.copyfileobj(old, new, 16 << 20)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, shards))
    places = {_names(name, layers)[i]: shards[i] for name in header if name != "__metadata__" for i in shards}
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (to / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((source / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(spread(config, layers)))


def command(name: str, folder: Path, device: str) -> list[str]:
    """A command by its name; what it writes is removed before each run."""
    dense, csf, out = folder / "dense", folder / "csf", folder / "out"
    arguments: dict[str, list[object]] = {
        "expand": ["expand", csf, out],
        "verify --against": ["verify", csf, "--against", dense],
        "verify": ["verify", csf],
        "encode": ["compress", dense, out, "--dry-run"],
        "compress": ["compress", dense, out],
    }
    if device == "free":
        return [sys.executable, "-c", FREE, *map(str, arguments[name]), "--device", "cpu"]
    return tool(*arguments[name], "--device", device)


def turns(options: argparse.Namespace, repeats: list[int]) -> Iterator[tuple[int, str, str]]:
    """Layers, command and device of each run: of all sizes, what decides comes first, and the free decode last."""
    for some in (COMMANDS[:3], COMMANDS[3:]):
        for turn in range(max(repeats)):
            for layers in (n for n, repeat in zip(options.layers, repeats, strict=True) if turn < repeat):
                for name in (name for name in some if name in options.commands):
                    yield from ((layers, name, device) for device in options.devices if device != "free")
    if "free" in options.devices:  # it has no meaning where bytes are compared or encoded
        names = [name for name in ("expand", "verify") if name in options.commands]
        yield from ((layers, name, "free") for layers in options.layers for name in names)


def time_commands(options: argparse.Namespace, repeats: list[int], note: Note, begin: float) -> Times:
    """Time the commands; what would begin too late is left out."""
    taken: dict[tuple[int, str, str], list[float]] = {}
    for layers, name, device in turns(options, repeats):
        if time.monotonic() - begin > options.seconds:
            note(left_out=f"{layers} layers, {name}, {device}")
            continue
        folder = options.folder / f"{layers}-layers"
        shutil.rmtree(folder / "out", ignore_errors=True)
        seconds = run(command(name, folder, device))
        shutil.rmtree(folder / "out", ignore_errors=True)
        taken.setdefault((layers, name, device), []).append(seconds)
        note(layers=layers, command=name, device=device, seconds=seconds)
    return {run: median(seconds) for run, seconds in taken.items()}


def row(layers: int, name: str, found: dict[str, float]) -> str:
    """A line of the table: the medians, and auto against the better of CPU and GPU."""
    better = min((found[device] for device in ("cpu", "cuda") if device in found), default=None)
    ratio = f"{found['auto'] / better:.2f}" if better and "auto" in found else ""
    cells = "".join(f"{device} {found[device]:7.2f}   " for device in found)
    return f"TABLE {layers:>2} layers  {name:<17} {cells} auto / better {ratio or '-'}"


def constants(times: Times, opening: float) -> dict[str, float]:
    """The constants of `coders/gpu_worth.py` by these times; `opening` is what a command takes that reads headers."""
    on_cpu, on_gpu = (
        sorted((layers, seconds) for (layers, name, on), seconds in times.items() if (name, on) == ("encode", device))
        for device in ("cpu", "cuda")
    )
    found: dict[str, float] = {}
    for layers, seconds in on_cpu:
        at_work = min(layers, default_jobs())
        found[f"CORE_BYTES_PER_SECOND, {at_work} jobs"] = LAYER_BYTES * layers / (seconds - opening) / at_work
    if len(on_gpu) > 1:
        (few, first), *_, (many, last) = on_gpu
        rate = LAYER_BYTES * (many - few) / (last - first)
        found |= {"GPU_BYTES_PER_SECOND": rate, "GPU_START_SECONDS": first - opening - LAYER_BYTES * few / rate}
    return found


def make(options: argparse.Namespace) -> None:
    """Make all checkpoints: one of a single layer, a large one of copies of it, the others links to its shards."""
    one = options.folder / "1-layers"
    make_dense(one / "dense", 1)
    run(tool("compress", one / "dense", one / "csf", "--device", "cpu"))
    largest = max(options.layers)
    for layers in sorted({*options.layers} - {1}, reverse=True):
        for part in ("dense", "csf"):
            larger = options.folder / f"{largest}-layers" / part if layers < largest else None
            copy_layers(one / part, options.folder / f"{layers}-layers" / part, layers, larger)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeat", type=int, nargs="+", default=[1], help="one number, or one for each size")
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=DEVICES)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    note, begin, one = Note(options.json), time.monotonic(), options.folder / "1-layers"
    make(options)
    note(made=options.layers, seconds=round(time.monotonic() - begin, 2))
    if "cuda" in options.devices:
        note(start=python(STARTS, "cuda"))
    for device in [device for device in options.devices if device in ("cpu", "cuda")]:
        for process in ("first", "second"):  # which finds kernels compiled
            note(load=device, process=process, found=python(LOADS, device, str(next(one.glob("csf/*.safetensors")))))
    opening = min(run(tool("stats", one / "dense")) for _ in range(3))
    note(opening=opening)
    repeats = options.repeat * len(options.layers) if len(options.repeat) == 1 else options.repeat
    times = time_commands(options, repeats, note, begin)
    for layers in options.layers:
        for name in options.commands:
            if found := {device: times[layers, name, device] for device in DEVICES if (layers, name, device) in times}:
                print(row(layers, name, found))
    for layers in options.layers:
        pays = gpu_pays(LAYER_BYTES * layers, min(layers, default_jobs()))
        note(layers=layers, auto_compresses_on="a GPU, if there is one" if pays else "the CPU")
    note(constants_by_these_times=constants(times, opening))
    for layers in {1, *options.layers}:
        shutil.rmtree(options.folder / f"{layers}-layers")


if __name__ == "__main__":
    main()
