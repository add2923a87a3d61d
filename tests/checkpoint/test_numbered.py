"""Names that say how many shards there are: one that is missing is missed, however its name is written."""

from pathlib import Path

import pytest

from csf_tool.checkpoint.numbered import whole_sets
from tests.building import NVFP4, layer, write_shard
from tests.commands import run, says

SETS = {
    "usual": "model-{:05}-of-00003.safetensors",
    "six digits, underscores": "model_{:06}_of_000003.safetensors",
    "a dot": "model.{:05}-of-00003.safetensors",
    "DeepSeek's": "model.safetensors-{:05}-of-00003.safetensors",
    "no zeros, nothing between": "part{}of3.safetensors",
    "upper case": "Model-{}-OF-3.safetensors",
    "a variant at the end": "model-{:05}-of-00003.fp8.safetensors",
    "a variant in the middle": "model.nvfp4-{:05}-of-00003.safetensors",
    "a word at the end": "model-{:05}-of-00003-nvfp4.safetensors",
}


@pytest.mark.parametrize("names", SETS.values(), ids=SETS.keys())
@pytest.mark.parametrize("missing", [1, 3])
def test_a_shard_that_is_missing_without_an_index(tmp_path: Path, names: str, missing: int) -> None:
    root = tmp_path / "in"
    for i in {1, 2, 3} - {missing}:
        write_shard(root / names.format(i), layer(i, NVFP4))
    (root / "config.json").write_text("{}")
    for command in ("stats", "verify", "compress", "expand"):
        destination = [tmp_path / "out"] if command in ("compress", "expand") else []
        result = run(command, root, *destination)
        assert result.exit_code == 1
        says(result, f"{names.format(missing)}: is missing")
    assert not (tmp_path / "out").exists()
    write_shard(root / names.format(missing), layer(missing, NVFP4))
    assert run("verify", root).exit_code == 0


def test_numbers_that_are_written_without_zeros() -> None:
    assert whole_sets(["m-1-of-11.safetensors", "m-11-of-11.safetensors"]) == [
        f"m-{i}-of-11.safetensors" for i in range(1, 12)
    ]


@pytest.mark.parametrize("copy", ["model-1-of-2 (1)", "model-1-of-2-Copy1", "model-1-of-2.bak", "proofs", "of-2"])
def test_copies_and_other_names_claim_no_further_shards(copy: str) -> None:
    usual = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"]
    assert whole_sets([*usual, f"{copy}.safetensors"]) == usual
