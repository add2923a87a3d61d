"""The ways of serving that `vllm_serving.py` compares, and what its two ways of measuring share: processes, answers."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
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
    """What the plug-in is told."""
    backend: str | None
    beside: str
    """The way whose answers it must give."""


WAYS = {
    "dense, emulation": Way(False, "dense", "emulation", "dense, emulation"),
    "mode 2, emulation": Way(True, "compressed", "emulation", "dense, emulation"),
    "dense": Way(False, "dense", None, "dense"),
    "mode 1": Way(True, "dense", None, "dense"),
    "mode 2": Way(True, "compressed", None, "dense"),
    "dense again": Way(False, "dense", None, "dense"),
}
"""The most important first. The last one differs from "dense" by nothing: what its figures differ by is noise."""


def seconds_left(limit: float) -> float:
    return limit - (time.monotonic() - STARTED)


def lines_of(command: list[str], env: dict[str, str], seconds: float) -> Iterator[str]:
    """What a process says, line by line; it is stopped when its seconds are over, or nothing more is asked for."""
    process = subprocess.Popen(
        command, env=env, cwd=ROOT, text=True, errors="replace", start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    timer = Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))  # its children hold the pipe, too
    timer.start()
    try:
        yield from process.stdout or ()
        process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def child(args: Any, *options: str) -> list[str]:
    """The command of a process that serves, with the options that it shares with its parent."""
    shared = {"--layers": args.layers, "--repeat": args.repeat, "--loads": args.loads, "--tokens": args.tokens}
    values = [text for option, value in shared.items() for text in (option, str(value))]
    script = str(Path(__file__).with_name("vllm_serving.py"))
    return [sys.executable, script, str(args.folder), *values, *(["--tiny"] if args.tiny else []), *options]


def environment(args: Any, plugins: list[str]) -> dict[str, str]:
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
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that memory can be asked for, and several models be in a process
        "VLLM_PLUGINS": ",".join([*plugins, *(["reference"] if args.tiny else [])]) or "none",
    }
    tiny = {"TRITON_INTERPRET": "1", "VLLM_CPU_KVCACHE_SPACE": "1"} if args.tiny else {}
    return os.environ | settings | tiny


def tell(**found: Any) -> None:
    """Say a finding to the parent."""
    print("\n" + json.dumps({"serving": found}), flush=True)


def told(line: str) -> dict[str, Any] | None:
    """The finding that a child says in a line."""
    found: dict[str, Any] | None = json.loads(line)["serving"] if line.startswith('{"serving"') else None
    return found


def plug_in_says(line: str) -> str | None:
    """What the plug-in logs of what it does, without vLLM's prefix."""
    tells = "csf-tool " in line and any(word in line for word in ("keeps", "WARN", "decoded"))
    return line[line.index("csf-tool ") :].rstrip() if tells else None


def say(text: str) -> None:
    print(text, flush=True)


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
