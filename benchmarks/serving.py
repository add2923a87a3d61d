#!/usr/bin/env python3
"""Both memory strategies on a GPU: memory against plan's prediction, speed against safetensors, and the same outputs.

Makes a synthetic model at Qwen3.8's geometry (512 experts, gate and up 640x160 scales, down 2560x40), dense and in
the Hugging Face layout. "Decode when loading" gets dense tensors from `csf_tool.load_file`; "keep compressed" gets
stacks from `csf_tool.load_stack` and decodes them into one `ScaleWorkspace` before each matrix product. A layer's
experts then compute with both, and with the dense checkpoint's own scales, from CUDA graphs.

usage: benchmarks/serving.py FOLDER [--layers 8] [--repeat 3]     (1.35 GB + 1.3 GB of disk a layer, and page cache)
"""

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from files import EXPERTS, HIDDEN, INTERMEDIATE, make_dense
from safetensors.torch import load_file as safetensors_load_file

import csf_tool
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.look.plan import make_plan

DEVICE = "cuda"
TOKENS, EXPERTS_OF_TOKEN = 64, 8
CAPACITY = 4
"""Tokens of each expert in the batched product."""

Scales = Callable[[torch.Tensor | None], torch.Tensor]
"""Gives `[experts, rows, cols]` scales, of experts with tokens at least where `expert_start` is given."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    dense, csf = args.folder / "dense", args.folder / "csf"
    if not dense.exists():
        make_dense(dense, args.layers)
        command = [sys.executable, "-m", "csf_tool", "compress", "dense", "csf"]
        subprocess.run(command, check=True, cwd=args.folder, stdout=subprocess.DEVNULL)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.layers} layers of {EXPERTS} experts")
    warm_up(csf)
    measure_memory(csf)
    measure_loading(dense, csf, args.repeat)
    compare_outputs(dense, csf)


def warm_up(csf: Path) -> None:
    """Compile the kernels, and start what starts once."""
    checkpoint = csf_tool.open_checkpoint(csf)
    names = [plane.name for plane in checkpoint.planes[:6]]
    list(csf_tool.iter_tensors(checkpoint, device=DEVICE, names=names))
    load_stacks(checkpoint, layers=1)


# Memory


def measure_memory(csf: Path) -> None:
    """The peak of either strategy, all tensors loaded, beside what `plan` predicts."""
    checkpoint = csf_tool.open_checkpoint(csf)
    plan = make_plan(checkpoint)
    print("\nGPU memory                        peak          at rest        predicted   peak off by")
    report("decode when loading", lambda: csf_tool.load_file(csf, DEVICE), plan.tensor_bytes + plan.dense_bytes)
    scales = plan.compressed_bytes + max(stack.dense_bytes for stack in plan.stacks)  # one stack at a time, here
    kept = plan.tensor_bytes + scales
    report("keep compressed", lambda: keep_compressed(checkpoint, len(checkpoint.shards)), kept)
    report("  of these, the scales", lambda: load_stacks(checkpoint, len(checkpoint.shards)), scales)


def report(what: str, load: Callable[[], object], predicted: int) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = load()
    torch.cuda.synchronize()
    peak, rest = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    del kept
    print(f"{what:<24} {peak:>16,} {rest:>16,} {predicted:>16,}   {peak / predicted - 1:+.3%}", flush=True)


def load_stacks(checkpoint: Checkpoint, layers: int) -> tuple[list[csf_tool.CsfScales], csf_tool.ScaleWorkspace]:
    stacks = [
        csf_tool.load_stack(checkpoint, layer, projection, device=DEVICE)
        for layer in range(layers)
        for projection in ("gate_up", "down")
    ]
    return stacks, csf_tool.ScaleWorkspace(*stacks)


def keep_compressed(checkpoint: Checkpoint, layers: int) -> object:
    """Stacks first, whose preparing takes some memory for a moment; then everything that is no scale."""
    stacks = load_stacks(checkpoint, layers)
    scales = {plane.name for plane in checkpoint.planes}
    with csf_tool.safe_open(checkpoint.path) as f:
        names = [name for name in f.keys() if name not in scales]
    return stacks, dict(csf_tool.iter_tensors(checkpoint, device=DEVICE, names=names))


# Speed


def measure_loading(dense: Path, csf: Path, repeat: int) -> None:
    """Seconds from a path to all dense tensors on the GPU, files in the page cache; the loaders take turns."""
    nbytes = sum(path.stat().st_size for path in dense.glob("*.safetensors"))
    loaders: dict[str, Callable[[], object]] = {
        "csf_tool.load_file, CSF": lambda: csf_tool.load_file(csf, DEVICE),
        "csf_tool.load_file, dense": lambda: csf_tool.load_file(dense, DEVICE),
        "safetensors load_file, dense": lambda: [safetensors_load_file(p, DEVICE) for p in sorted(dense.glob("*.s*s"))],
    }
    checkpoint = csf_tool.open_checkpoint(csf)
    loaders["csf_tool.load_stack, all"] = lambda: load_stacks(checkpoint, len(checkpoint.shards))
    times: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(repeat):
        for name, load in loaders.items():
            times[name].append(seconds(load))
    print(f"\nLoading {nbytes / 1e9:.2f} GB of dense tensors, medians of {repeat} runs in turn (range)")
    for name, taken in times.items():
        speed = "" if "stack" in name else f"  {nbytes / median(taken) / 1e9:5.2f} GB/s"
        print(f"{name:<30} {median(taken):6.2f} s ({min(taken):.2f} to {max(taken):.2f}){speed}", flush=True)


def seconds(load: Callable[[], object]) -> float:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    kept = load()
    torch.cuda.synchronize()
    taken = time.perf_counter() - begun
    del kept
    return taken


# Outputs

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.bfloat16)


@dataclass
class Experts:
    """The experts of a layer: packed FP4 weights, and bfloat16 room for one of them dequantised."""

    gate_up: torch.Tensor
    down: torch.Tensor
    room: torch.Tensor
    values: torch.Tensor

    def weights(self, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """bfloat16 `[experts, rows, k]`, a few experts at a time: E2M1 value times block scale times global scale."""
        out = self.room.view(-1)[: 2 * packed.numel()].view(*packed.shape[:2], -1)
        for part, codes, blocks in zip(out.split(32), packed.split(32), scales.split(32), strict=True):
            values = self.values[torch.stack((codes & 15, codes >> 4), -1).flatten(-2).int()]
            torch.mul(
                values.unflatten(-1, (-1, 16)), blocks.to(torch.bfloat16)[..., None], out=part.unflatten(-1, (-1, 16))
            )
        return out.mul_(2**-12)

    def batched(self, scales: list[Scales], tokens: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """`[experts, capacity, hidden]` in and out: every expert has tokens."""
        gate_up, down = scales
        hidden = torch.bmm(tokens, self.weights(self.gate_up, gate_up(None)).transpose(1, 2))
        return torch.bmm(gated(hidden), self.weights(self.down, down(None)).transpose(1, 2))

    def grouped(self, scales: list[Scales], tokens: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` in and out, sorted by expert; some experts have no rows."""
        gate_up, down = scales
        weights = self.weights(self.gate_up, gate_up(start))
        hidden = torch._grouped_mm(tokens, weights.transpose(1, 2), offs=start[1:])
        weights = self.weights(self.down, down(start))
        return torch._grouped_mm(gated(hidden), weights.transpose(1, 2), offs=start[1:])


