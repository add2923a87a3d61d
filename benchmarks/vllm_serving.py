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

`--ways dense "mode 1"` compares these two alone. Against the time limit, rounds after the first are dropped first, then
the runs at the end of the first. `--tiny` tries all of it on a CPU, with experts that the tests have.
"""

import argparse
import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
BATCHES = (1, 16, 64)
STARTED = time.monotonic()

ENTRY_POINTS = {
    "csf_tool": "csf = csf_tool.engines.vllm.plugin:register",
    "reference_experts": "reference = tests.engines.reference_experts:register",
}


class Way(NamedTuple):
    """A way of serving the model."""

    compressed: bool
    """The CSF checkpoint, not the dense one."""
    keep: str
    """What CSF_TOOL_VLLM says."""
    backend: str | None
    beside: str
    """The way whose answers it must give."""


WAYS = {
    "dense, emulation": Way(False, "dense", "emulation", "dense, emulation"),
    "mode 2, emulation": Way(True, "compressed", "emulation", "dense, emulation"),
    "dense": Way(False, "dense", None, "dense"),
    "mode 1": Way(True, "dense", None, "dense"),
    "mode 2": Way(True, "compressed", None, "dense"),
}
"""The most important first."""


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
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        make(args.folder, args.layers, args.tiny)
    elif args.serve:
        serve(args.folder, WAYS[args.serve], args)
    else:
        measure(args)


# The parent: runs one process after another, and compares


def measure(args: argparse.Namespace) -> None:
    def left() -> float:
        return float(args.limit) - (time.monotonic() - STARTED)

    if not (args.folder / "csf").exists():
        run(args, ["--make"], os.environ.copy(), max(left(), 1))
        say(f"made the model, dense: {time.monotonic() - STARTED:.0f} s since the start")
        code = [sys.executable, "-m", "csf_tool", "compress", str(args.folder / "dense"), str(args.folder / "csf")]
        subprocess.run(code, env=environment(), check=True, timeout=max(left(), 1), stdout=subprocess.DEVNULL)
        say(f"compressed it: {time.monotonic() - STARTED:.0f} s since the start")
    ways = [name for name in WAYS if name in args.ways]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    longest = 0.0
    for number in range(args.rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            if left() < max(longest * 1.1, 20):
                say(f"round {number + 1}: {name}: left out, {left():.0f} s are left")
                continue
            began = time.monotonic()
            results[name].append(served(args, name, left()))
            longest = max(longest, time.monotonic() - began)
            say(f"round {number + 1}: {name}: {time.monotonic() - began:.0f} s; {brief(results[name][-1])}")
    table(results)
    compare(results)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


def served(args: argparse.Namespace, name: str, seconds: float) -> dict[str, Any]:
    """What a process says that serves the model one way: all that it has said when it ends, or is stopped."""
    way = WAYS[name]
    plugins = [plugin for plugin, use in (("csf", way.compressed), ("reference", args.tiny)) if use] or ["none"]
    env = environment() | {"VLLM_PLUGINS": ",".join(plugins), "CSF_TOOL_VLLM": way.keep}
    if args.tiny:
        env |= {"TRITON_INTERPRET": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    text = run(args, ["--serve", name], env, seconds)
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith('{"serving"'):
            found |= json.loads(line)["serving"]
        elif "csf-tool " in line and ("keeps" in line or "WARN" in line or "decoded" in line):
            found.setdefault("said", []).append(line[line.index("csf-tool ") :])
    if "speed" not in found:
        say("\n".join(text.splitlines()[-25:]))
    return found


def run(args: argparse.Namespace, options: list[str], env: dict[str, str], seconds: float) -> str:
    command = [sys.executable, __file__, str(args.folder), "--layers", str(args.layers), *options]
    command += [
        "--repeat",
        str(args.repeat),
        "--loads",
        str(args.loads),
        "--tokens",
        str(args.tokens),
        *(["--tiny"] if args.tiny else []),
    ]
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            done = subprocess.run(command, env=env, stdout=log, stderr=log, timeout=seconds, cwd=ROOT)
            failed = done.returncode != 0
        except subprocess.TimeoutExpired:
            failed = True
        log.seek(0)
        text = log.read()
    if failed and "--make" in options:
        raise SystemExit(text[-3000:])
    return text


def environment() -> dict[str, str]:
    """Variables for vLLM, with the plug-ins where it finds them, installed or not."""
    site = Path(tempfile.gettempdir(), f"csf-tool-plug-ins-{os.getpid()}")
    for name, line in ENTRY_POINTS.items():
        installed = site / f"{name}-0.dist-info"
        installed.mkdir(parents=True, exist_ok=True)
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
        (installed / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{line}\n")
    path = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])
    settings = {
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that memory can be asked for
    }
    return os.environ | settings


def say(text: str) -> None:
    print(text, flush=True)


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


def compare(results: dict[str, list[dict[str, Any]]]) -> None:
    """Say of each way whether all its runs gave the answers of the dense way beside it, to the bit."""
    for name, found in results.items():
        wanted = [one["answers"] for one in results.get(WAYS[name].beside, []) if "answers" in one][:1]
        own = [one["answers"] for one in found if "answers" in one]
        if wanted and own:
            same = [answers == wanted[0] for answers in own]
            say(f"{name}: {sum(same)} of {len(same)} runs give the tokens and log-probabilities of {WAYS[name].beside}")
            if not all(same):
                say(f"  first difference: {difference(wanted[0], own[same.index(False)])}")


def difference(wanted: list[Any], own: list[Any]) -> str:
    for i, (one, other) in enumerate(zip(wanted, own, strict=True)):
        for j, pair in enumerate(zip(one, other, strict=True)):
            if pair[0] != pair[1]:
                return f"prompt {i}, token {j}: {pair[0]} and {pair[1]}"
    return "none"


# The child that serves


def serve(folder: Path, way: Way, args: argparse.Namespace) -> None:
    began = time.monotonic()
    measure_loading(0 if way.backend else args.loads)
    from vllm import LLM, SamplingParams

    tiny: dict[str, Any] = {"enforce_eager": True} if args.tiny else {}
    graphs = {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]}}
    backend = way.backend or ("emulation" if args.tiny else None)
    options = (tiny or graphs) | ({"moe_backend": backend} if backend else {})
    llm = LLM(
        model=str(folder / ("csf" if way.compressed else "dense")),
        max_model_len=512,
        max_num_seqs=64,
        gpu_memory_utilization=0.6,
        enable_prefix_caching=False,
        **options,
    )
    tell(start=time.monotonic() - began)
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3)
    answers = [
        [[token.token_ids[i], *map(value, sorted(token.logprobs[i].items()))] for i in range(24)]
        for n in (8, 1)
        for token in (answer.outputs[0] for answer in llm.generate(prompts(n), greedy, use_tqdm=False))
    ]
    tell(answers=answers, digest=hashlib.sha256(json.dumps(answers).encode()).hexdigest()[:16])
    speed: dict[str, list[float]] = {}
    for batch in BATCHES:
        sampling = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
        for i in range(args.repeat + 1):
            start = time.perf_counter()
            llm.generate(prompts(batch), sampling, use_tqdm=False)
            if i:
                seconds = time.perf_counter() - start
                speed.setdefault(str(batch), []).append(batch * args.tokens / seconds)
        tell(speed=speed)


def value(item: tuple[int, Any]) -> list[Any]:
    return [item[0], item[1].logprob]


def prompts(number: int) -> list[dict[str, list[int]]]:
    """Prompts of 32 tokens, each another."""
    return [{"prompt_token_ids": [(7 * i + 13 * j + i * j) % 256 for j in range(32)]} for i in range(number)]


def tell(**found: Any) -> None:
    print("\n" + json.dumps({"serving": found}), flush=True)


def measure_loading(repeat: int) -> None:
    """Have vLLM's worker tell how long loading the model took, the first time and later, and what memory it took."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model
    from vllm.v1.worker.gpu_worker import Worker

    def allocated() -> int:
        gc.collect()
        if not torch.cuda.is_available():
            return 0
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    def once(config: Any) -> tuple[float, int, int]:
        """Seconds of loading a model that is let go, and the peaks of the process's and the device's memory."""
        allocated()
        new_peaks()
        start = time.perf_counter()
        try:
            with set_current_vllm_config(config):
                get_model(vllm_config=config)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return time.perf_counter() - start, *peaks()
        finally:  # layers by name, each of which is new the next time
            for known in ("static_forward_context", "static_all_moe_layers"):
                getattr(config.compilation_config, known, {}).clear()

    def measured(load_model: Callable[..., None]) -> Callable[..., None]:
        def load(self: Any, *args: Any, **kwargs: Any) -> None:
            times = [once(self.vllm_config) for _ in range(repeat + 1)] if repeat else []
            before, start = allocated(), time.perf_counter()
            load_model(self, *args, **kwargs)
            first = times[0][0] if times else time.perf_counter() - start
            seconds, host, device = zip(*times[1:], strict=True) if times[1:] else ((), (), ())
            tell(first_load=first, later_loads=seconds, host=host, device=device, bytes=allocated() - before)

        return load

    Worker.load_model = measured(Worker.load_model)


