#!/usr/bin/env python3
"""Where a GPU helps the commands and the loader: each on the CPU, on the GPU and with auto, and the first load of all.

Makes checkpoints of Qwen3.8's geometry: one layer (`benchmarks/files.py`), the others copies of it under their own
names. Whole commands are timed, start-up included, and `csf_tool.load_file` in a process after `import torch`. The
devices take turns, and the median counts. "free" is the CPU with a decode that takes no time and gives wrong bytes:
what no device can beat. The lines TABLE have what `auto` is judged by: 1.05 at most. Every run is appended to the file
as soon as it is done; what would begin after --seconds is left out.

usage: benchmarks/devices.py FOLDER [--layers 1 4 16] [--repeat 3 2 1] [--seconds 200] [--json FILE]
       [--devices cpu cuda auto free] [--commands expand compress ...]
       FOLDER needs 4.2 GB of room a layer; /dev/shm leaves the disk out
"""

import argparse
import json
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

from csf_tool.coders.gpu_worth import gpu_pays
from csf_tool.running.jobs import default_jobs

LAYER_BYTES = 157_286_400
"""Scales of a layer."""

DEVICES = ("cpu", "cuda", "auto", "free")
COMMANDS = ("expand", "verify --against", "compress", "verify")

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
import json, time
begin = time.monotonic()
import torch
imported = time.monotonic()
torch.zeros(1, device="cuda").item()
context = time.monotonic()
import numpy as np
from csf_tool.codec.formats import NVFP4
from csf_tool.gpu.encode import compress_csf_scales
def encode():
    scales = torch.zeros(2, 640, 160, dtype=torch.uint8, device="cuda")
    compress_csf_scales(NVFP4, scales).fixed.cpu()
    return time.monotonic()
first, second = encode(), encode()
steps = begin, imported, context, first, second
names = "import torch", "CUDA", "first encode", "second encode"
print(json.dumps({name: round(b - a, 2) for name, a, b in zip(names, steps, steps[1:])}))
"""


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


def copy_layers(source: Path, to: Path, layers: int) -> None:
    """A checkpoint of so many layers out of one of a single layer."""
    to.mkdir(parents=True)
    [shard] = source.glob("*.safetensors")
    with shard.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shards = {i: f"model-{i + 1:05}-of-{layers:05}.safetensors" for i in range(layers)}

    def write(layer: int) -> None:
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
        "compress": ["compress", dense, out],
    }
    if device == "free":
        return [sys.executable, "-c", FREE, *map(str, arguments[name]), "--device", "cpu"]
    return tool(*arguments[name], "--device", device)


class Note:
    """Prints results, and appends them to a file: a run that is cut off leaves what it has."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def __call__(self, **result: object) -> None:
        line = json.dumps(result)
        print(line, flush=True)
        if self.path:
            with self.path.open("a") as file:
                file.write(line + "\n")


def turns(options: argparse.Namespace, repeat: int) -> Iterator[tuple[str, str]]:
    """Command and device of each run of a size: what decides comes first, the free decode last."""
    for _ in range(repeat):
        for name in options.commands:
            yield from ((name, device) for device in options.devices if device != "free")
    if "free" in options.devices:  # it has no meaning where bytes are compared or encoded
        yield from ((name, "free") for name in options.commands if name in ("expand", "verify"))


def time_size(folder: Path, layers: int, repeat: int, options: argparse.Namespace, note: Note) -> None:
    """Time the commands on a checkpoint of so many layers."""
    taken: dict[tuple[str, str], list[float]] = {}
    for name, device in turns(options, repeat):
        if options.late():
            note(layers=layers, left_out=f"{name} {device}")
            continue
        shutil.rmtree(folder / "out", ignore_errors=True)
        seconds = run(command(name, folder, device))
        taken.setdefault((name, device), []).append(seconds)
        note(layers=layers, command=name, device=device, seconds=seconds)
    for name in options.commands:
        print(row(layers, name, {device: median(taken[name, device]) for device in DEVICES if (name, device) in taken}))


def row(layers: int, name: str, found: dict[str, float]) -> str:
    """A line of the table: the medians, and auto against the better of CPU and GPU."""
    better = min((found[device] for device in ("cpu", "cuda") if device in found), default=None)
    ratio = f"{found['auto'] / better:.2f}" if better and "auto" in found else ""
    cells = "".join(f"{device} {found[device]:7.2f}   " for device in found)
    return f"TABLE {layers:>2} layers  {name:<17} {cells} auto / better {ratio or '-'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeat", type=int, nargs="+", default=[3, 2, 1], help="one number, or one for each size")
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=DEVICES)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    note, begin = Note(options.json), time.monotonic()
    one = options.folder / "1-layers"
    make_dense(one / "dense", 1)
    run(tool("compress", one / "dense", one / "csf", "--device", "cpu"))
    note(made="1 layer", seconds=round(time.monotonic() - begin, 2))
    if "cuda" in options.devices:
        note(start=python(STARTS))
    shard = str(next(one.glob("csf/*.safetensors")))
    for device in options.devices:
        if device in ("cpu", "cuda"):
            note(load=device, found=python(LOADS, device, shard))
    repeats = options.repeat * len(options.layers) if len(options.repeat) == 1 else options.repeat
    for layers, repeat in zip(options.layers, repeats, strict=True):
        folder = options.folder / f"{layers}-layers"
        if layers > 1:
            made = time.monotonic()
            for part in ("dense", "csf"):
                copy_layers(one / part, folder / part, layers)
            note(made=f"{layers} layers", seconds=round(time.monotonic() - made, 2))
        pays = gpu_pays(LAYER_BYTES * layers, min(layers, default_jobs()))
        note(layers=layers, auto_compresses_on="a GPU, if there is one" if pays else "the CPU")
        options.late = lambda: time.monotonic() - begin > options.seconds
        time_size(folder, layers, repeat, options, note)
        if layers > 1:
            shutil.rmtree(folder)
    shutil.rmtree(one)


if __name__ == "__main__":
    main()