def gated(hidden: torch.Tensor) -> torch.Tensor:
    gate, up = hidden.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def compare_outputs(dense: Path, csf: Path) -> None:
    """A layer's experts with three sources of the same scales, replayed from CUDA graphs with changing tokens."""
    layer = 1
    original = safetensors_load_file(sorted(dense.glob("*.safetensors"))[layer], DEVICE)
    checkpoint = csf_tool.open_checkpoint(csf)
    decoded = dict(csf_tool.iter_tensors(checkpoint, device=DEVICE, names=original))
    stacks = [csf_tool.load_stack(checkpoint, layer, part, device=DEVICE) for part in ("gate_up", "down")]
    workspace = csf_tool.ScaleWorkspace(*stacks)
    experts = Experts(
        gather(original, layer, ("gate_proj", "up_proj"), "weight"),
        gather(original, layer, ("down_proj",), "weight"),
        torch.empty(EXPERTS * 2 * INTERMEDIATE * HIDDEN, dtype=torch.bfloat16, device=DEVICE),
        E2M1.to(DEVICE),
    )
    sources = {
        "dense": resident(original, layer),
        "decoded when loading": resident(decoded, layer),
        "kept compressed": [decoding(workspace, stack) for stack in stacks],
    }
    print("\nA layer's experts from CUDA graphs: milliseconds a replay, outputs against those of the dense scales")
    want: list[torch.Tensor] = []
    for name, scales in sources.items():
        batch, ms_batched = replayed(partial(experts.batched, scales), batches())
        groups, ms_grouped = replayed(partial(experts.grouped, scales), routings())
        want = want or batch + groups
        verdict = compare(want, batch + groups)
        print(f"{name:<22} batched {ms_batched:7.3f}  grouped {ms_grouped:7.3f}   {verdict}", flush=True)


