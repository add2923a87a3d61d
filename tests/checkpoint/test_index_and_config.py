"""Indexes and configs that do not agree with the shards, or with one another."""

from pathlib import Path

import pytest

from tests.building import (
    INDEX,
    Tensor,
    change_json,
    mini_dense,
    mini_hf,
    shard_name,
    write_json,
    write_shard,
)
from tests.commands import run, says

TWO = shard_name(2, 3)


def test_an_index_that_names_thirty_shards_where_three_are(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in", 3)
    change_json(root / INDEX, lambda i: i["weight_map"].update({"ghost": "model-00030-of-00030.safetensors"}))
    (root / TWO).unlink()
    for command in ("stats", "verify"):
        result = run(command, root)
        assert result.exit_code == 1
        says(result, f"{TWO}: is missing", "; and 1 more like it, in model-00030-of-00030.safetensors")
    write_shard(root / "more.safetensors", [Tensor("more", "U8", (1,), b"x")])
    says(run("verify", root), f"more.safetensors: {INDEX} does not list this shard")
    assert run("expand", root, tmp_path / "out").exit_code == 1
    assert not (tmp_path / "out").exists()


FLAT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
NESTED = {"quantization_config": FLAT["quantization"]}
OTHER = {"quantization_config": {"quant_method": "mxfp4"}}


@pytest.mark.parametrize(
    ("config", "hf_quant", "expected"),
    [
        ({"quantization_config": {"quant_algo": "NVFP4"}}, None, []),
        ({"text_config": {"quantization_config": {"quant_algo": "NVFP4"}}}, None, []),
        ({}, FLAT, []),
        ({}, NESTED, []),
        (OTHER, None, ["config.json: names MXFP4, but the tensors are NVFP4: csf-tool goes by the tensors"]),
        (
            {"quantization_config": {"quant_algo": "NVFP4"}, "text_config": OTHER},
            None,
            [
                "config.json: quantization_config is at the top and in text_config, and they differ: "
                "csf-tool uses the first"
            ],
        ),
        (
            {"quantization_config": {"quant_algo": "NVFP4"}},
            {"quantization": {"quant_algo": "MXFP4"}},
            ["hf_quant_config.json: names MXFP4, but config.json names NVFP4: correct one of them"],
        ),
    ],
)
def test_quantization_config_in_four_places_and_in_disagreement(
    tmp_path: Path, config: object, hf_quant: object, expected: list[str]
) -> None:
    root = mini_dense(tmp_path)
    write_json(root / "config.json", config)
    if hf_quant:
        write_json(root / "hf_quant_config.json", hf_quant)
    result = run("stats", root)
    assert result.exit_code == 0
    says(result, "dense NVFP4", *expected)
    assert ("warning" in result.stderr) == bool(expected)