def new_peaks() -> None:
    """Have `peaks` count from here on."""
    import torch

    with suppress(OSError):  # not every container allows it
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peaks() -> tuple[int, int]:
    """The most bytes that the process has had resident, and on the device."""
    import torch

    status = Path("/proc/self/status").read_text().splitlines()
    host = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
    return host, torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


# The child that makes the model


def make(folder: Path, layers: int, tiny: bool) -> None:
    import torch
    from safetensors.torch import save_file

    from tests.engines import models

    size = models.Size(layers, 256, 128, 8) if tiny else models.Size(layers, 2560, 640, 512, 20)
    device = "cpu" if tiny else "cuda"
    torch.manual_seed(0)
    dense = folder / "dense"
    dense.mkdir(parents=True)
    placed: dict[str, str] = {}
    for i, part in enumerate(parts(size, device)):
        name = f"model-{i + 1:05}-of-{layers + 1:05}.safetensors"
        save_file(part, dense / name, {"format": "pt"})
        placed |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": placed}
    (dense / "model.safetensors.index.json").write_text(json.dumps(index))
    config = models.config(size) | {"quantization_config": models.mixed_precision(size)}
    config |= {"max_position_embeddings": 2048, "num_experts_per_tok": 2 if tiny else 8}
    (dense / "config.json").write_text(json.dumps(config, indent=1))
    models.write_tokenizer(dense)


