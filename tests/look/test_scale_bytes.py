"""stats --scales: what is in the scales, byte value by byte value."""

import json
from pathlib import Path

import pytest

from tests.building import (
    CODECS,
    GATE,
    NVFP4,
    Codec,
    Tensor,
    matrix,
    mini_hf,
    overwrite,
    shard_name,
    span,
    tree,
    write_shard,
)
from tests.commands import run, says


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_every_byte_value_comes_back_and_odd_ones_are_only_counted(tmp_path: Path, codec: Codec) -> None:
    """Constant rows of the values at the limits of a base, and one row of each byte value."""
    rows = [bytes([value]) * 16 for value in (0x00, 0xF0, 0xF1, 0xF7, 0xFE, 0xFF, 0x7F, 0x80)]
    scales = b"".join(rows * 2 + [bytes(range(16 * i, 16 * i + 16)) for i in range(16)])
    module = "m.layers.0.mlp.experts.0.w1"
    tensors = matrix(module, codec, 5, rows=32, cols=16)
    tensors = [Tensor(t.name, t.dtype, t.shape, scales if t.dtype == codec.dtype else t.data) for t in tensors]
    dense = write_shard(tmp_path / "in" / "model.safetensors", tensors, {"format": "pt"}).parent
    to = "hf" if codec is NVFP4 else "container"
    assert run("compress", dense, tmp_path / "csf", "--keep-larger", "--to", to).exit_code == 0
    assert run("expand", tmp_path / "csf", tmp_path / "out").exit_code == 0
    assert tree(tmp_path / "out") == tree(dense)
    for folder in (dense, tmp_path / "csf"):
        result = run("stats", folder, "--scales", "--json")
        assert result.exit_code == 0
        [counted] = json.loads(result.stdout)["scale_bytes"]
        nan = (0x7F, 0xFF) if codec is NVFP4 else (0xFF,)
        assert counted["layer"] == "m.layers.0"
        assert counted["bytes"] == {f"0x{value:02x}": scales.count(value) for value in range(256)}
        assert counted["nan"] == sum(scales.count(value) for value in nan)
        assert counted["zero"] == scales.count(0)
        signed = sum(value >= 0x80 for value in scales) - scales.count(0xFF)
        assert counted["negative"] == (signed if codec is NVFP4 else 0)
    says(run("stats", dense, "--scales"), "NaN", "Such bytes are ordinary data, and no command changes them.")


def test_a_broken_plane_is_not_counted_and_hides_no_other(tmp_path: Path) -> None:
    root = mini_hf(tmp_path, 1)
    path = root / shard_name(1, 1)
    begin, _ = span(path, f"{GATE}.weight_scale.nvfp4_csf_fixed")
    overwrite(path, begin, b"\xff")
    result = run("stats", root, "--scales", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["scale_bytes"][0]["scales"] == 2 * 16 * 4
    assert [p["tensor"] for p in document["problems"]] == [f"{GATE}.weight_scale"]
    assert document["problems"][0]["problem"].startswith("not counted: row 0: base 255")
