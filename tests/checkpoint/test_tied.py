"""Entries of an index that no shard holds: tied weights that the config explains are a warning, all others an error."""

import json
from pathlib import Path
from typing import Any

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import errors, warnings
from csf_tool.checkpoint.tied import tied_names
from tests.building import INDEX, change_json, mini_dense, mini_hf, raw_file, shard_name, write_json
from tests.commands import run, says

ONE = shard_name(1, 2)
TIED: dict[str, Any] = {"tie_word_embeddings": True}


def lists(root: Path, name: str = "lm_head.weight", config: dict[str, Any] = TIED, shard: str = ONE) -> Path:
    """Have the index list a tensor that no shard holds."""
    change_json(root / INDEX, lambda index: index["weight_map"].update({name: shard}))
    change_json(root / "config.json", lambda found: found.update(config))
    return root


@pytest.mark.parametrize("config", [TIED, {"text_config": TIED}, {"thinker_config": {"text_config": TIED}}])
@pytest.mark.parametrize(
    "name", ["lm_head.weight", "language_model.lm_head.weight", "model.layers.61.embed_tokens.weight"]
)
def test_an_entry_that_the_config_explains_is_a_warning(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    problems = open_checkpoint(lists(mini_hf(tmp_path), name, config)).problems
    assert errors(problems) == []
    [warning] = warnings(problems)
    assert (warning.tensor, warning.code) == (name, "index-names-missing-tensor")


@pytest.mark.parametrize("name", ["ghost", "model.norm.weight", "model.layers.0.mlp.experts.0.output.weight"])
def test_a_tied_config_explains_no_other_entry(tmp_path: Path, name: str) -> None:
    assert len(errors(open_checkpoint(lists(mini_hf(tmp_path), name)).problems)) == 1


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"tie_word_embeddings": False},
        {"tie_word_embeddings": "true"},
        {"vision_config": TIED},
        {"text_config": [TIED]},
    ],
)
def test_an_untied_config_explains_nothing(tmp_path: Path, config: dict[str, Any]) -> None:
    assert len(errors(open_checkpoint(lists(mini_hf(tmp_path), config=config)).problems)) == 1


def test_a_head_whose_shard_is_not_there_is_missing(tmp_path: Path) -> None:
    root = lists(mini_hf(tmp_path))
    (root / ONE).unlink()
    assert "explains" not in run("stats", root).output


def test_no_config_explains_nothing(tmp_path: Path) -> None:
    assert tied_names(tmp_path, ["lm_head.weight"]) == set()
    (tmp_path / "config.json").write_text("[")
    assert tied_names(tmp_path, ["lm_head.weight"]) == set()
    write_json(tmp_path / "config.json", TIED)
    assert tied_names(tmp_path, ["lm_head.weight"]) == {"lm_head.weight"}


@pytest.mark.parametrize(
    "odd", ['\ufeff{"tie_word_embeddings": true}', '{"a": NaN, "tie_word_embeddings": true}',
            '{"a": 1, "a": 2, "tie_word_embeddings": true}', '{"a": 1e999, "tie_word_embeddings": true}']
)  # fmt: skip
def test_a_config_that_only_some_readers_take_explains_as_any_other(tmp_path: Path, odd: str) -> None:
    root = lists(mini_hf(tmp_path))
    (root / "config.json").write_text(odd)
    assert [p for p in errors(open_checkpoint(root).problems) if p.tensor == "lm_head.weight"] == []


@pytest.mark.parametrize("to", ["hf", "container"])
def test_all_commands_go_on(tmp_path: Path, to: str) -> None:
    dense, csf, other, out = (tmp_path / name for name in ("dense", "csf", "other", "out"))
    lists(mini_dense(dense))
    for words in (
        ["stats", dense],
        ["verify", dense],
        ["identity", dense, "--hash"],
        ["compress", dense, csf, "--to", to, "--keep-larger"],
        ["verify", csf, "--against", dense],
        ["convert", csf, other, "--to", "hf" if to == "container" else "container"],
        ["expand", csf, out],
        ["expand", other, tmp_path / "out2"],
    ):
        result = run(*words)
        assert result.exit_code == 0, result.output
    for folder in (out, tmp_path / "out2"):
        assert json.loads((folder / INDEX).read_text())["weight_map"]["lm_head.weight"] == ONE


@pytest.mark.parametrize("dtype", ["", " "])
def test_a_placeholder_without_dtype_is_an_error_with_its_reason(tmp_path: Path, dtype: str) -> None:
    entry = {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]}
    (tmp_path / "model.safetensors").write_bytes(raw_file({"lm_head.weight": entry}))
    for command in ("stats", "verify"):
        result = run(command, tmp_path)
        assert result.exit_code == 1
        says(result, "lm_head.weight: has no dtype: its writer left a placeholder, and safetensors refuses")
        assert "newer" not in result.output
