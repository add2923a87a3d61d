"""Shards with nothing in them and tensors of any dtype: bytes come through as they are."""

import re
from pathlib import Path

from tests.building import NVFP4, Tensor, compressed, layer, mini_hf, shard_bytes, write_shard
from tests.commands import run, says


def test_an_empty_shard_is_kept_and_a_file_of_0_bytes_is_an_error(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in")
    write_shard(root / "empty.safetensors", [])
    assert run("stats", root).exit_code == 0
    assert run("expand", root, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "empty.safetensors").exists()
    listed = next(root.glob("model-*"))
    listed.write_bytes(b"")
    result = run("stats", root)
    assert result.exit_code == 1
    says(result, f"{listed.name}: has 0 bytes, too few for a safetensors file")


def test_unknown_and_small_dtypes_are_bytes_like_any_other(tmp_path: Path) -> None:
    """Tensors of every dtype, and of one that nobody knows, come through as they are."""
    sizes = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "F16": 2, "BF16": 2}
    sizes |= {"U16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8}
    odd = [Tensor(f"x.{dtype}", dtype, (2,), b"\x80\x7f" * size) for dtype, size in sizes.items()]
    odd += [Tensor("x.F6_X", "F6_X", (4,), b"\x7f\x80\xff"), Tensor("x.F4", "F4", (2, 8), bytes(range(8)))]
    tensors = [*layer(0, NVFP4), *odd]
    root = write_shard(tmp_path / "in" / "model.safetensors", compressed(tensors, NVFP4), {"format": "pt"}).parent
    assert run("stats", root).exit_code == 0
    assert run("expand", root, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == shard_bytes(tensors, {"format": "pt"})
    assert run("verify", root, "--against", tmp_path / "out").exit_code == 0


def test_no_reader_of_bytes_is_borrowed_that_knows_fewer_dtypes() -> None:
    """safetensors' `load` fails on dtypes that `load_file` reads: csf-tool reads bytes by itself."""
    source = Path(__file__).parents[2] / "csf_tool"
    imports = [
        line
        for p in source.rglob("*.py")
        for line in re.findall(r"^\s*(?:from|import) safetensors.*", p.read_text(), re.M)
    ]
    assert {line.strip() for line in imports} <= {"from safetensors import SafetensorError"}