def parts(size: Any, device: str) -> Iterator[dict[str, Any]]:
    """The tensors of each shard: those of `tests.engines.models`, the experts made all at once on the device."""
    import torch

    from tests.engines import models

    outer = models.Size(size.layers, size.hidden, size.width, 0, size.heads)
    for number, part in enumerate(models.tensors(outer, models.modelopt)):
        if number:
            stem = f"model.layers.{number - 1}.mlp"
            gate = torch.randn(size.experts, size.hidden, device=device) * 0.05
            part[f"{stem}.gate.weight"] = gate.bfloat16().cpu()
            for name in ("gate", "up", "down"):
                part |= experts(f"{stem}.experts", f"{name}_proj", size, device)
        yield part


def experts(stem: str, projection: str, size: Any, device: str) -> dict[str, Any]:
    """The matrices of all experts of a projection in NVFP4, by ModelOpt's names."""
    import torch

    from tests.engines import models

    found: dict[str, Any] = {}
    rows, cols = (size.hidden, size.width) if projection == "down_proj" else (size.width, size.hidden)
    for begin in range(0, size.experts, 64):  # so many that they fit beside their codes
        some = min(64, size.experts - begin)
        spread = torch.exp(torch.randn(some * rows, 1, device=device) * 0.5)
        weights = (torch.randn(some * rows, cols, device=device) * 0.05 * spread).clamp(-0.5, 0.5)
        packed, scales, whole = models.nvfp4(weights, torch.tensor(0.5, device=device))
        packed, scales = packed.cpu().view(some, rows, -1), scales.cpu().view(some, rows, -1)
        for i in range(some):
            module = f"{stem}.{begin + i}.{projection}"
            found |= {f"{module}.weight": packed[i].clone(), f"{module}.weight_scale": scales[i].clone()}
            found |= {f"{module}.weight_scale_2": whole.cpu().clone(), f"{module}.input_scale": torch.tensor(0.01)}
    return found


if __name__ == "__main__":
    main()
