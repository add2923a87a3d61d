"""One file a rank: recognised by the files' names and tensors, in one line, by every command."""

from pathlib import Path

import pytest

from csf_tool.checkpoint.ranks import numbered_ranks
from tests.building import NVFP4, Tensor, layer, matrix, mini_dense, mini_hf, shard_name, write_json, write_shard
from tests.commands import run, says

COMMON = layer(0, NVFP4)
SAVES = {
    "vLLM's sharded state": [f"model-rank-{i}-part-0.safetensors" for i in range(4)],
    "Llama's": [f"consolidated.{i:02d}.safetensors" for i in range(8)],
    "Llama's with a number": [f"consolidated.{i:02d}-of-02.safetensors" for i in range(2)],
    "DeepSeek's": [f"model{i}-mp8.safetensors" for i in range(8)],
    "TensorRT-LLM's": [f"rank{i}.safetensors" for i in range(12)],
    "Megatron's": [f"mp_rank_{i:02d}_model_states.safetensors" for i in range(2)],
    "from 1": [f"model_tp{i}.safetensors" for i in (1, 2)],
    "from 1 to a number, otherwise written": [f"model_{i}_of_3.fp4.safetensors" for i in (1, 2, 3)],
    "from 1 to a number": [f"model-{i:05d}-of-00004.safetensors" for i in (1, 2, 3, 4)],
}


@pytest.mark.parametrize("names", SAVES.values(), ids=SAVES.keys())
@pytest.mark.parametrize("experts", ["divided in rows", "divided among ranks"])
def test_every_command_says_so_in_one_line(tmp_path: Path, names: list[str], experts: str) -> None:
    root = tmp_path / "root"
    for i, name in enumerate(names):
        own = matrix(f"model.layers.0.mlp.experts.{i + 1}.w1", NVFP4, i) if experts == "divided among ranks" else []
        write_shard(root / name, COMMON + own)
    write_json(root / "config.json", {"model_type": "mini"})
    for command in ("stats", "plan", "inspect", "verify", "identity", "expand", "compress", "convert"):
        destination = [tmp_path / "out"] if command in ("expand", "compress", "convert") else []
        result = run(command, root, *destination, *(["--to", "hf"] if command == "convert" else []))
        assert result.exit_code == 1
        assert len(result.output.splitlines()) == 1
        says(result, "one file per rank (tensor parallel), each with its part of the tensors: csf-tool cannot read")
        says(result, f"({len(names)} files, for example {min(names)})")
        assert "move" not in result.output
    assert run("stats", root / names[0]).exit_code == 0


def test_parts_of_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        for part in range(3):
            write_shard(tmp_path / f"model-rank-{rank}-part-{part}.safetensors", layer(part, NVFP4))
    says(run("stats", tmp_path), "(6 files, for example model-rank-0-part-0.safetensors)")


def test_ordinary_sets_are_no_ranks(tmp_path: Path) -> None:
    for i, total in ((1, 2), (2, 2)):
        write_shard(tmp_path / "sets" / shard_name(i, total), layer(i, NVFP4))
    assert run("stats", tmp_path / "sets").exit_code == 0
    for i in range(2):
        write_shard(tmp_path / "from 0" / f"model-0000{i}-of-00002.safetensors", layer(i, NVFP4))
    assert run("stats", tmp_path / "from 0").exit_code == 0
    write_shard(tmp_path / "copy" / "model.safetensors", COMMON)
    write_shard(tmp_path / "copy" / "model (1).safetensors", COMMON)
    assert "tensor parallel" not in run("stats", tmp_path / "copy").output


def test_ranks_beside_an_index_are_left_aside(tmp_path: Path) -> None:
    root = mini_dense(tmp_path)
    for i in range(2):
        write_shard(root / f"rank{i}.safetensors", COMMON)
    result = run("stats", root)
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if "left out" in line]
    assert [f"rank{i}.safetensors" in line for i, line in enumerate(lines)] == [True, True]


def test_all_shards_takes_ranks_for_shards(tmp_path: Path) -> None:
    for i in range(2):
        write_shard(tmp_path / f"rank{i}.safetensors", [Tensor("a", "U8", (1,), b"x")])
    result = run("stats", tmp_path, "--all-shards")
    assert result.exit_code == 1
    says(result, "a: is also in rank0.safetensors")


@pytest.mark.parametrize("names", [["mp_rank_00", "mp_rank_01"], ["rank-0", "rank-1"], ["tp1", "tp2"]])
def test_one_folder_a_rank(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        write_shard(tmp_path / name / "model.safetensors", COMMON)
    result = run("stats", tmp_path)
    assert result.exit_code == 1
    says(result, "one folder per rank (tensor parallel)", f"(2 folders, for example {names[0]})")


def test_folders_of_several_checkpoints_are_not_ranks(tmp_path: Path) -> None:
    for name in ("checkpoint-0", "checkpoint-1"):
        mini_hf(tmp_path / name)
    says(run("stats", tmp_path), "it contains 2 checkpoints: give one of them: checkpoint-0, checkpoint-1")


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["model-00001-of-00002", "model-00001-of-00003"], 0),
        (["step-500", "step-1000"], 0),
        (["v1", "v2"], 0),
        (["model", "model (1)", "model (2)"], 0),
        (["a-0-b-0", "a-1-b-0", "a-0-b-1", "a-1-b-1"], 4),
    ],
)
def test_numbers_that_count_ranks(names: list[str], groups: int) -> None:
    assert len(numbered_ranks(names)) == groups
