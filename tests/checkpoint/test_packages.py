"""Packages of other tools and of the predecessor are named for what they are, where a command finds nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.building import Tensor, mini_dense, write_json, write_shard
from tests.commands import run, says
from tests.downloads import of_schema


def tensors(*names: str, dtype: str = "I32") -> list[Tensor]:
    return [Tensor(name, dtype, (2,), bytes(8)) for name in names]


def quantised(method: str) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method}}


PACKAGES: list[tuple[str, list[Tensor], dict[str, Any], str]] = [
    ("model.safetensors", tensors("l.0.qweight", "l.0.qzeros", "l.0.scales", "l.0.g_idx"), {}, "GPTQ's layout"),
    ("model.safetensors", tensors("l.0.qweight", "l.0.qzeros", "l.0.scales"), quantised("awq"), "AWQ's layout"),
    (
        "model.safetensors",
        tensors("l.0.weight", "l.0.weight.quant_state.bitsandbytes__nf4"),
        {},
        "bitsandbytes' layout",
    ),
    ("model.safetensors", tensors("l.0.weight", "l.0.SCB"), quantised("bitsandbytes"), "bitsandbytes' layout"),
    ("model.safetensors", tensors("l.0.qweight", "l.0.qzeros", "l.0.scales"), quantised("auto-round"), "by auto-round"),
    ("model.safetensors", tensors("l.0.qweight", "l.0.scales"), quantised("fp_quant"), "quantised by fp_quant"),
    (
        "svdq.safetensors",
        tensors("l.0.qweight", "l.0.wscales", "l.0.smooth_factor"),
        {},
        "nunchaku's layout (SVDQuant)",
    ),
    ("model.safetensors", tensors("l.0.q_weight", "l.0.q_scale"), {}, "ExLlama's layout"),
    ("weights.safetensors", tensors("l.0.weight", "l.0.scales", "l.0.biases"), {}, "MLX's layout"),
    ("flux.safetensors", tensors("model.diffusion_model.x.weight"), {}, "a single file of ComfyUI"),
    ("flux.safetensors", tensors("x.weight", "x.comfy_quant"), {}, "a single file of ComfyUI"),
    ("adapter_model.safetensors", tensors("l.0.q_proj.lora_A.weight"), {}, "a LoRA or another adapter"),
    ("pytorch_lora_weights.safetensors", tensors("te.lora_down.weight"), {}, "a LoRA or another adapter"),
    ("rank0.safetensors", tensors("l.0.weight"), {"mapping": {"world_size": 1}}, "a TensorRT-LLM checkpoint"),
    ("model.safetensors", tensors("l.0.weight"), quantised("hqq"), "quantised by hqq, by its config"),
    ("model.safetensors", tensors("l.0.scale.x4t_fixed", "l.0.scale.x4t_exceptions"), {}, "streams of x4t, the pre"),
]


@pytest.mark.parametrize(("name", "held", "config", "words"), PACKAGES, ids=[words for *_, words in PACKAGES])
def test_a_checkpoint_without_fp4_is_named(
    tmp_path: Path, name: str, held: list[Tensor], config: dict[str, Any], words: str
) -> None:
    root = tmp_path / "root"
    write_shard(root / name, held)
    write_json(root / "config.json", config)
    is_predecessor = "x4t" in words
    for command in (["stats"], ["verify"], ["compress", tmp_path / "out"], ["expand", tmp_path / "out"]):
        result = run(command[0], root, *command[1:])
        says(result, "x4t" if is_predecessor else words)
        assert (result.exit_code != 0) == (is_predecessor or len(command) > 1)


def test_streams_of_the_predecessor_are_an_error_beside_fp4_too(tmp_path: Path) -> None:
    root = mini_dense(tmp_path / "root")
    write_shard(root / "old.safetensors", tensors("l.0.scale.x4t_fixed", "l.0.scale.x4t_exceptions"))
    for words in (["stats", root], ["verify", root], ["compress", root, tmp_path / "out", "--keep-larger"]):
        result = run(*words)
        assert result.exit_code == 1
        says(result, "is a stream of x4t, the predecessor of CSF")


def test_a_container_of_the_predecessor(tmp_path: Path) -> None:
    root = of_schema("lil-x4t-checkpoint/1")(tmp_path / "root")
    for words in (["stats", root], ["verify", root], ["expand", root, tmp_path / "out"]):
        result = run(*words)
        assert result.exit_code == 1
        says(result, "the schema of x4t, the predecessor of CSF")


def test_ordinary_models_are_nothing_special(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", tensors("l.0.weight"))
    for method in ("modelopt", "compressed-tensors"):
        write_json(tmp_path / "config.json", quantised(method))
        assert run("stats", tmp_path).stdout.splitlines()[0].endswith("Hugging Face layout, no FP4 scales")


def test_a_model_with_adapters_in_it_is_one(tmp_path: Path) -> None:
    root = tmp_path / "phi"
    parts = ("base_layer.weight", "lora_A.vision.weight", "lora_B.vision.weight")
    held = [*tensors(*(f"l.0.q_proj.{part}" for part in parts)), *tensors("norm.weight", "head.weight")]
    write_shard(root / "model.safetensors", held)
    write_json(root / "config.json", {"model_type": "phi4mm"})
    write_json(root / "adapter_config.json", {})
    assert run("stats", root).stdout.splitlines()[0].endswith("Hugging Face layout, no FP4 scales")


def file(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(b"x")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (file("model.gguf"), "it has 1 GGUF file (llama.cpp): csf-tool reads safetensors only: look for"),
        (file("rank0.engine"), "it has 1 TensorRT engine: "),
        (file("model.ckpt"), "it has 1 PyTorch .ckpt file: "),
        (file("__0_0.distcp"), "it has 1 file of a distributed checkpoint of PyTorch: "),
        (file("model.onnx"), "it has 1 ONNX file: "),
        (file("flax_model.msgpack"), "it has 1 Flax file: "),
        (file("model.tar"), "it has 1 tar archive: unpack it first"),
        (file("model.tar.zst"), "it has 1 zstd-compressed file: unpack it first"),
        (file("model_index.json"), "this is a diffusers pipeline (model_index.json): give one of the folders in it"),
    ],
)
@pytest.mark.parametrize("command", ["stats", "verify"])
def test_a_folder_without_shards_is_named(
    tmp_path: Path, command: str, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path)
    result = run(command, tmp_path)
    assert result.exit_code == 2
    says(result, "not a checkpoint", words)
