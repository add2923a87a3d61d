"""Small models that transformers makes, some of their layers quantised by compressed-tensors, dense and in CSF."""

import json
from pathlib import Path
from typing import Any

import compressed_tensors.quantization as ct
import torch
import transformers
from safetensors.torch import load_file, save_file

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import CompressTo
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.progress import Silent
from csf_tool.write.compress import CompressOptions, compress
from csf_tool.write.selection import Rules
from tests.test_real_quantizer import quantized, scheme_of

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def save_llama(folder: Path, **options: Any) -> Path:
    """A Llama with random weights, its feed-forward layers in NVFP4."""
    config = transformers.LlamaConfig(**SIZES, **options)
    return _save(folder, transformers.LlamaForCausalLM(config), "NVFP4", ".mlp.")


def save_experts(folder: Path, fmt: str) -> Path:
    """A Qwen3-MoE with random weights, its routed experts in an FP4 format."""
    config = transformers.Qwen3MoeConfig(**SIZES, **EXPERTS)
    return _save(folder, transformers.Qwen3MoeForCausalLM(config), fmt, ".experts.")


def save_deepseeks_experts(folder: Path) -> Path:
    """A Qwen3-MoE with its routed experts in MXFP4, and with the names and the config of DeepSeek's models."""
    save_experts(folder, "MXFP4")
    tensors = load_file(folder / FILE)
    for name in [name for name in tensors if ".experts." in name]:
        tensor, (module, _, last) = tensors.pop(name), name.rpartition(".")
        if last == "weight_packed":
            tensors[f"{module}.weight"] = tensor.view(torch.int8)
        elif last == "weight_scale":
            tensors[f"{module}.scale"] = tensor.view(torch.float8_e8m0fnu)
    save_file(tensors, folder / FILE, {"format": "pt"})
    others = ["lm_head", "self_attn", "gate"]
    quantization = {"quant_method": "fp8", "scale_fmt": "ue8m0", "modules_to_not_convert": others}
    change_config(folder, expert_dtype="fp4", quantization_config=quantization)
    return folder


def _save(folder: Path, model: Any, fmt: str, quantized_part: str) -> Path:
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.to(torch.bfloat16).save_pretrained(folder)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / FILE).items():
        module, _, last = name.rpartition(".")
        if quantized_part in name:
            tensors |= {f"{module}.{key}": part.contiguous() for key, part in quantized(tensor.float(), fmt).items()}
        else:
            tensors[f"{module}.{last}"] = tensor
    save_file(tensors, folder / FILE, {"format": "pt"})
    scheme = scheme_of(fmt)
    scheme.targets = [f"re:.*{quantized_part.strip('.')}.*_proj"]
    quantization = ct.QuantizationConfig(
        config_groups={"group_0": scheme},
        ignore=["lm_head"],
        format=f"{fmt.lower()}-pack-quantized",
        quantization_status="compressed",
    )
    change_config(
        folder, dtype="bfloat16", quantization_config=json.loads(quantization.model_dump_json(exclude_none=True))
    )
    return folder


def change_config(folder: Path, **keys: Any) -> None:
    """Set keys of a model's config."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))


def in_csf(dense: Path, folder: Path, to: CompressTo = CompressTo.HF) -> Path:
    """A model's FP4 layers compressed; the folder that is given to transformers."""
    options = CompressOptions(to, Rules(include=("*.mlp.*",), keep_larger=True))
    done = compress(open_checkpoint(dense), folder, options, NumpyEncoder(), NumpyDecoder(), Silent())
    assert done.planes
    assert not done.left
    return folder / "metadata" if to is CompressTo.CONTAINER else folder


def split(folder: Path, parts: int) -> Path:
    """Spread a model's tensors over shards, each tensor into another than the one before it."""
    tensors = load_file(folder / FILE)
    (folder / FILE).unlink()
    weight_map: dict[str, str] = {}
    for i in range(parts):
        name = f"model-{i + 1:05}-of-{parts:05}.safetensors"
        own = {key: tensors[key] for key in sorted(tensors)[i::parts]}
        save_file(own, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(own, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def logits(folder: Path, **options: Any) -> torch.Tensor:
    """What the model of a folder computes for some tokens."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(12)[None]).logits
    return found
