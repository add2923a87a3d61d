"""Recipes in configs, held against the streams that are there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import Severity
from tests.building import (
    NVFP4,
    Tensor,
    compressed,
    layer,
    mini_container,
    mini_hf,
    model,
    recipes_config,
    shard_name,
    write_hf,
    write_json,
)
from tests.checkpoint.opening import problems

EXPERTS = "model.layers.0.mlp.experts"


def _hf_quant_flat(config: Any) -> Any:
    return config["quantization_config"]


def _hf_quant_nested(config: Any) -> Any:
    return {"producer": {"name": "modelopt"}, "quantization": config["quantization_config"]}


PLACES: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("top", "config.json", lambda config: config),
    ("text_config", "config.json", lambda config: {"text_config": config}),
    ("flat", "hf_quant_config.json", _hf_quant_flat),
    ("nested", "hf_quant_config.json", _hf_quant_nested),
]


@pytest.fixture(params=PLACES, ids=lambda place: place[0])
def write_config(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Any], str]:
    """Writes a config into one of the four places; gives the file's name."""
    _, name, wrap = request.param

    def write(config: Any) -> str:
        (tmp_path / "config.json").unlink(missing_ok=True)
        write_json(tmp_path / name, wrap(config))
        return str(name)

    return write


def test_recipes_that_fit_in_every_place(tmp_path: Path, write_config: Callable[[Any], str]) -> None:
    mini_hf(tmp_path)
    write_config(recipes_config(2))
    assert open_checkpoint(tmp_path).problems == []


def test_a_marked_module_without_streams(tmp_path: Path, write_config: Callable[[Any], str]) -> None:
    mini_hf(tmp_path)
    name = write_config(recipes_config(3))
    text = "is marked weight_scale_encoding: csf, but no shard holds CSF streams of it"
    assert problems(tmp_path) == [f"{name}: model.layers.2.mlp.experts: {text}"]


def test_streams_under_a_recipe_that_is_not_marked(tmp_path: Path, write_config: Callable[[Any], str]) -> None:
    mini_hf(tmp_path)
    config = recipes_config(2)
    del config["quantization_config"]["quantized_layers"][EXPERTS]["weight_scale_encoding"]
    name = write_config(config)
    text = "has CSF streams, but its recipe is not marked weight_scale_encoding: csf"
    assert problems(tmp_path) == [f"{name}: {EXPERTS}: {text}"]


def test_dense_scales_under_a_marked_recipe(tmp_path: Path, write_config: Callable[[Any], str]) -> None:
    stored = model(NVFP4)
    stored[shard_name(1, 2)] = compressed(stored[shard_name(1, 2)], NVFP4)
    write_hf(tmp_path, stored, config={})
    name = write_config(recipes_config(2))
    found = problems(tmp_path)
    dense = "model.layers.1.mlp.experts.0.gate_proj.weight_scale"
    recipe = "model.layers.1.mlp.experts"
    assert f"{name}: {dense}: is stored dense, but {recipe} is marked weight_scale_encoding: csf" in found
    assert len(found) == 4


def test_streams_that_no_recipe_covers(tmp_path: Path, write_config: Callable[[Any], str]) -> None:
    mini_hf(tmp_path)
    name = write_config(recipes_config(1))
    assert problems(tmp_path) == []
    assert problems(tmp_path, Severity.WARNING) == [
        f"{name}: model.layers.1.mlp.experts.0.{projection}: has CSF streams, but no recipe covers it: "
        "readers would not find them"
        for projection in ("down_proj", "gate_proj", "up_proj")
    ]


def test_a_recipe_for_the_module_itself_comes_before_the_one_around_it(tmp_path: Path) -> None:
    config = recipes_config(1)
    layers = config["quantization_config"]["quantized_layers"]
    layers[f"{EXPERTS}.0.gate_proj"] = {"quant_algo": "NVFP4"}
    write_hf(tmp_path, {"model.safetensors": compressed(layer(0, NVFP4), NVFP4)}, config=config)
    assert problems(tmp_path) == [
        f"config.json: {EXPERTS}.0.gate_proj: has CSF streams, but its recipe is not marked weight_scale_encoding: csf"
    ]


def test_uncompressed_recipes_beside_csf_ones_are_ordinary(tmp_path: Path) -> None:
    mtp = [
        Tensor("mtp.0.x.weight", "F8_E4M3", (4, 64), bytes(256)),
        Tensor("mtp.0.x.weight_scale", "U8", (4, 2), bytes(8)),
    ]
    config = recipes_config(1)
    config["quantization_config"]["quantized_layers"]["mtp.0"] = {"quant_algo": "MXFP8"}
    write_hf(tmp_path, {"model.safetensors": compressed(layer(0, NVFP4), NVFP4) + mtp}, config=config)
    assert open_checkpoint(tmp_path).problems == []


def test_a_container_is_not_held_against_recipes_of_its_source(tmp_path: Path) -> None:
    root = mini_container(tmp_path)
    write_json(root / "config.json", recipes_config(9))
    assert open_checkpoint(root).problems == []
