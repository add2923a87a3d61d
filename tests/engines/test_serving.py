"""CSF checkpoints served by vLLM, as a user starts it: dense and CSF give the same tokens and log-probabilities."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from csf_tool.loading.tensors import opened
from tests.building import overwrite
from tests.engines.checkpoints import NVFP4_PAIRS as PAIRS
from tests.engines.checkpoints import Pairs
from tests.engines.generate import PROMPTS, TOKENS
from tests.engines.serving import Answers, answers_of, asked, serving

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/engines runs these"),
    pytest.mark.slow,
]


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
        "csf_tool.engines.lost_streams",
        "csf_tool.engines.own_reader",
        "csf_tool.engines.version_range",
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


def test_mxfp4(pairs: Pairs, environment: dict[str, str]) -> None:
    """By Kimi's names, with weights of 4 bits and activations of 16."""
    weights_alone = environment | {"VLLM_B12X_MOE_FP4_FORCE_A16": "1"}
    answers, said = answers_of(weights_alone, [*pairs["mxfp4 container"]], moe_backend="b12x")
    assert len(answers) == 2, said[-3000:]
    assert answers[0]["answers"] == answers[1]["answers"]
    assert all(len(set(tokens)) > 2 for tokens, _ in answers[0]["answers"])
    assert said.count("csf-tool decoded 48 CSF planes") == 1


def test_a_broken_stream_ends_it_with_file_and_tensor(pairs: Pairs, environment: dict[str, str], root: Path) -> None:
    broken = Path(shutil.copytree(pairs["index"][1], root / "broken"))
    plane = opened(broken).planes[5]
    overwrite(broken / plane.fixed.shard.name, plane.fixed.tensor.begin, b"\xff")
    answers, said = answers_of(environment, [broken])
    assert answers == []
    assert f"StreamError: {plane.fixed.shard.name}: {plane.name}: " in said


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
