"""A real model through transformers' own loading: its safe_open replaced by ours, nothing else.

The checkpoint's linear layers are quantised by compressed-tensors; transformers applies that library to the scales
that it is given, and the model computes with them.
"""

import json
from pathlib import Path
from typing import Any

import compressed_tensors.quantization as ct
import pytest
import torch
import transformers
from safetensors.torch import save_file

import csf_tool
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import CompressTo
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.progress import Silent
from csf_tool.write.compress import CompressOptions, compress
from csf_tool.write.selection import Rules
from tests.test_real_quantizer import quantized, scheme_of

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """A small Llama with random weights, its feed-forward layers quantised to NVFP4."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**CONFIG)
    state = transformers.LlamaForCausalLM(config).to(torch.bfloat16).state_dict()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if ".mlp." in name:
            module = name.removesuffix(".weight")
            tensors |= {
                f"{module}.{key}": part.contiguous() for key, part in quantized(tensor.float(), "NVFP4").items()
            }
        else:
            tensors[name] = tensor.contiguous()
    folder = tmp_path / "dense"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    scheme = scheme_of("NVFP4")
    scheme.targets = ["re:.*mlp.*_proj"]
    quantization = ct.QuantizationConfig(
        config_groups={"group_0": scheme},
        ignore=["lm_head"],
        format="nvfp4-pack-quantized",
        quantization_status="compressed",
    )
    document = config.to_dict() | {
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "quantization_config": json.loads(quantization.model_dump_json(exclude_none=True)),
    }
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def logits(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(12)[None]).logits
    return found


@pytest.mark.slow
def test_a_model_computes_the_same_from_the_csf_checkpoint(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    want = logits(dense)
    csf = tmp_path / "csf"
    options = CompressOptions(CompressTo.HF, Rules(include=("*.mlp.*",)))
    done = compress(open_checkpoint(dense), csf, options, NumpyEncoder(), NumpyDecoder(), Silent())
    assert (done.planes, done.left) == (6, [])
    opened: list[str] = []

    class Spied(csf_tool.safe_open[torch.Tensor]):
        def __init__(self, filename: str, *args: Any, **options: Any) -> None:
            opened.append(filename)
            super().__init__(filename, *args, **options)

    monkeypatch.setattr("transformers.modeling_utils.safe_open", Spied)
    got = logits(csf)
    assert opened == [str(csf / "model.safetensors")]
    assert want.float().abs().mean() > 0.01
    assert torch.equal(got, want)


def test_transformers_own_reading_of_a_state_dict(sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of its ways: the tensors, and on the meta device their dtypes and shapes alone."""
    load = transformers.modeling_utils.load_state_dict
    dense, csf = (sample(name) / "model-00001-of-00003.safetensors" for name in ("nvfp4-dense", "nvfp4-csf-hf"))
    for where in ("cpu", "meta"):
        want = load(dense, map_location=where)
        with monkeypatch.context() as patched:
            patched.setattr("transformers.modeling_utils.safe_open", csf_tool.safe_open)
            got = load(csf, map_location=where)
        assert got.keys() == want.keys()
        for name, tensor in want.items():
            assert (got[name].dtype, got[name].shape, got[name].device) == (tensor.dtype, tensor.shape, tensor.device)
            if where == "cpu":
                assert torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (got[name], tensor)))
