"""What each command answers for each kind of published checkpoint in tests/data/published."""

import json
from pathlib import Path

import pytest

import csf_tool
from csf_tool.errors import CheckpointError
from tests.commands import run, says
from tests.oracle import Tensors, logical_tensors

KINDS = Path(__file__).parent / "data" / "published"

COMMANDS = ("stats", "verify", "inspect", "plan", "identity", "compress", "expand", "convert")
OPTIONS = {"identity": ["--by", "sizes"], "compress": ["--keep-larger"], "convert": ["--to", "container"]}

NO_CSF = (0, 0, 0, 2, 0, 2, 2, 2)
DENSE = (0, 0, 2, 2, 0, 0, 2, 2)
CSF = (0, 0, 0, 0, 0, 2, 0, 0)

STACKED = "scales of stacked experts. A CSF plane holds one matrix, so it stays as it is"

ANSWERS: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {
    "llama4-stacked": (NO_CSF, {"stats": "block scales that are not planes", "inspect": STACKED, "compress": STACKED}),
    "qwen3.5-stacked": (NO_CSF, {"stats": "block scales that are not planes", "verify": STACKED, "compress": STACKED}),
    "gpt-oss-stacked": (NO_CSF, {"stats": "scales of MXFP4 that are not planes", "compress": STACKED}),
    "step3.5-stacked": (NO_CSF, {"stats": "scales of NVFP4 that are not planes", "expand": STACKED}),
    "mlx-mxfp4": (
        NO_CSF,
        {"stats": "scales of MXFP4 that are not planes", "compress": "MLX's layout packs the weights"},
    ),
    "fp8-blocks": (NO_CSF, {"stats": "its scales belong to FP8", "compress": "its scales belong to FP8"}),
    "nvfp4-as-u8": (NO_CSF, {"stats": "scale-label: 2", "compress": "it is NVFP4 stored as U8, left dense"}),
    "rows-of-all-experts": (DENSE, {"compress": "with the rows of all experts: csf-tool reads such planes"}),
    "infinity-in-config": (DENSE, {"stats": "dense NVFP4", "compress": "6 NVFP4 planes"}),
    "second-split": (CSF, dict.fromkeys(COMMANDS, "all of its 11 tensors are in 2 other shards as well: left out")),
    "consolidated-names": (CSF, dict.fromkeys(COMMANDS, "it holds a copy of the model under other names")),
    "tensorrt-llm": (NO_CSF, {"stats": "a TensorRT-LLM checkpoint", "compress": "readers of CSF look for other names"}),
    "nunchaku": (
        NO_CSF,
        {"stats": "scales of NVFP4 that are not planes (nunchaku's", "compress": "its groups run along the columns"},
    ),
    "tied-head": (CSF, {"stats": "the config explains that with tie_word_embeddings", "expand": "6 planes decoded"}),
    "ranks": ((1,) * 8, dict.fromkeys(COMMANDS, "one file per rank (tensor parallel)")),
    "predecessor": (
        (1, 1, 2, 2, 2, 2, 1, 1),
        dict.fromkeys(("stats", "verify", "inspect", "compress", "expand", "convert"), "x4t, the predecessor of CSF"),
    ),
}


def logical(root: Path) -> Tensors:
    """The logical tensors of a folder, of the shards that its index lists, by the tests' own decoder."""
    index = root / "model.safetensors.index.json"
    listed = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else None
    return logical_tensors(root, listed)


def test_every_kind_has_its_answers() -> None:
    assert {path.name for path in KINDS.iterdir() if path.is_dir()} == ANSWERS.keys()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ANSWERS)
def test_what_a_command_answers(kind: str, command: str, tmp_path: Path) -> None:
    codes, words = ANSWERS[kind]
    destination = [tmp_path / "out"] if command in ("compress", "expand", "convert") else []
    result = run(command, KINDS / kind, *destination, *OPTIONS.get(command, []))
    assert result.exit_code == codes[COMMANDS.index(command)], result.output
    says(result, *([words[command]] if command in words else []))
    assert command != "stats" or "no FP4 block scales" not in result.output or kind in ("fp8-blocks", "predecessor")
    if destination and result.exit_code == 0:
        found = logical_tensors(tmp_path / "out")
        assert {n: t.data for n, t in found.items()} == {n: t.data for n, t in logical(KINDS / kind).items()}
        assert command != "compress" or (tmp_path / "out" / "config.json").exists() or kind == "rows-of-all-experts"


@pytest.mark.parametrize("kind", ANSWERS)
def test_safe_open_gives_the_logical_tensors(kind: str) -> None:
    if kind in ("ranks", "predecessor"):
        with pytest.raises(CheckpointError, match=r"one file per rank|x4t, the predecessor"):
            csf_tool.safe_open(KINDS / kind, framework="np")
        return
    with csf_tool.safe_open(KINDS / kind, framework="np") as file:
        assert set(file.keys()) == set(logical(KINDS / kind))


def test_the_config_with_infinity_comes_back_as_it_was(tmp_path: Path) -> None:
    root = KINDS / "infinity-in-config"
    assert run("compress", root, tmp_path / "csf", "--keep-larger").exit_code == 0
    assert run("expand", tmp_path / "csf", tmp_path / "back").exit_code == 0
    assert (tmp_path / "back" / "config.json").read_bytes() == (root / "config.json").read_bytes()
