"""Serving directories: a config that leads to a container elsewhere."""

from pathlib import Path

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.errors import UsageError
from tests.building import (
    NVFP4,
    index_of,
    mini_container,
    mini_hf,
    model,
    write_json,
)
from tests.checkpoint.opening import refused

INDEX = "model.safetensors.index.json"


def serving(root: Path, checkpoint_root: object, *, index: bool = True, codec: str = "nvfp4") -> Path:
    """A serving directory as older vLLM builds make them: copies of the metadata, the source's index among them."""
    config = {"quantization_config": {"quant_method": f"{codec}_csf", "format_version": 1}}
    if checkpoint_root is not None:
        config["quantization_config"]["checkpoint_root"] = checkpoint_root
    write_json(root / "config.json", config)
    if index:
        write_json(root / INDEX, index_of(model(NVFP4)))
    return root


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("codec", ["nvfp4", "mxfp4"])
def test_a_serving_directory_leads_to_its_weights(tmp_path: Path, index: bool, codec: str) -> None:
    root = mini_container(tmp_path / "weights")
    checkpoint = open_checkpoint(serving(tmp_path / "serve", str(root), index=index, codec=codec))
    assert (checkpoint.path, checkpoint.layout.name) == (root, "container")


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_a_relative_checkpoint_root_counts_from_the_directory(tmp_path: Path, index: bool) -> None:
    mini_container(tmp_path / "weights")
    checkpoint = open_checkpoint(serving(tmp_path / "serve", "../weights", index=index))
    assert checkpoint.path == tmp_path / "weights"


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("root", ["/models/csf", "../gone", None, 7, "", ".", "a\0b"])
def test_a_serving_directory_whose_weights_are_not_here(tmp_path: Path, root: object, index: bool) -> None:
    message = refused(serving(tmp_path / "serve", root, index=index), UsageError)
    assert message.startswith(f"{tmp_path / 'serve'}: is a serving directory, not a checkpoint")
    assert message.endswith("which does not exist here; give the folder that you downloaded")


@pytest.mark.parametrize("method", [None, [], {}, ["nvfp4_csf"], 7])
def test_a_quant_method_that_is_no_string_makes_no_serving_directory(tmp_path: Path, method: object) -> None:
    write_json(tmp_path / "config.json", {"quantization_config": {"quant_method": method}})
    assert "not a checkpoint" in refused(tmp_path, UsageError)


def test_serving_directories_that_lead_to_each_other(tmp_path: Path) -> None:
    serving(tmp_path / "a", "../b")
    serving(tmp_path / "b", "../a")
    assert "is a serving directory, and another serving directory gives it as its weights" in refused(
        tmp_path / "a", UsageError
    )


def test_a_serving_directory_with_shards_in_it_is_opened_as_it_is(tmp_path: Path) -> None:
    mini_hf(tmp_path)
    serving(tmp_path, "/models/csf", index=False)
    assert open_checkpoint(tmp_path).layout.name == "hf"


# Half and half
