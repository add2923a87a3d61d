"""vLLM as a user starts it, in processes of its own: the offline engine, and the OpenAI server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

Answers = list[tuple[list[int], float]]

METADATA = "Metadata-Version: 2.1\nName: reference-experts\nVersion: 0\n"
ENTRY_POINT = "[vllm.general_plugins]\nreference = tests.engines.reference_experts:register\n"


def variables(root: Path) -> dict[str, str]:
    """Variables for a vLLM on this machine, with the plug-in of the experts that it lacks."""
    installed = root / "site" / "reference_experts-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(METADATA)
    (installed / "entry_points.txt").write_text(ENTRY_POINT)
    return os.environ | {
        "PYTHONPATH": f"{installed.parent}:{ROOT}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(root / "cache"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


@cache
def generated(environment: tuple[tuple[str, str], ...], options: str, *models: Path) -> tuple[list[Any], str]:
    """The answers of models one after another in one process, and all that it said."""
    command = [sys.executable, "-m", "tests.engines.generate", options, *map(str, models)]
    run = subprocess.run(command, capture_output=True, text=True, env=dict(environment), cwd=ROOT, timeout=600)
    answers = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"model"')]
    return answers, run.stdout + run.stderr


def answers_of(environment: dict[str, str], models: list[Path], **options: Any) -> tuple[list[Any], str]:
    return generated(tuple(sorted(environment.items())), json.dumps(options), *models)


@contextmanager
def serving(environment: dict[str, str], model: Path, log: Path) -> Iterator[str]:
    """The address of an OpenAI server that serves a model, several processes as a user has them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--enforce-eager", "--max-model-len", "128", "--dtype", "bfloat16"]
    processes = environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("w") as out:
        server = subprocess.Popen(command, env=processes, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


def asked(address: str, path: str, document: Any = None) -> Any:
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.loads(response.read())
