"""How tensors around a plane are called."""

import pytest

from csf_tool.checkpoint.names import (
    StreamName,
    layer_of,
    layers_of,
    module_of,
    natural_key,
    parse_stream_name,
    weight_names,
)
from csf_tool.codec.formats import MXFP4, NVFP4


def test_the_four_stream_suffixes() -> None:
    assert parse_stream_name("x.weight_scale.nvfp4_csf_fixed") == StreamName("x.weight_scale", NVFP4, True)
    assert parse_stream_name("x.weight_scale.nvfp4_csf_exceptions") == StreamName("x.weight_scale", NVFP4, False)
    assert parse_stream_name("x.scale.mxfp4_csf_fixed") == StreamName("x.scale", MXFP4, True)
    assert parse_stream_name("x.scale.mxfp4_csf_exceptions") == StreamName("x.scale", MXFP4, False)


@pytest.mark.parametrize(
    "name",
    [
        "x.weight_scale",
        "x.nvfp4_csf_fixed.weight",
        "x.weight_scale_nvfp4_csf_fixed",
        "x.weight_scale.nvfp4_csf_fixed2",
        "x.weight_scale.fp8_csf_fixed",
        "x.weight_scale.NVFP4_CSF_FIXED",
        "",
    ],
)
def test_other_names_are_no_streams(name: str) -> None:
    assert parse_stream_name(name) is None


@pytest.mark.parametrize(
    ("scale", "weights"),
    [
        ("a.weight_scale", ["a.weight_packed", "a.weight"]),
        ("a.scale", ["a.weight"]),
        ("a.weight_scale_2", []),
        ("a.input_scale", []),
        ("a.weight_global_scale", []),
        ("a.weight", []),
        ("weight_scale", []),
    ],
)
def test_the_weights_of_a_scale(scale: str, weights: list[str]) -> None:
    assert weight_names(scale) == weights


def test_module() -> None:
    name = "model.layers.3.mlp.experts.7.gate_proj.weight_scale"
    assert module_of(name) == "model.layers.3.mlp.experts.7.gate_proj"


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.3.mlp.experts.12.up_proj.weight_scale", "model.layers.3"),
        ("layers.0.ffn.experts.0.w1.scale", "layers.0"),
        ("mtp.0.ffn.experts.5.w2.scale", "mtp.0"),
        ("model2.layers.10.w.scale", "model2.layers.10"),
        ("0.weight_scale", "0"),
        ("lm_head.weight_scale", "lm_head"),
        ("w", ""),
    ],
)
def test_the_layer_of_a_tensor(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_layers_sort_by_number() -> None:
    names = ["layers.10", "layers.9", "layers.09", "mtp.0", "layers.1", "layers"]
    assert sorted(names, key=natural_key) == ["layers", "layers.1", "layers.9", "layers.09", "layers.10", "mtp.0"]


@pytest.mark.parametrize("name", ["²", "1²2", "layers.٣.x", "9" * 5000, "x.⑨"])
def test_any_name_can_be_sorted(name: str) -> None:
    assert sorted([name, "layers.1"], key=natural_key)


def test_layers_of_neighbours_are_those_of_each() -> None:
    names = [
        "model.layers.1.a.scale", "model.layers.1.b.2.scale", "model.layers.10.a.scale", "model.layers.1.a.scale",
        "layers5.a.scale", "layers5.7.a.scale", "layers5", "3.a.4.scale", "3.a.scale", "3.4.scale", "x.y", "x.y.5.z",
        "", "a\n.1.b", "a\n.1.c", "\u0663.a.b", "\u0663.a.c",
    ]  # fmt: skip
    assert list(layers_of(names)) == [layer_of(name) for name in names]
    assert list(layers_of(reversed(names))) == [layer_of(name) for name in reversed(names)]
