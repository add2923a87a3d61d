"""Scales that are not planes, as published checkpoints have them: what each command says of them."""

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import pytest

import csf_tool
from tests.building import BITS, NVFP4, Tensor, entry, matrix, raw_file, tree, write_hf
from tests.commands import run, says

E, ROWS, K = 4, 32, 256


def tensor(name: str, dtype: str, *shape: int, byte: int = 120) -> Tensor:
    return Tensor(name, dtype, shape, bytes([byte, byte + 1]) * (prod(shape) * BITS[dtype] // 16 + 1))


def cut(t: Tensor) -> Tensor:
    return Tensor(t.name, t.dtype, t.shape, t.data[: prod(t.shape) * BITS[t.dtype] // 8])


@dataclass(frozen=True)
class Kind:
    """Two tensors or three of a module: a scale, its weight, and what is said of them."""

    name: str
    scale: Tensor
    weight: Tensor
    weights: str
    reason: str
    scope: str
    group: int | None = None
    matrices: int = 1
    is_fp4: bool = True
    others: tuple[Tensor, ...] = ()

    def tensors(self) -> list[Tensor]:
        """Two layers."""
        found = [cut(t) for t in (self.weight, self.scale, *self.others)]
        return [Tensor(t.name.replace(".0.", f".{i}."), t.dtype, t.shape, t.data) for i in (0, 1) for t in found]

    def write(self, root: Path) -> Path:
        return write_hf(root, {"model.safetensors": self.tensors()}, config={"model_type": "mini"})


M = "model.layers.0.mlp.experts"
MODULE = "model.layers.0.mlp.up_proj"


def plain(name: str, dtype: str, shape: tuple[int, ...], weight: Tensor, *said: object, **more: object) -> Kind:
    return Kind(name, tensor(f"{MODULE}.weight_scale", dtype, *shape), weight, *said, **more)  # type: ignore[arg-type]


FP4 = tensor(f"{MODULE}.weight", "U8", ROWS, K // 2)
FP8 = tensor(f"{MODULE}.weight", "F8_E4M3", ROWS, K)
MLX = "model.layers.0.mlp.switch_mlp.up_proj"
ONE_EACH = tensor("model.layers.0.moe.gate_proj.weight_scale_2", "F32", E)
BIASES = tensor(f"{MLX}.biases", "BF16", E, ROWS, K // 32)

KINDS = [
    Kind("Llama 4", tensor(f"{M}.gate_up_proj_weight_scale", "F8_E4M3", E, K // 16, ROWS),
         tensor(f"{M}.gate_up_proj", "U8", E, K // 2, ROWS), "NVFP4", "stacked", "16 values", 16, E),
    Kind("Qwen3.5", tensor(f"{M}.gate_up_proj_weight_scale", "F8_E4M3", E, ROWS, K // 16),
         tensor(f"{M}.gate_up_proj", "U8", E, ROWS, K // 2), "NVFP4", "stacked", "16 values", 16, E),
    Kind("gpt-oss", tensor(f"{M}.down_proj_scales", "U8", E, ROWS, K // 32),
         tensor(f"{M}.down_proj_blocks", "U8", E, ROWS, K // 32, 16), "MXFP4", "stacked", "32 values", 32, E),
    Kind("Step-3.5", tensor("model.layers.0.moe.gate_proj.weight_scale", "F8_E4M3", E, ROWS, K // 16),
         tensor("model.layers.0.moe.gate_proj.weight", "U8", E, ROWS, K // 2), "NVFP4", "stacked", "16 values", 16, E,
         others=(ONE_EACH,)),
    Kind("fused by vLLM", tensor(f"{M}.w13_weight_scale", "F8_E8M0", E, ROWS, K // 32),
         tensor(f"{M}.w13_weight", "U8", E, ROWS, K // 2), "MXFP4", "stacked", "32 values", 32, E),
    Kind("stacked U8 NVFP4", tensor(f"{M}.up_proj.weight_scale", "U8", E, ROWS, K // 16),
         tensor(f"{M}.up_proj.weight_packed", "U8", E, ROWS, K // 2), "NVFP4", "stacked", "16 values", 16, E),
    Kind("any name", tensor(f"{M}.up_proj.block_scale", "F8_E4M3", E, ROWS, K // 16),
         tensor(f"{M}.up_proj.codes", "U8", E, ROWS, K // 2), "NVFP4", "stacked", "16 values", 16, E),
    Kind("MLX mxfp4", tensor(f"{MLX}.scales", "U8", E, ROWS, K // 32), tensor(f"{MLX}.weight", "U32", E, ROWS, K // 8),
         "MXFP4", "mlx", "32 values", 32, E),
    Kind("MLX nvfp4", tensor(f"{MLX}.scales", "U8", ROWS, K // 16), tensor(f"{MLX}.weight", "U32", ROWS, K // 8),
         "NVFP4", "mlx", "16 values", 16),
    Kind("MLX mxfp8", tensor(f"{MLX}.scales", "U8", ROWS, K // 32), tensor(f"{MLX}.weight", "U32", ROWS, K // 4),
         "MXFP8", "not-fp4", "32 values", 32, is_fp4=False),
    Kind("MLX affine", tensor(f"{MLX}.scales", "BF16", E, ROWS, K // 32),
         tensor(f"{MLX}.weight", "U32", E, ROWS, K // 8), "integers with biases (MLX, affine)", "not-fp4", "", None, E,
         False, (BIASES,)),
    Kind("bitsandbytes", tensor(f"{MODULE}.weight.absmax", "F32", ROWS * K // 64),
         tensor(f"{MODULE}.weight", "U8", ROWS * K // 2, 1), "FP4 or NF4", "shape", "64 values"),
    Kind("an FP8 vector", tensor(f"{MODULE}.weight_scale", "F32", 2), tensor(f"{MODULE}.weight", "F8_E4M3", 64), "FP8",
         "not-fp4", "32 values", is_fp4=False),
    Kind(
        "TensorRT-LLM",
        tensor(f"{MODULE}.weights_block_scaling_factor", "F8_E4M3", ROWS, K // 16),
        FP4,
        *("NVFP4", "name", "16 values", 16),
    ),
    Kind("a name of its own", tensor(f"{MODULE}.sf", "F8_E8M0", ROWS, K // 32), FP4, "MXFP4", "name", "32 values", 32),
    Kind(
        "exponents",
        tensor(f"{M}.w13_exponents", "U8", E, ROWS, K // 32),
        tensor(f"{M}.w13_weight", "U8", E, ROWS, K // 2),
        *("MXFP4", "stacked", "32 values", 32, E),
    ),
    Kind(
        "nunchaku",
        tensor(f"{MODULE}.wscales", "F8_E4M3", K // 16, ROWS),
        tensor(f"{MODULE}.qweight", "I8", ROWS, K // 2),
        *("NVFP4", "transposed", "16 values", 16),
    ),
    plain(
        *("MXFP6", "U8", (ROWS, K // 32), tensor(f"{MODULE}.weight", "U8", ROWS, 3 * K // 4)),
        *("MXFP6", "not-fp4", "32 values", 32),
        is_fp4=False,
    ),
    plain("a list", "F8_E4M3", (ROWS * K // 16,), FP4, "NVFP4", "shape", "16 values", 16),
    plain("an axis too many", "F8_E4M3", (ROWS, K // 16, 1), FP4, "NVFP4", "shape", "16 values", 16),
    plain("an axis between", "U8", (ROWS, 1, K // 32), FP4, "MXFP4", "shape", "32 values", 32),
    Kind(
        "words of 32 bits",
        tensor(f"{MODULE}.weight_scale", "F8_E4M3", ROWS, K // 16),
        tensor(f"{MODULE}.weight", "I32", ROWS, K // 8),
        *("NVFP4", "shape", "16 values", 16),
    ),
    plain("NVFP4 as U8", "U8", (ROWS, K // 16), FP4, "NVFP4", "stored-as-u8", "16 values", 16),
    plain("E8M0 for 16", "F8_E8M0", (ROWS, K // 16), FP4, "FP4", "label", "16 values", 16),
    plain("E4M3 for 32", "F8_E4M3", (ROWS, K // 32), FP4, "FP4", "label", "32 values", 32),
    plain("too narrow", "F8_E4M3", (ROWS, K // 64), FP4, "FP4", "shape", "", None),
    Kind("another name", tensor(f"{MODULE}.scales", "U8", ROWS, K // 32), FP4, "MXFP4", "name", "32 values", 32),
    Kind("blocks of a matrix", tensor(f"{MODULE}_scales", "U8", ROWS, K // 32),
         tensor(f"{MODULE}_blocks", "U8", ROWS, K // 32, 16), "MXFP4", "shape", "32 values", 32),
    Kind("DeepSeek-V3", tensor(f"{MODULE}.weight_scale_inv", "F32", 2, 3),
         tensor(f"{MODULE}.weight", "F8_E4M3", 160, 300), "FP8", "not-fp4", "128x128 values", is_fp4=False),
    Kind("FP8 in blocks", tensor(f"{MODULE}.scale", "F8_E8M0", 2, 2), tensor(f"{MODULE}.weight", "F8_E4M3", 256, 256),
         "FP8", "not-fp4", "128x128 values", is_fp4=False),
    Kind("stacked FP8", tensor(f"{M}.down_proj_scale_inv", "BF16", E, 1, 2),
         tensor(f"{M}.down_proj", "F8_E4M3", E, 128, K), "FP8", "not-fp4", "128x128 values", None, E, False),
    plain("FP8 a tensor", "F32", (), FP8, "FP8", "not-fp4", "a tensor", is_fp4=False),
    plain("FP8 a row", "BF16", (ROWS, 1), FP8, "FP8", "not-fp4", "a row", is_fp4=False),
    Kind("FP8 an expert", tensor(f"{M}.w2_scale", "F32", E), tensor(f"{M}.w2_weight", "F8_E4M3", E, ROWS, K), "FP8",
         "not-fp4", "a matrix", is_fp4=False),
    plain("MXFP8", "U8", (ROWS, K // 32), FP8, "MXFP8", "not-fp4", "32 values", 32, is_fp4=False),
    Kind("INT4, packed", tensor(f"{MODULE}.weight_scale", "BF16", ROWS, K // 128),
         tensor(f"{MODULE}.weight_packed", "I32", ROWS, K // 8), "INT4 (or INT8)", "not-fp4", "128 values",
         is_fp4=False),
    Kind("GPTQ", tensor(f"{MODULE}.scales", "F16", K // 128, ROWS), tensor(f"{MODULE}.qweight", "I32", K // 8, ROWS),
         "INT4 (or INT8)", "not-fp4", "128 values", is_fp4=False),
    Kind("AWQ", tensor(f"{MODULE}.scales", "F16", K // 128, ROWS), tensor(f"{MODULE}.qweight", "I32", K, ROWS // 8),
         "INT4 (or INT8)", "not-fp4", "128 values", is_fp4=False),
    plain("INT8", "BF16", (ROWS, 1), tensor(f"{MODULE}.weight", "I8", ROWS, K), "INT8", "not-fp4", "a row",
          is_fp4=False),
]  # fmt: skip


def name_of(kind: Kind) -> str:
    return kind.name


@pytest.fixture(params=KINDS, ids=name_of)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_stats_counts_and_names_them(kind: Kind, tmp_path: Path) -> None:
    root = kind.write(tmp_path)
    found = json.loads(run("stats", root, "--json").stdout)["other_scales"]
    scale = kind.scale
    assert {key: found[0][key] for key in found[0] if key != "why"} == {
        "weights": kind.weights,
        "a_scale_for": kind.scope,
        "group_size": kind.group,
        "matrices": kind.matrices,
        "is_fp4": kind.is_fp4,
        "dtype": scale.dtype,
        "shapes": [list(scale.shape)],
        "tensors": 2,
        "bytes": 2 * prod(scale.shape) * BITS[scale.dtype] // 8,
        "reason": kind.reason,
        "first": scale.name,
    }
    done = run("stats", root)
    assert done.exit_code == 0
    assert any(f"no FP4 {what}" in done.output for what in ("scales", "block scales")) is not kind.is_fp4
    assert kind.weights in " ".join(done.output.split())


def test_inspect_looks_into_one_and_lists_all(kind: Kind, tmp_path: Path) -> None:
    root = kind.write(tmp_path)
    document = json.loads(run("inspect", root, kind.scale.name, "--json").stdout)
    assert document["name"] == kind.scale.name
    assert document["weight"]["name"] == kind.weight.name
    assert (document["shape"], document["why"] != "") == (list(kind.scale.shape), True)
    if BITS[kind.scale.dtype] == 8:
        assert document["byte_counts"][120] == prod(kind.scale.shape) // 2
    done = run("inspect", root, kind.scale.name)
    assert done.exit_code == 0
    assert "It is not a plane: " in done.output
    every = run("inspect", root)
    assert every.exit_code == 0
    assert kind.weights in " ".join(every.output.split())
    assert run("inspect", root, "nothing").exit_code == 2


def test_compress_says_why_they_stay(kind: Kind, tmp_path: Path) -> None:
    root = kind.write(tmp_path / "in")
    done = run("compress", root, tmp_path / "out")
    assert done.exit_code == 2
    assert ("holds no FP4 block scales" in done.output) is not kind.is_fp4
    assert ("2 block scales stay dense" in done.output) is kind.is_fp4
    assert kind.is_fp4 or f"its scales belong to {kind.weights}" in done.output
    assert len(done.output.splitlines()) < 4
    beside = [t for i in range(2) for t in matrix(f"model.layers.0.mlp.experts.{i}.gate_proj", NVFP4, i)]
    root = write_hf(tmp_path / "mixed", {"model.safetensors": [*kind.tensors(), *beside]}, index=False)
    written = json.loads(run("compress", root, tmp_path / "csf", "--keep-larger", "--json").stdout)
    assert written["planes"] == 2
    assert [entry["tensor"] for entry in written["left_dense"] if kind.is_fp4] == [
        t.name for t in kind.tensors() if kind.is_fp4 and t.name.endswith(kind.scale.name[16:])
    ]
    assert run("verify", tmp_path / "csf", "--against", root).exit_code == 0
    assert run("expand", tmp_path / "csf", tmp_path / "back").exit_code == 0
    assert tree(tmp_path / "back")["model.safetensors"] == (root / "model.safetensors").read_bytes()


def test_the_other_commands_take_such_a_checkpoint_for_what_it_is(kind: Kind, tmp_path: Path) -> None:
    root = kind.write(tmp_path / "in")
    for command, *words in (
        ("verify",),
        ("plan",),
        ("expand", tmp_path / "a"),
        ("convert", tmp_path / "b", "--to", "container"),
    ):
        done = run(command, root, *words)
        assert done.exit_code == (0 if command == "verify" else 2)
        assert "no FP4 block scales" not in done.output
        assert not (kind.is_fp4 and "no FP4 scales" in done.output)
    assert run("identity", root).exit_code == 2
    with csf_tool.safe_open(root, framework="numpy") as f:
        assert set(f.keys()) == {t.name for t in kind.tensors()}


# All experts of a projection in one matrix: one plane, which no reader of single experts finds


@pytest.mark.parametrize("module", [f"{M}.up_proj", "model.layers.0.moe.up_proj"])
def test_the_rows_of_all_experts_in_one_matrix(module: str, tmp_path: Path) -> None:
    tensors = matrix(module, NVFP4, 1, rows=64)
    one_each = Tensor(f"{module}.weight_scale_2", "F32", (E,), bytes(4 * E))
    tensors = [one_each if t.name == one_each.name else t for t in tensors]
    root = write_hf(tmp_path / "in", {"model.safetensors": tensors}, config={"model_type": "mini"})
    done = run("compress", root, tmp_path / "csf", "--keep-larger")
    assert done.exit_code == 0
    says(done, f"1 plane, {module}.weight_scale, with the rows of all experts: csf-tool reads such planes")
    assert run("expand", tmp_path / "csf", tmp_path / "back").exit_code == 0
    assert tree(tmp_path / "back")["model.safetensors"] == (root / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["share_expert", "shared_expert", "share_experts", "expert_gate", "shared_experts"])
def test_shared_experts_are_not_the_rows_of_all_experts(name: str, tmp_path: Path) -> None:
    tensors = matrix(f"model.layers.0.moe.{name}.up_proj", NVFP4, 1, rows=64)
    root = write_hf(tmp_path / "in", {"model.safetensors": tensors}, config={"model_type": "mini"})
    done = run("compress", root, tmp_path / "csf", "--keep-larger")
    assert done.exit_code == 2
    says(done, "not the scale of a routed expert")


def test_a_matrix_of_all_experts_may_be_too_large_for_a_plane(tmp_path: Path) -> None:
    rows, cols = 1 << 18, 128
    tensors = [
        Tensor(f"{M}.up_proj.weight_packed", "U8", (rows, 8 * cols), b""),
        Tensor(f"{M}.up_proj.weight_scale", "F8_E4M3", (rows, cols), b""),
    ]
    header = {"__metadata__": {"format": "pt"}, "a": entry("U8", [0], 0, 0)}
    at = 0
    for t in tensors:
        header[t.name] = entry(t.dtype, list(t.shape), at, at + prod(t.shape))
        at += prod(t.shape)
    path = tmp_path / "in" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(raw_file(header, pad=True))
    os.truncate(path, path.stat().st_size + at)
    done = run("compress", path.parent, tmp_path / "out")
    assert done.exit_code == 2
    says(done, f"it has the rows of all experts, no reader splits it, and as one plane {rows} x {cols} is more")


# What is no scale of a weight, and what is lost


def test_other_scales_are_none_of_weights(tmp_path: Path) -> None:
    """Scales of activations, of caches, norms' parameters, and the companions of planes."""
    tensors = [
        *matrix(f"{M}.0.up_proj", NVFP4, 1),
        tensor("model.norm.scale", "BF16", 64),
        tensor("model.layers.0.self_attn.k_proj.k_scale", "F32"),
        tensor("model.layers.0.self_attn.q_proj.weight", "BF16", 16, 64),
        tensor("model.layers.0.self_attn.q_proj.input_scale", "F32"),
        tensor("logit_scale", "F32"),
        tensor("model.layers.0.layer_scale", "F32", 64),
        tensor("model.layers.0.scale_shift_table", "F8_E4M3", 6, 64),
        tensor("model.layers.0.attn.logit_scale", "F8_E4M3", 8, 1, 1),
        tensor("model.layers.0.ls.layer_scale", "F8_E4M3", 1, 1, 64),
        tensor("model.layers.0.attn.mask", "U8", 64, 64),
        tensor(f"{M}.0.up_proj.channel_scale", "BF16", 16),
    ]
    root = write_hf(tmp_path, {"model.safetensors": list(map(cut, tensors))})
    assert json.loads(run("stats", root, "--json").stdout)["other_scales"] == []


def test_scales_beside_fp4_block_scales_are_scales_of_scales(tmp_path: Path) -> None:
    tensors = [
        tensor(f"{MODULE}.qweight", "I8", ROWS, K // 2),
        tensor(f"{MODULE}.wscales", "F8_E4M3", K // 16, ROWS),
        tensor(f"{MODULE}.wcscales", "BF16", ROWS),
        tensor(f"{MODULE}.wtscale", "BF16", 1),
    ]
    root = write_hf(tmp_path, {"model.safetensors": list(map(cut, tensors))}, config={})
    found = json.loads(run("stats", root, "--json").stdout)["other_scales"]
    assert [(entry["weights"], entry["reason"]) for entry in found] == [
        ("NVFP4", "transposed"),
        ("NVFP4", "second-level"),
        ("NVFP4", "second-level"),
    ]
    says(run("stats", root), "nunchaku's layout (SVDQuant)")


def test_what_fits_a_weight_that_has_its_scales_is_none(tmp_path: Path) -> None:
    tensors = [
        tensor(f"{MODULE}.weight", "U8", ROWS, K // 2),
        tensor(f"{MODULE}.scales", "F16", ROWS, K // 32),
        tensor(f"{MODULE}.zero_points", "U8", ROWS, K // 32),
        *matrix("model.layers.1.mlp.up_proj", NVFP4, 1),
        tensor("model.layers.1.mlp.up_proj.zero_points", "U8", 16, 2),
    ]
    root = write_hf(tmp_path, {"model.safetensors": list(map(cut, tensors))}, config={})
    found = json.loads(run("stats", root, "--json").stdout)["other_scales"]
    assert [(entry["weights"], entry["first"]) for entry in found] == [("INT4 (or INT8)", f"{MODULE}.scales")]


def test_scales_of_a_name_that_stands_twice_are_no_others(tmp_path: Path) -> None:
    for name in ("high.safetensors", "low.safetensors"):
        write_hf(tmp_path, {name: matrix("blocks.0.q", NVFP4, 1)}, index=False)
    assert json.loads(run("stats", tmp_path, "--json").stdout)["other_scales"] == []


def test_a_block_scale_without_a_weight_is_counted(tmp_path: Path) -> None:
    root = write_hf(tmp_path, {"model.safetensors": [cut(tensor("m.w_scales", "U8", 2, 2, 2))]}, index=False)
    [found] = json.loads(run("stats", root, "--json").stdout)["other_scales"]
    assert (found["weights"], found["reason"]) == ("unknown weights", "stacked")
    assert "no FP4 block scales" not in run("compress", root, tmp_path / "out").output


# Real writers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "weights", "scope"),
    [("W4A16", "INT4 (or INT8)", "128 values"), ("W8A8", "INT8", "a row"), ("FP8", "FP8", "a tensor"),
     ("FP8_DYNAMIC", "FP8", "a row"), ("FP8_BLOCK", "FP8", "128x128 values")],
)  # fmt: skip
def test_what_compressed_tensors_writes(scheme: str, weights: str, scope: str, tmp_path: Path) -> None:
    import torch
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from safetensors.torch import save_file

    model = torch.nn.ModuleDict({"up_proj": torch.nn.Linear(256, 256, bias=False)})
    config = QuantizationConfig(config_groups={scheme: ["Linear"]})
    apply_quantization_config(model, config)
    ModelCompressor.from_pretrained_model(model).compress_model(model)
    save_file({f"m.{name}": t.contiguous() for name, t in model.state_dict().items()}, tmp_path / "model.safetensors")
    found = json.loads(run("stats", tmp_path, "--json").stdout)["other_scales"]
    assert [(entry["weights"], entry["a_scale_for"]) for entry in found] == [(weights, scope)]
