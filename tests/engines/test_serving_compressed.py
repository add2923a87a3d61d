"""CSF checkpoints served by vLLM, their scales kept compressed: tokens and log-probabilities of the dense one."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import CompressTo
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.loading.tensors import opened
from csf_tool.progress import Silent
from csf_tool.write.compress import CompressOptions, compress
from csf_tool.write.selection import Rules
from tests.building import overwrite
from tests.engines.checkpoints import Pairs
from tests.engines.serving import answers_of

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/engines runs these"),
    pytest.mark.slow,
]

LAYOUTS = ("index", "compressed-tensors", "container")
KEPT = "csf-tool keeps the block scales of 2 layers compressed"
NOT_KEPT = "scales are decoded when loading, not kept compressed"


@pytest.fixture(scope="module")
def compressed(environment: dict[str, str]) -> dict[str, str]:
    """Variables with the choice made, and with Triton on the CPU."""
    return environment | {"CSF_TOOL_VLLM": "compressed", "TRITON_INTERPRET": "1"}


@pytest.fixture(scope="module")
def partly(pairs: Pairs, root: Path) -> Path:
    """A checkpoint some of whose planes are stored dense, in modules whose others are compressed."""
    target = root / "partly"
    options = CompressOptions(CompressTo.CONTAINER, Rules(exclude=("*experts.2.up*", "*1.mlp.experts.5*")))
    compress(open_checkpoint(pairs["one file"][0]), target, options, NumpyEncoder(), NumpyDecoder(), Silent())
    assert opened(target).dense_planes and opened(target).planes
    return target


@pytest.fixture(scope="module")
def offline(pairs: Pairs, compressed: dict[str, str], partly: Path) -> tuple[list[Any], str]:
    models = [pairs["index"][0], *(pairs[pair][1] for pair in LAYOUTS), partly]
    return answers_of(compressed, models)


@pytest.mark.parametrize("number", range(1, len(LAYOUTS) + 2), ids=[*LAYOUTS, "planes kept dense"])
def test_offline(offline: tuple[list[Any], str], number: int) -> None:
    answers, said = offline
    assert len(answers) > number, said[-3000:]
    assert answers[number]["answers"] == answers[0]["answers"]


def test_what_is_kept_is_a_line_beside_what_plan_predicts(offline: tuple[list[Any], str]) -> None:
    lines = [line for line in offline[1].splitlines() if KEPT in line]
    assert len(lines) == len(LAYOUTS) + 1
    assert all("+0.00%" in line for line in lines[: len(LAYOUTS)]), lines  # no starts of 512 experts here
    assert NOT_KEPT not in offline[1]
    assert "csf-tool decoded" not in offline[1]


def test_two_ranks(pairs: Pairs, compressed: dict[str, str]) -> None:
    binding = compressed | {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    answers, said = answers_of(binding, [*pairs["container"]], tensor_parallel_size=2)
    assert len(answers) == 2, said[-3000:]
    assert answers[0]["answers"] == answers[1]["answers"]
    assert said.count(KEPT) == 2


def test_a_situation_in_which_it_cannot_be_is_one_warning(
    pairs: Pairs, environment: dict[str, str], offline: tuple[list[Any], str]
) -> None:
    """Chosen by vLLM's own option, without an interpreter for kernels."""
    options = {"model_loader_extra_config": {"csf": "compressed"}}
    answers, said = answers_of(environment | {"TRITON_INTERPRET": "0"}, [pairs["index"][1]], **options)
    assert [answer["answers"] for answer in answers] == [offline[0][0]["answers"]], said[-3000:]
    (line,) = [line for line in said.splitlines() if NOT_KEPT in line]
    assert "WARNING" in line and "decoding while serving needs a GPU" in line
    assert said.count("csf-tool decoded 48 CSF planes") == 1


def test_a_broken_stream_ends_it_with_file_and_tensor(pairs: Pairs, compressed: dict[str, str], root: Path) -> None:
    broken = Path(shutil.copytree(pairs["index"][1], root / "broken-compressed"))
    plane = opened(broken).planes[5]
    overwrite(broken / plane.fixed.shard.name, plane.fixed.tensor.begin, b"\xff")
    answers, said = answers_of(compressed, [broken])
    assert answers == []
    assert f"StreamError: {plane.fixed.shard.name}: {plane.name}: " in said


def test_what_is_compressed_is_not_loaded_anew(pairs: Pairs, compressed: dict[str, str]) -> None:
    code = (
        "import sys\nfrom vllm import LLM\n"
        "llm = LLM(model=sys.argv[1], enforce_eager=True, max_model_len=128, max_num_seqs=4, dtype='bfloat16')\n"
        "llm.collective_rpc('reload_weights')\n"
    )
    command = [sys.executable, "-c", code, str(pairs["index"][1])]
    done = subprocess.run(command, capture_output=True, text=True, env=compressed, timeout=600)
    assert done.returncode
    assert "UsageError: model.layers.0.mlp.experts: scales that are kept compressed cannot be loaded again" in (
        done.stdout + done.stderr
    )
