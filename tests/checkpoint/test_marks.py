"""Marks in configs of every shape: what is written, and that taking it out gives every byte back."""

import json
from typing import Any

import pytest

from csf_tool.checkpoint.marks import SOURCE_KEY, mark_encoding, states_one_algorithm, strip_encoding

MODULES = ["m.attn.q", "m.experts"]
PLANES = ["m.experts.0.up", "m.experts.1.up"]
MARKED = {"quant_algo": "NVFP4", "group_size": 16, "weight_scale_encoding": "csf"}
UNMARKED = {"quant_algo": "NVFP4", "group_size": 16}
UNIFORM = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


def marked(text: str) -> Any:
    """The document of a config with its marks, after the check that they go without a trace."""
    raw = mark_encoding(text.encode(), "config.json", PLANES, MODULES)
    assert strip_encoding(raw, "config.json").decode() == text
    return json.loads(raw)


@pytest.mark.parametrize("layers", ["", ', "quantized_layers": null', ', "quantized_layers": {}'])
@pytest.mark.parametrize("method", ["modelopt", "modelopt_fp4", "ModelOpt"])
def test_one_algorithm_becomes_a_recipe_for_each_module(layers: str, method: str) -> None:
    text = f'{{"quantization_config": {{"quant_method": "{method}", "quant_algo": "NVFP4"{layers}, "ignore": []}}}}'
    block = marked(text)["quantization_config"]
    source = {"quant_algo": "NVFP4"} | ({"quantized_layers": json.loads(layers[21:])} if layers else {})
    assert block == {
        "quant_method": method,
        "quant_algo": "MIXED_PRECISION",
        "ignore": [],
        "quantized_layers": {"m.attn.q": UNMARKED, "m.experts": MARKED},
        SOURCE_KEY: source,
    }


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": UNIFORM},
        {"text_config": {"quantization_config": UNIFORM}},
        {"quantization_config": UNIFORM, "text_config": {"quantization_config": UNIFORM}},
        {"quantization_config": {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}}},
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}},
        {"quant_method": "modelopt_fp4", "quantization": {"quant_algo": "NVFP4"}},
    ],
    ids=["at the top", "in text_config", "at both places", "one level down", "hf_quant_config", "method beside it"],
)
@pytest.mark.parametrize("indent", [None, 2, 4, "\t"])
def test_every_place_of_a_config_is_marked_alike(config: Any, indent: int | str | None) -> None:
    text = json.dumps(config, indent=indent)
    found = json.dumps(marked(text))
    places = json.dumps(config).count('"NVFP4"')
    assert found.count('"MIXED_PRECISION"') == found.count('"weight_scale_encoding": "csf"') == places
    assert states_one_algorithm(config)


def test_an_algorithm_keeps_its_spelling_and_group_size() -> None:
    block = marked('{"quantization_config": {"quant_algo": "w4a16_nvfp4", "group_size": 32}}')["quantization_config"]
    assert block["quantized_layers"]["m.attn.q"] == {"quant_algo": "w4a16_nvfp4", "group_size": 32}


@pytest.mark.parametrize(
    "block",
    [
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
        {"quant_method": "compressed-tensors", "quant_algo": "NVFP4"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": None},
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        {"quant_method": "modelopt", "quant_algo": ["NVFP4"]},
        {"quant_method": "modelopt", "config_groups": {"group_0": {"targets": ["Linear"]}}},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "quantized_layers": {"m.other": {"quant_algo": "FP8"}}},
        {"quant_method": "mxfp4"},
        {"quant_method": ["modelopt"], "quant_algo": "NVFP4"},
        {},
    ],
)
def test_other_configs_stay_as_they_are(block: dict[str, Any]) -> None:
    for config in ({"quantization_config": block}, {"text_config": {"quantization_config": block}}):
        raw = json.dumps(config).encode()
        assert mark_encoding(raw, "config.json", PLANES, MODULES) == raw
        assert not states_one_algorithm(config)


def test_recipes_that_are_there_are_marked_and_none_is_added() -> None:
    layers = {"m.experts": UNMARKED, "m.head": {"quant_algo": "FP8"}}
    config = {"quantization_config": {"quantized_layers": layers}, "text_config": {"quantization_config": UNIFORM}}
    found = marked(json.dumps(config, indent=1))
    assert found["quantization_config"] == {"quantized_layers": {**layers, "m.experts": MARKED}}


def test_without_modules_to_write_nothing_is_written() -> None:
    raw = json.dumps({"quantization_config": UNIFORM}).encode()
    assert mark_encoding(raw, "config.json", PLANES) == raw


@pytest.mark.parametrize("source", ["null", "[]", '"NVFP4"', "1"])
def test_a_key_of_this_name_that_is_not_ours_stays(source: str) -> None:
    raw = f'{{"quantization_config": {{"quant_algo": "MIXED_PRECISION", "{SOURCE_KEY}": {source}}}}}'.encode()
    assert strip_encoding(raw, "config.json") == raw


def test_only_the_two_keys_are_restored() -> None:
    """A config by an unknown hand cannot have others overwritten."""
    block = {"quant_method": "modelopt", "ignore": ["a"], SOURCE_KEY: {"quant_algo": "NVFP4", "ignore": [], "x": 1}}
    stripped = json.loads(strip_encoding(json.dumps({"quantization_config": block}).encode(), "config.json"))
    assert stripped == {"quantization_config": {"quant_method": "modelopt", "ignore": ["a"], "quant_algo": "NVFP4"}}


def test_a_user_may_have_edited_the_config_meanwhile() -> None:
    raw = mark_encoding(
        json.dumps({"quantization_config": UNIFORM}).encode(),
        "config.json",
        PLANES,
        MODULES,
    )
    config = json.loads(raw)
    config["dtype"] = "bfloat16"
    config["quantization_config"]["ignore"] = ["lm_head"]
    stripped = json.loads(strip_encoding(json.dumps(config).encode(), "config.json"))
    assert stripped == {"quantization_config": {**UNIFORM, "ignore": ["lm_head"]}, "dtype": "bfloat16"}


def test_each_file_is_marked_by_its_own_recipes() -> None:
    """The nearest recipe around a plane, whether it is its expert's, its group's, or that of a whole layer."""
    for layers in (["m.experts.0.up", "m.experts.1.up"], ["m.experts"], ["m", "m.experts"], ["m"]):
        found = marked(json.dumps({"quantized_layers": dict.fromkeys(layers, UNMARKED)}))["quantized_layers"]
        csf = {module for module, recipe in found.items() if recipe == MARKED}
        assert csf == (set(layers) - {"m"} or {"m"})
