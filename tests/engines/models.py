"""Small Qwen3 models of many experts, made on the spot: random weights in FP4, a tokenizer of bytes, and a config.

Nothing is asked of vLLM or of csf_tool to make them.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""The values of E2M1 without sign."""

MIDDLES = (VALUES[1:] + VALUES[:-1]) / 2
VOCABULARY = 256 + 16
SPECIAL = ["<|eos|>", "<|bos|>", "<|pad|>"]

Tensors = dict[str, torch.Tensor]
Quantise = Callable[[str, torch.Tensor], Tensors]


@dataclass(frozen=True)
class Size:
    """The sizes of a model."""

    layers: int = 2
    hidden: int = 256
    width: int = 128
    experts: int = 8
    heads: int = 4


TINY = Size()


def codes(groups: torch.Tensor) -> torch.Tensor:
    """E2M1 codes of scaled values, two a byte."""
    index = torch.bucketize(groups.abs(), MIDDLES.to(groups.device)).to(torch.uint8) | (
        (groups < 0).to(torch.uint8) << 3
    )
    flat = index.flatten(1)
    return flat[:, 0::2] | (flat[:, 1::2] << 4)


def nvfp4(weight: torch.Tensor, largest: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    """Codes, block scales in E4M3, and the scale of the whole, of which the block scales are multiples."""
    groups = weight.float().unflatten(1, (-1, 16))
    most = groups.abs().amax(-1)
    whole = (most.max() if largest is None else largest) / (6 * 448)
    scales = (most / 6 / whole).to(torch.float8_e4m3fn)
    divisor = scales.float() * whole
    divisor[divisor == 0] = 1
    return codes(groups / divisor[..., None]), scales, whole


def mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, and block scales that are the exponents of powers of two."""
    groups = weight.float().unflatten(1, (-1, 32))
    exponents = groups.abs().amax(-1).clamp_min(2**-100).log2().floor() - 2
    return codes(groups / exponents.exp2()[..., None]), (exponents + 127).to(torch.uint8)


def modelopt(module: str, weight: torch.Tensor) -> Tensors:
    """An NVFP4 matrix by ModelOpt's names."""
    packed, scales, whole = nvfp4(weight, torch.tensor(0.5))  # gate and up of an expert must share the last one
    return {
        f"{module}.weight": packed,
        f"{module}.weight_scale": scales,
        f"{module}.weight_scale_2": whole,
        f"{module}.input_scale": torch.tensor(1.0),
    }


def compressed_tensors(module: str, weight: torch.Tensor) -> Tensors:
    """An NVFP4 matrix by the names of compressed-tensors, which has the inverse of the whole's scale."""
    packed, scales, whole = nvfp4(weight, torch.tensor(0.5))
    return {
        f"{module}.weight_packed": packed,
        f"{module}.weight_scale": scales,
        f"{module}.weight_global_scale": 1 / whole.reshape(1),
    }


def compressed_tensors_mxfp4(module: str, weight: torch.Tensor) -> Tensors:
    """An MXFP4 matrix by the names of compressed-tensors, which are Kimi's."""
    packed, scales = mxfp4(weight)
    return {f"{module}.weight_packed": packed, f"{module}.weight_scale": scales}


def scheme(bits_group: int, kind: str) -> dict[str, Any]:
    """The quantization_config of compressed-tensors for the experts alone."""
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": bits_group, "dynamic": False}
    weights["strategy"] = "tensor_group" if bits_group == 16 else "group"
    weights |= {} if bits_group == 16 else {"scale_dtype": "torch.uint8"}
    group = {"targets": [r"re:.*mlp\.experts.*"], "weights": weights, "input_activations": None, "format": kind}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*self_attn.*", r"re:.*mlp\.gate$"],
    }


def mixed_precision(size: Size) -> dict[str, Any]:
    """ModelOpt's quantization_config that has a recipe a module."""
    recipe = {"quant_algo": "NVFP4", "group_size": 16}
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": None,
        "producer": {"name": "modelopt", "version": "0.47"},
        "exclude_modules": [],
        "quantized_layers": {f"model.layers.{i}.mlp.experts": dict(recipe) for i in range(size.layers)},
    }


def one_algorithm() -> dict[str, Any]:
    """ModelOpt's quantization_config of one algorithm for all but what it excludes."""
    excluded = ["lm_head", "*self_attn*", "*mlp.gate"]
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": excluded}


def tensors(size: Size, quantise: Quantise, seed: int = 0) -> Iterator[Tensors]:
    """The tensors of a model, part by part: what stands outside of the layers, then each layer."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * 0.05

    hidden, head = size.hidden, size.hidden // size.heads
    yield {
        "model.embed_tokens.weight": normal(VOCABULARY, hidden).bfloat16(),
        "lm_head.weight": (normal(VOCABULARY, hidden) * 4).bfloat16(),
        "model.norm.weight": torch.ones(hidden).bfloat16(),
    }
    for layer in range(size.layers):
        stem = f"model.layers.{layer}"
        part: Tensors = {}
        for name, rows in (("q", hidden), ("k", hidden // 2), ("v", hidden // 2), ("o", hidden)):
            part[f"{stem}.self_attn.{name}_proj.weight"] = normal(rows, hidden).bfloat16()
        for name, width in (("self_attn.q_norm", head), ("self_attn.k_norm", head)):
            part[f"{stem}.{name}.weight"] = torch.ones(width).bfloat16()
        for name in ("input_layernorm", "post_attention_layernorm"):
            part[f"{stem}.{name}.weight"] = torch.ones(hidden).bfloat16()
        part[f"{stem}.mlp.gate.weight"] = normal(size.experts, hidden).bfloat16()
        for expert in range(size.experts):
            for name in ("gate", "up", "down"):
                rows, cols = (hidden, size.width) if name == "down" else (size.width, hidden)
                spread = torch.exp(torch.randn(rows, 1, generator=random) * 0.5)
                part |= quantise(
                    f"{stem}.mlp.experts.{expert}.{name}_proj", (normal(rows, cols) * spread).clamp(-0.5, 0.5)
                )
        yield part


def write(
    folder: Path,
    quantise: Quantise,
    quantization: dict[str, Any],
    size: Size = TINY,
    *,
    shards: bool = False,
) -> Path:
    """Write a model, its weights in one file or in a shard a part."""
    folder.mkdir(parents=True)
    parts = list(tensors(size, quantise)) if not shards else tensors(size, quantise)
    if shards:
        placed: dict[str, str] = {}
        for i, part in enumerate(parts):
            name = f"model-{i + 1:05}-of-{size.layers + 1:05}.safetensors"
            save_file(part, folder / name, {"format": "pt"})
            placed |= dict.fromkeys(part, name)
        index = {"metadata": {"total_size": 0}, "weight_map": placed}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        save_file({k: v for part in parts for k, v in part.items()}, folder / "model.safetensors", {"format": "pt"})
    document = config(size)
    document["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(document, indent=2))
    write_tokenizer(folder)
    return folder


def config(size: Size) -> dict[str, Any]:
    """The config of a model without its quantisation."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": size.hidden,
        "intermediate_size": size.hidden,
        "moe_intermediate_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads // 2,
        "head_dim": size.hidden // size.heads,
        "num_experts": size.experts,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 256,
        "bos_token_id": 257,
        "pad_token_id": 258,
    }


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer whose tokens are the 256 bytes and three special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for token in SPECIAL:
        tokenizer.add_special_tokens([token])
    eos, bos, pad = SPECIAL
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, bos_token=bos, pad_token=pad)
    fast.save_pretrained(folder)