def decoding(workspace: csf_tool.ScaleWorkspace, stack: csf_tool.CsfScales) -> Scales:
    return lambda start: workspace.decompress(stack, expert_start=start)


def gather(tensors: dict[str, torch.Tensor], layer: int, projections: tuple[str, ...], last: str) -> torch.Tensor:
    """`[experts, rows, ...]` of a layer, the projections' rows one after another."""
    stem = f"model.layers.{layer}.mlp.experts"
    planes = [torch.cat([bits(tensors[f"{stem}.{e}.{p}.{last}"]) for p in projections]) for e in range(EXPERTS)]
    return torch.stack(planes).view(tensors[f"{stem}.0.{projections[0]}.{last}"].dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """As bytes, for torch joins no float8."""
    return tensor.view(torch.uint8)


def resident(tensors: dict[str, torch.Tensor], layer: int) -> list[Scales]:
    """Sources of dense scales that stay in memory."""
    return [
        constant(gather(tensors, layer, part, "weight_scale")) for part in (("gate_proj", "up_proj"), ("down_proj",))
    ]


def constant(scales: torch.Tensor) -> Scales:
    return lambda _: scales


Inputs = list[tuple[torch.Tensor, torch.Tensor]]
"""Tokens and expert_start of each forward pass."""


def batches() -> Inputs:
    random = torch.Generator(DEVICE).manual_seed(0)
    shape = (EXPERTS, CAPACITY, HIDDEN)
    start = torch.arange(EXPERTS + 1, dtype=torch.int32, device=DEVICE) * CAPACITY
    return [(torch.randn(shape, generator=random, device=DEVICE, dtype=torch.bfloat16), start) for _ in range(2)]


def routings() -> Inputs:
    """Tokens that choose experts at random, and sorted by them: about 60% of the experts have some."""
    random = torch.Generator(DEVICE).manual_seed(1)
    found = []
    for _ in range(2):
        rows = TOKENS * EXPERTS_OF_TOKEN
        chosen = torch.randint(0, EXPERTS, (rows,), generator=random, device=DEVICE)
        start = torch.zeros(EXPERTS + 1, dtype=torch.int32, device=DEVICE)
        start[1:] = torch.bincount(chosen, minlength=EXPERTS).cumsum(0)
        found.append((torch.randn((rows, HIDDEN), generator=random, device=DEVICE, dtype=torch.bfloat16), start))
    return found


def replayed(
    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], inputs: Inputs
) -> tuple[list[torch.Tensor], float]:
    """Outputs of a captured forward pass for each input, and the milliseconds of a replay."""
    tokens, start = (torch.empty_like(each) for each in inputs[0])
    tokens.copy_(inputs[0][0])
    start.copy_(inputs[0][1])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        forward(tokens, start)  # compiles, and lets libraries allocate what they keep
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = forward(tokens, start)
    outputs, times = [], []
    for own_tokens, own_start in inputs * 5:
        tokens.copy_(own_tokens)
        start.copy_(own_start)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
        outputs.append(result.clone())
    return outputs[: len(inputs)], median(times)


def compare(want: list[torch.Tensor], got: list[torch.Tensor]) -> str:
    """Whether outputs are the same to the bit, and say something."""
    for a, b in zip(want, got, strict=True):
        if not a.isfinite().all() or not a.any():
            raise SystemExit("FAILED: the outputs are no numbers, or all zero: they prove nothing")
        if not torch.equal(a.view(torch.int16), b.view(torch.int16)):
            raise SystemExit(f"FAILED: {int((a != b).sum())} of {a.numel()} outputs differ")
    return f"{sum(a.numel() for a in want):,} outputs identical"


if __name__ == "__main__":
    main()
