"""Names, layouts and indexes that csf-tool does not expect: compressed and brought back, or left alone and named."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.building import INDEX, NVFP4, Tensor, change_json, make_scales, matrix, mini_dense, tree, write_shard
from tests.commands import run, says
from tests.swizzled import swizzle


@pytest.mark.parametrize("to", ["hf", "container"])
def test_compress_carries_what_no_index_lists_and_says_so(tmp_path: Path, to: str) -> None:
    dense = mini_dense(tmp_path / "in")
    extra = [Tensor("amax", "F32", (1,), b"abcd")]
    write_shard(dense / "amax.safetensors", extra, {"format": "pt"})
    change_json(dense / INDEX, lambda index: index["weight_map"].pop("model.layers.0.norm.weight"))
    result = run("compress", dense, tmp_path / "csf", "--to", to, "--keep-larger")
    assert result.exit_code == 0
    says(
        result, f"amax.safetensors: {INDEX} does not list this shard", f"norm.weight: {INDEX} does not list this tensor"
    )
    assert run("expand", tmp_path / "csf", tmp_path / "out").exit_code == 0
    back = tree(tmp_path / "out")
    assert {n: d for n, d in back.items() if n != INDEX} == {n: d for n, d in tree(dense).items() if n != INDEX}
    assert "model.layers.0.norm.weight" not in json.loads(back[INDEX])["weight_map"]


def test_names_under_any_prefix(tmp_path: Path) -> None:
    for prefix in ("", "model.language_model.", "mtp.0.ffn."):
        tensors = [Tensor(prefix + t.name, t.dtype, t.shape, t.data) for t in matrix("experts.0.gate_proj", NVFP4, 3)]
        dense = write_shard(tmp_path / f"in{prefix}" / "model.safetensors", tensors, {"format": "pt"}).parent
        assert run("compress", dense, tmp_path / f"csf{prefix}", "--keep-larger").exit_code == 0
        assert run("expand", tmp_path / f"csf{prefix}", tmp_path / f"out{prefix}").exit_code == 0
        assert tree(tmp_path / f"out{prefix}") == tree(dense)


@pytest.mark.parametrize("name", ["m.experts.gate_up_proj_scales", "m.experts.w.weight_scale"])
def test_stacked_experts_are_named_and_left_alone(tmp_path: Path, name: str) -> None:
    tensors = [Tensor(name, "U8", (4, 32, 8), bytes(1024)), Tensor(name[:-7], "U8", (4, 32, 8, 16), bytes(16384))]
    write_shard(tmp_path / "in" / "model.safetensors", tensors)
    result = run("stats", tmp_path / "in")
    assert result.exit_code == 0
    says(
        result,
        "scales of MXFP4 that are not planes",
        f"{name}: is [4, 32, 8]: scales of stacked experts. A CSF plane holds one matrix",
    )
    assert run("compress", tmp_path / "in", tmp_path / "out").exit_code == 2


@pytest.mark.parametrize("to", ["hf", "container"])
def test_padded_and_tiled_scales_are_spoken_of_and_wait_for_leave(tmp_path: Path, to: str) -> None:
    """Scales of 100 rows and 4 columns, in one tile of 128x4 as tensor cores take it."""
    scales = np.frombuffer(make_scales(100, 4, NVFP4, 1), np.uint8).reshape(100, 4)
    tile = swizzle(scales)
    module = "m.layers.0.mlp.experts.0.w1"
    weight = Tensor(f"{module}.weight", "U8", (100, 32), bytes(range(256)) * 12 + bytes(128))
    tensors = [weight, Tensor(f"{module}.weight_scale", "F8_E4M3", tile.shape, tile.tobytes())]
    dense = write_shard(tmp_path / "in" / "model.safetensors", tensors, {"format": "pt"}).parent
    line = "its layout is unknown, because it is [128, 4] beside a weight of U8 [100, 32]"
    result = run("stats", dense)
    assert result.exit_code == 0
    says(result, f"{module}.weight_scale: {line}: it may be padded or in tiles.")
    refused = run("compress", dense, tmp_path / "no", "--keep-larger", "--to", to)
    assert refused.exit_code == 2
    says(refused, line, "--allow-padded compresses it as it is")
    assert run("compress", dense, tmp_path / "csf", "--keep-larger", "--allow-padded", "--to", to).exit_code == 0
    assert run("verify", tmp_path / "csf", "--against", dense).exit_code == 0
    assert run("expand", tmp_path / "csf", tmp_path / "out").exit_code == 0
    assert tree(tmp_path / "out") == tree(dense)


def test_metadata_of_another_quantiser_make_the_layout_unknown(tmp_path: Path) -> None:
    tensors = matrix("m.experts.0.w1", NVFP4, 1)
    path = write_shard(tmp_path / "in" / "model.safetensors", tensors, {"_quantization_metadata": "{}"})
    result = run("compress", path.parent, tmp_path / "out", "--keep-larger")
    assert result.exit_code == 2
    says(
        result,
        "its layout is unknown, because its shard has _quantization_metadata (--allow-padded compresses it as it is)",
    )
