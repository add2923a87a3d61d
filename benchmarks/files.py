#!/usr/bin/env python3
"""How close expand, verify and restore come to plain file tools, in one run on one disk.

Makes a synthetic checkpoint at Qwen3.8's geometry (seeded random weights, block scales with about 1%
exceptions), dense and in both CSF layouts, then times csf-tool beside cp, cmp, sha256sum, the script that
a user would write, and dd with O_DIRECT, one a core: what the disk can do. Prints seconds and ratios; the two of
a pair take turns, the median of --repeat runs counts.

usage: benchmarks/files.py FOLDER [--layers 4] [--repeat 3] [--jobs N]
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from statistics import median

import numpy as np

from csf_tool.codec.formats import NVFP4
from csf_tool.disk.headers import render_header

HIDDEN, INTERMEDIATE, EXPERTS = 2560, 640, 512
PROJECTIONS = {
    "gate_proj": (INTERMEDIATE, HIDDEN),
    "up_proj": (INTERMEDIATE, HIDDEN),
    "down_proj": (HIDDEN, INTERMEDIATE),
}


MakeScales = Callable[[np.random.Generator, tuple[int, ...]], bytes]
"""Makes the block scales of a plane, given its rows and columns."""


def random_scales(rng: np.random.Generator, shape: tuple[int, ...]) -> bytes:
    """Block scales: a band of 12 byte values a row, 1% of them astray, all of them finite."""
    result = rng.integers(0, 12, shape, np.uint8) + rng.integers(80, 100, (shape[0], 1), np.uint8)
    astray = rng.random(shape, np.float32) < 0.01
    result[astray] = rng.integers(0, 127, int(astray.sum()), np.uint8)
    return bytes(result.tobytes())


def make_dense(folder: Path, layers: int, scales: MakeScales = random_scales) -> None:
    """A dense ModelOpt-style checkpoint, a shard a layer; about 1.35 GB a layer."""
    folder.mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        placed = pool.map(write_layer, repeat(folder), range(layers), repeat(layers), repeat(scales))
        weight_map = {tensor: name for name, tensors in placed for tensor in tensors}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    recipe = {"quant_algo": "NVFP4", "group_size": 16}
    layers_config = {f"model.layers.{i}.mlp.experts": recipe for i in range(layers)}
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quantized_layers": layers_config}}))


def write_layer(folder: Path, layer: int, layers: int, scales: MakeScales) -> tuple[str, list[str]]:
    """Write the shard of a layer; its name, and those of its tensors."""
    rng = np.random.default_rng(layer)
    name = f"model-{layer + 1:05}-of-{layers:05}.safetensors"
    entries = []
    for expert in range(EXPERTS):
        for projection, (rows, k) in PROJECTIONS.items():
            stem = f"model.layers.{layer}.mlp.experts.{expert}.{projection}"
            entries += [
                (f"{stem}.input_scale", "F32", (), 4),
                (f"{stem}.weight", "U8", (rows, k // 2), rows * k // 2),
                (f"{stem}.weight_scale", NVFP4.dense_dtype, (rows, k // 16), rows * k // 16),
                (f"{stem}.weight_scale_2", "F32", (), 4),
            ]
    with open(folder / name, "wb") as file:
        file.write(render_header({"format": "pt"}, entries))
        for _, dtype, shape, nbytes in entries:
            if dtype == NVFP4.dense_dtype:
                file.write(scales(rng, shape))
            else:
                file.write(rng.bytes(nbytes) if shape else np.float32(2**-12).tobytes())
    return name, [entry[0] for entry in entries]


NAIVE = """
import json, sys, torch
from pathlib import Path
from safetensors import safe_open
from safetensors.torch import save_file
source, destination = map(Path, sys.argv[1:])
destination.mkdir()
for shard in sorted(source.glob("*.safetensors")):
    tensors = {}
    with safe_open(shard, "pt") as f:
        for name in f.keys():
            if name.endswith("_exceptions"):
                continue
            t = f.get_tensor(name)
            if name.endswith(".nvfp4_csf_fixed"):
                base = name.removesuffix(".nvfp4_csf_fixed")
                slabs, n = t.shape
                codes = t[:, 16:].reshape(slabs, 16, -1)
                dense = torch.empty(slabs, 16, codes.shape[-1] * 2, dtype=torch.uint8)
                dense[..., 0::2] = codes & 15
                dense[..., 1::2] = codes >> 4
                dense += t[:, :16, None]
                flat = dense.reshape(-1)
                words = f.get_tensor(base + ".nvfp4_csf_exceptions").to(torch.int64)
                flat[words & 0xFFFFFF] = (words >> 24).to(torch.uint8)
                tensors[base] = flat.reshape(slabs * 16, -1).view(torch.float8_e4m3fn)
            else:
                tensors[name] = t
    save_file(tensors, destination / shard.name, {"format": "pt"})
