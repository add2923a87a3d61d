#!/usr/bin/env python3
"""Makes the model that `vllm_serving.py` serves: random weights at Qwen3.8's geometry, experts in NVFP4, dense.

usage: PYTHONPATH=. python benchmarks/vllm_model.py FOLDER [--layers 4] [--tiny]
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.engines import models


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    make(args.folder, args.layers, args.tiny)


def make(folder: Path, layers: int, tiny: bool) -> None:
    size = models.Size(layers, 256, 128, 8) if tiny else models.Size(layers, 2560, 640, 512, 20)
    device = "cpu" if tiny else "cuda"
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    placed: dict[str, str] = {}
    for i, part in enumerate(parts(size, device)):
        name = f"model-{i + 1:05}-of-{layers + 1:05}.safetensors"
        save_file(part, folder / name, {"format": "pt"})
        placed |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = models.config(size) | {"quantization_config": models.mixed_precision(size)}
    config |= {"max_position_embeddings": 2048, "num_experts_per_tok": 2 if tiny else 8}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    models.write_tokenizer(folder)


def parts(size: Any, device: str) -> Iterator[dict[str, Any]]:
    """The tensors of each shard: those of `tests.engines.models`, the experts made all at once on the device."""
    outer = models.Size(size.layers, size.hidden, size.width, 0, size.heads)
    for number, part in enumerate(models.tensors(outer, models.modelopt)):
        if number:
            stem = f"model.layers.{number - 1}.mlp"
            gate = torch.randn(size.experts, size.hidden, device=device) * 0.05
            part[f"{stem}.gate.weight"] = gate.bfloat16().cpu()
            for name in ("gate", "up", "down"):
                part |= experts(f"{stem}.experts", f"{name}_proj", size, device)
        yield part


def experts(stem: str, projection: str, size: Any, device: str) -> dict[str, Any]:
    """The matrices of all experts of a projection in NVFP4, by ModelOpt's names."""
    found: dict[str, Any] = {}
    rows, cols = (size.hidden, size.width) if projection == "down_proj" else (size.width, size.hidden)
    for begin in range(0, size.experts, 64):  # so many that they fit beside their codes
        some = min(64, size.experts - begin)
        spread = torch.exp(torch.randn(some * rows, 1, device=device) * 0.5)
        weights = (torch.randn(some * rows, cols, device=device) * 0.05 * spread).clamp(-0.5, 0.5)
        packed, scales, whole = models.nvfp4(weights, torch.tensor(0.5, device=device))
        packed, scales = packed.cpu().view(some, rows, -1), scales.cpu().view(some, rows, -1)
        for i in range(some):
            module = f"{stem}.{begin + i}.{projection}"
            found |= {f"{module}.weight": packed[i].clone(), f"{module}.weight_scale": scales[i].clone()}
            found |= {f"{module}.weight_scale_2": whole.cpu().clone(), f"{module}.input_scale": torch.tensor(0.01)}
    return found


if __name__ == "__main__":
    main()
