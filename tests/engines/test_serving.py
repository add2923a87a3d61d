"""CSF checkpoints served by vLLM, as a user starts it: dense and CSF give the same tokens and log-probabilities."""

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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from csf_tool.loading.tensors import opened
from tests.building import overwrite
from tests.engines import checkpoints
from tests.engines.generate import PROMPTS, TOKENS
from tests.engines.test_loader import PAIRS

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/engines runs these"),
    pytest.mark.slow,
]

ROOT = Path(__file__).parents[2]
Pairs = dict[str, tuple[Path, Path]]
Answers = list[tuple[list[int], float]]

METADATA = "Metadata-Version: 2.1\nName: reference-experts\nVersion: 0\n"
ENTRY_POINT = "[vllm.general_plugins]\nreference = tests.engines.reference_experts:register\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serving")


@pytest.fixture(scope="module")
def pairs(root: Path) -> Pairs:
    return checkpoints.make(root)


@pytest.fixture(scope="module")
def environment(root: Path) -> dict[str, str]:
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


@pytest.fixture(scope="module")
def offline(pairs: Pairs, environment: dict[str, str]) -> tuple[list[Any], str]:
    """The answers of all models, dense ones first, by `LLM`."""
    dense = [pairs["index"][0], pairs["compressed-tensors"][0]]
    return answers_of(environment, [*dense, *(pairs[pair][1] for pair in PAIRS)])


@pytest.fixture(scope="module")
def dense(offline: tuple[list[Any], str]) -> Answers:
    """The answers of the dense model: all others have the same weights."""
    answers: Answers = offline[0][0]["answers"]
    assert len({tuple(tokens) for tokens, _ in answers}) == len(PROMPTS)
    assert all(len(set(tokens)) > 2 for tokens, _ in answers)
    return answers


def test_the_dense_models_agree(offline: tuple[list[Any], str], dense: Answers) -> None:
    assert offline[0][1]["answers"] == dense, offline[1][-3000:]


@pytest.mark.parametrize("pair", PAIRS)
def test_offline(offline: tuple[list[Any], str], dense: Answers, pair: str) -> None:
    answers, said = offline
    assert len(answers) > 2 + PAIRS.index(pair), said[-3000:]
    assert answers[2 + PAIRS.index(pair)]["answers"] == dense


def test_every_csf_checkpoint_is_one_line_of_the_log(offline: tuple[list[Any], str], pairs: Pairs) -> None:
    lines = [line for line in offline[1].splitlines() if "csf-tool decoded 48 CSF planes" in line]
    assert len(lines) == len(PAIRS)
    assert all(str(pairs[pair][1]) in line for pair, line in zip(PAIRS, lines, strict=True))
    assert "is already registered, and will be overwritten" not in "".join(
        line for line in offline[1].splitlines() if "Load format" in line
    )


def test_unused_the_plugin_imports_nothing_further(offline: tuple[list[Any], str]) -> None:
    """What is imported when a dense checkpoint has been loaded: the registering, and no reading of checkpoints."""
    assert set(offline[0][0]["imported"]) == {
        "csf_tool",
        "csf_tool.version",
        "csf_tool.engines",
        "csf_tool.engines.own_reader",
        "csf_tool.engines.vllm",
        *(f"csf_tool.engines.vllm.{n}" for n in ("plugin", "formats", "containers", "loader", "model")),
        *(f"csf_tool.engines.vllm.{n}" for n in ("keep_choice", "streams", "versions")),
    }


def test_without_the_plugin(pairs: Pairs, environment: dict[str, str], dense: Answers) -> None:
    """The dense checkpoint gives what it gives with it, and vLLM refuses the CSF one: the plug-in is what reads it."""
    answers, said = answers_of(environment | {"VLLM_PLUGINS": "reference"}, list(pairs["index"]))
    assert [answer["answers"] for answer in answers] == [dense], said[-3000:]
    assert answers[0]["imported"] == []
    assert "nvfp4_csf_" in said


def test_two_ranks(pairs: Pairs, environment: dict[str, str]) -> None:
    """Tensor parallel. Sums have another order than on one rank: compared is dense on two ranks."""
    binding = environment | {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    answers, said = answers_of(binding, [pairs["container"][0], pairs["container"][1]], tensor_parallel_size=2)
    assert len(answers) == 2, said[-3000:]
    assert answers[0]["answers"] == answers[1]["answers"]
    assert said.count("csf-tool decoded 48 CSF planes") == 2


def test_a_broken_stream_ends_it_with_file_and_tensor(pairs: Pairs, environment: dict[str, str], root: Path) -> None:
    import shutil

    broken = Path(shutil.copytree(pairs["index"][1], root / "broken"))
    plane = opened(broken).planes[5]
    overwrite(broken / plane.fixed.shard.name, plane.fixed.tensor.begin, b"\xff")
    answers, said = answers_of(environment, [broken])
    assert answers == []
    assert f"StreamError: {plane.fixed.shard.name}: {plane.name}: " in said


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


def test_a_container_from_the_server(
    pairs: Pairs, environment: dict[str, str], offline: tuple[list[Any], str], dense: Answers, root: Path
) -> None:
    model = pairs["container"][1]
    log = root / "server.log"
    with serving(environment, model, log) as address:
        assert [entry["id"] for entry in asked(address, "/v1/models")["data"]] == [str(model)]
        found = []
        for prompt in PROMPTS:
            request = {"model": str(model), "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 1}
            request |= {"ignore_eos": True, "return_tokens_as_token_ids": True}
            logprobs = asked(address, "/v1/completions", request)["choices"][0]["logprobs"]
            tokens = [int(token.removeprefix("token_id:")) for token in logprobs["tokens"]]
            found.append((tokens, sum(logprobs["token_logprobs"])))
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in dense]
    assert [total for _, total in found] == pytest.approx([total for _, total in dense], abs=1e-4)
    assert log.read_text().count("csf-tool decoded 48 CSF planes") == 1
