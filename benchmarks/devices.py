#!/usr/bin/env python3
"""Where a GPU helps the commands and the loader: each on the CPU, on the GPU and with auto, and the first load of all.

Makes checkpoints of 1, 4 and 16 layers (`benchmarks/files.py`), then times whole commands, start-up included, and
`csf_tool.load_file` twice in one process after `import torch`. A result is appended to the file as soon as it is there.
The devices take turns; the median of --repeat runs counts, and every run is listed.

usage: benchmarks/devices.py FOLDER [--layers 1 4 16] [--repeat 3] [--json FILE]
       FOLDER needs 2.8 GB of room a layer; /dev/shm leaves the disk out
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from files import make_dense

DEVICES = ("cpu", "cuda", "auto")

LOADS = """
import json, sys, time
import torch
import csf_tool
device, path = sys.argv[1:]
seconds = []
for _ in range(3):
    begin = time.monotonic()
    tensors = csf_tool.load_file(path, device=device)
    torch.cuda.synchronize()
    seconds.append(round(time.monotonic() - begin, 3))
    del tensors
heavy = [name for name in ("torch._dynamo", "sympy", "torch._inductor") if name in sys.modules]
print(json.dumps({"first, second, third": seconds, "imported": heavy}))
"""


def tool(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "csf_tool", *map(str, arguments)]


def seconds(command: list[str]) -> float:
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    taken = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(f"FAILED {' '.join(command)}\n{done.stdout}{done.stderr}")
    return round(taken, 2)


def commands(folder: Path, device: str) -> dict[str, list[str]]:
    """The commands to time by their names; what `expand` writes is removed before each run."""
    dense, csf, out = folder / "dense", folder / "csf", folder / "out"
    return {
        "expand": tool("expand", csf, out, "--device", device),
        "verify --against": tool("verify", csf, "--against", dense, "--device", device),
        "verify": tool("verify", csf, "--device", device),
    }


def time_layers(root: Path, layers: int, repeat: int, note: "Note") -> None:
    folder = root / f"{layers}-layers"
    make_dense(folder / "dense", layers)
    seconds(tool("compress", folder / "dense", folder / "csf", "--device", "cpu"))
    for name in commands(folder, "cpu"):
        taken: dict[str, list[float]] = {device: [] for device in DEVICES}
        for _ in range(repeat):
            for device in DEVICES:
                shutil.rmtree(folder / "out", ignore_errors=True)
                taken[device].append(seconds(commands(folder, device)[name]))
        best = min(median(taken["cpu"]), median(taken["cuda"]))
        note(layers=layers, command=name, seconds=taken, auto_of_better=round(median(taken["auto"]) / best, 3))
    shard = next(folder.glob("csf/*.safetensors"))
    for device in ("cpu", "cuda"):
        done = subprocess.run([sys.executable, "-c", LOADS, device, str(shard)], capture_output=True, text=True)
        note(layers=layers, load=device, found=json.loads(done.stdout) if not done.returncode else done.stderr[-500:])
    shutil.rmtree(folder)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for layers in options.layers:
        time_layers(options.folder, layers, options.repeat, Note(options.json))


if __name__ == "__main__":
    main()
