"""demo: a small real NVFP4 checkpoint, compressed, and the commands that a user would type on it."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.index import INDEX_NAME
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import GroupBy
from csf_tool.codec.formats import NVFP4
from csf_tool.codec.values import scale_values
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.disk.headers import render_header
from csf_tool.disk.json_files import render_json
from csf_tool.errors import UsageError
from csf_tool.look.stats import collect_stats
from csf_tool.progress import Silent
from csf_tool.prove.verify import verify
from csf_tool.report.compress import compress_report
from csf_tool.report.console import print_out
from csf_tool.report.expand import expand_report
from csf_tool.report.stats import stats_report
from csf_tool.report.verify import verify_report
from csf_tool.write.compress import CompressOptions, compress
from csf_tool.write.destination import Destination
from csf_tool.write.expand import expand

_LAYERS, _EXPERTS, _HIDDEN, _INTERMEDIATE = 2, 8, 512, 256
_SEED = 2026
_SHARD = "model-{:05}-of-{:05}.safetensors"

# NVFP4 (NVIDIA's two-level rule): a group of 16 weights shares an E4M3 scale, amax / 6; a matrix shares one
# FP32 scale that brings the largest group scale to E4M3's largest value, 448.
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1_MAX, _E4M3_MAX = 6.0, 448.0

Tensor = tuple[str, tuple[int, ...], bytes]
"""dtype, shape and data."""


def run(keep: Path | None) -> int:
    """Make the checkpoints in `keep` or a temporary folder, and show the commands; the exit code."""
    if keep and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"{keep}: exists and is not an empty folder")
    with _folder(keep) as folder:
        dense, csf, expanded = folder / "dense", folder / "csf", folder / "expanded"
        _write(dense, [_dense_layer(layer) for layer in range(_LAYERS)])
        print_out(f"Made {dense}: seeded random weights, quantised to NVFP4.")
        ok = _show(dense, csf, expanded)
    where = f"The checkpoints are in {keep}." if keep else "The checkpoints are removed; --keep DIR leaves them."
    print_out("", f"{where} Next: csf-tool stats YOUR_CHECKPOINT")
    return 0 if ok else 1


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep:
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="csf-demo-") as name:
            yield Path(name)


def _show(dense: Path, csf: Path, expanded: Path) -> bool:
    """Run the commands on the made checkpoint, printing what a user would type."""
    made = compress(open_checkpoint(dense), csf, CompressOptions(), NumpyEncoder(), NumpyDecoder(), Silent())
    print_out("", f"$ csf-tool compress {dense} {csf}", *compress_report(made))
    print_out("", f"$ csf-tool stats {csf}", *stats_report(collect_stats(open_checkpoint(csf)), GroupBy.PROJECTION))
    alone = verify(open_checkpoint(csf), None, NumpyDecoder(), Silent())
    print_out("", "# This checkpoint was never published: there is no hash to compare with, and verify says so.")
    print_out(f"$ csf-tool verify {csf}", *verify_report(alone))
    done = expand(open_checkpoint(csf), expanded, NumpyDecoder(), Silent())
    print_out("", f"$ csf-tool expand {csf} {expanded}", *expand_report(done))
    proof = verify(open_checkpoint(csf), open_checkpoint(dense), NumpyDecoder(), Silent())
    print_out("", "# The dense checkpoint is here: compare with it.")
    print_out(f"$ csf-tool verify {csf} --against {dense}", *verify_report(proof))
    return alone.ok and proof.ok


def _dense_layer(layer: int) -> dict[str, Tensor]:
    """The tensors of one layer: its experts in NVFP4, and a norm that nothing compresses."""
    rng = np.random.default_rng([_SEED, layer])
    prefix = f"model.layers.{layer}"
    norm = np.ones(_HIDDEN, np.float32).view(np.uint32) >> 16  # BF16 is the upper half of FP32
    tensors: dict[str, Tensor] = {
        f"{prefix}.input_layernorm.weight": ("BF16", (_HIDDEN,), norm.astype("<u2").tobytes())
    }
    for expert in range(_EXPERTS):
        for projection in ("gate_proj", "up_proj", "down_proj"):
            rows, k = (_HIDDEN, _INTERMEDIATE) if projection == "down_proj" else (_INTERMEDIATE, _HIDDEN)
            spread = rng.lognormal(0, 0.5, (rows, 1))  # rows of real weights differ in size
            weight = (rng.standard_normal((rows, k)) * spread * 0.02).astype(np.float32)
            stem = f"{prefix}.mlp.experts.{expert}.{projection}"
            for suffix, tensor in _quantize(weight).items():
                tensors[stem + suffix] = tensor
    return tensors


def _quantize(weight: NDArray[np.float32]) -> dict[str, Tensor]:
    """A `[rows, K]` float32 weight in NVFP4: packed codes, E4M3 block scales, FP32 global scale."""
    rows, k = weight.shape
    groups = weight.reshape(rows, k // NVFP4.group_size, NVFP4.group_size)
    amax = np.abs(groups).max(axis=2)
    global_scale = np.float32(amax.max() / (_E2M1_MAX * _E4M3_MAX))
    scales = _nearest(_e4m3_values(), amax / _E2M1_MAX / global_scale)
    divisor = np.maximum(_e4m3_values()[scales] * global_scale, np.finfo(np.float32).tiny)
    scaled = groups / divisor[:, :, None]
    codes = _nearest(_E2M1, np.abs(scaled)) | (np.signbit(scaled) << np.uint8(3))
    codes = codes.reshape(rows, k)
    packed = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
    return {
        ".weight": ("U8", (rows, k // 2), packed.tobytes()),
        ".weight_scale": (NVFP4.dense_dtype, scales.shape, scales.tobytes()),
        ".weight_scale_2": ("F32", (), global_scale.astype("<f4").tobytes()),
    }


def _e4m3_values() -> NDArray[np.float32]:
    """The values of the E4M3 bytes 0x00 to 0x7E, which increase."""
    return scale_values(NVFP4)[:0x7F].astype(np.float32)


def _nearest(values: NDArray[np.float32], wanted: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The index of the nearest of some increasing values; between two, the even one, as IEEE rounding has it."""
    above = np.clip(np.searchsorted(values, wanted), 1, len(values) - 1)
    low, high = wanted - values[above - 1], values[above] - wanted
    take_low = (low < high) | ((low == high) & (above % 2 == 1))
    return np.where(take_low, above - 1, above).astype(np.uint8)


def _write(folder: Path, layers: list[dict[str, Tensor]]) -> None:
    """A checkpoint in the Hugging Face layout, one shard a layer."""
    destination = Destination(folder)
    weight_map: dict[str, str] = {}
    for i, tensors in enumerate(layers, 1):
        shard = _SHARD.format(i, len(layers))
        entries = [(name, dtype, shape, len(data)) for name, (dtype, shape, data) in tensors.items()]
        header = render_header({"format": "pt"}, entries)
        destination.write(shard, header + b"".join(data for _, _, data in tensors.values()))
        weight_map |= dict.fromkeys(tensors, shard)
    total = sum(len(data) for tensors in layers for _, _, data in tensors.values())
    destination.write(CONFIG_FILES[0], render_json(_config()))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    destination.write(INDEX_NAME, render_json(index))


def _config() -> dict[str, object]:
    recipe = {"quant_algo": "NVFP4", "group_size": NVFP4.group_size}
    layers = {f"model.layers.{layer}.mlp.experts": recipe for layer in range(_LAYERS)}
    quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    return {"model_type": "csf-tool-demo", "quantization_config": quantization}