"""


class Bench:
    def __init__(self, folder: Path, repeat: int, jobs: list[str]) -> None:
        self.folder, self.repeat, self.jobs = folder, repeat, jobs

    def shell(self, command: str) -> Callable[[], None]:
        return lambda: self._run(["bash", "-c", command])

    def tool(self, *args: str) -> Callable[[], None]:
        return lambda: self._run([sys.executable, "-m", "csf_tool", *args, "--device", "cpu", *self.jobs])

    def _run(self, command: list[str]) -> None:
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL)

    def seconds(self, run: Callable[[], None]) -> float:
        """How long a run takes, from a disk at rest and without earlier output."""
        for output in ("out", "copy"):
            shutil.rmtree(self.folder / output, ignore_errors=True)
        subprocess.run(["sync"], check=True)
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun

    def compare(self, what: str, ours: Callable[[], None], peer: str, theirs: Callable[[], None]) -> None:
        """Print medians, ranges and the ratio of medians; the two take turns, so that a slow spell hits both."""
        pairs = [(self.seconds(ours), self.seconds(theirs)) for _ in range(self.repeat)]
        mine, other = (sorted(times) for times in zip(*pairs, strict=True))
        ratio = median(mine) / median(other)
        print(f"{what:<20} {_spread(mine)}   {peer:<36} {_spread(other)}   {ratio:5.2f}", flush=True)


def _spread(times: list[float]) -> str:
    return f"{median(times):6.2f} s ({times[0]:.2f} to {times[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--jobs")
    args = parser.parse_args()
    folder: Path = args.folder
    bench = Bench(folder, args.repeat, ["--jobs", args.jobs] if args.jobs else [])
    if not (folder / "dense").exists():
        make_dense(folder / "dense", args.layers)
        for layout in ("hf", "container"):
            bench.tool("compress", "dense", layout, "--to", layout)()
        shutil.copytree(folder / "dense", folder / "twin")  # cmp reads two files
    cores = len(os.sched_getaffinity(0))
    nbytes = sum(p.stat().st_size for p in (folder / "dense").iterdir())
    print(f"{nbytes / 1e9:.2f} GB dense, {cores} cores, medians of {args.repeat} runs in turn (and their range)\n")
    sync = "sync -f copy"
    bench.compare("expand hf", bench.tool("expand", "hf", "out"), "cp + sync", bench.shell(f"cp -r dense copy; {sync}"))
    dd = f"mkdir copy; ls dense | xargs -P {cores} -I@ dd if=dense/@ of=copy/@ bs=16M oflag=direct status=none"
    bench.compare(
        "expand hf", bench.tool("expand", "hf", "out"), "dd past the cache + sync", bench.shell(f"{dd}; {sync}")
    )
    against = bench.tool("verify", "hf", "--against", "dense")
    cmp = bench.shell("for f in dense/*; do cmp $f twin/${f#dense/}; done")
    bench.compare("verify hf --against", against, "cmp", cmp)
    hashes = f"ls dense/*.safetensors | xargs -P {cores} -n 1 sha256sum"
    bench.compare("expand container", bench.tool("expand", "container", "out"), "sha256sum", bench.shell(hashes))
    (folder / "naive.py").write_text(NAIVE)
    naive = bench.shell(f"{sys.executable} naive.py hf copy; {sync}")
    bench.compare("expand hf", bench.tool("expand", "hf", "out"), "safe_open, torch decode, save_file", naive)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"\nlargest process so far: {peak / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
