"""The models of the tests in every layout that csf-tool writes or reads, made once."""

import json
import shutil
from pathlib import Path

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import CompressTo
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.progress import Silent
from csf_tool.write.compress import CompressOptions, compress
from tests.engines import models
from tests.engines.models import TINY, Size

Pairs = dict[str, tuple[Path, Path]]
"""Pairs of folders by the name of what they show: a dense checkpoint, and CSF that stands for it."""

NVFP4_PAIRS = ["one file", "index", "folders", "container", "one algorithm", "compressed-tensors"]
"""Those in NVFP4, which all have the same weights."""


def make(root: Path) -> Pairs:
    """All pairs."""
    mixed = models.mixed_precision(TINY)
    one = models.write(root / "one-file", models.modelopt, mixed)
    several = models.write(root / "several", models.modelopt, mixed, shards=True)
    algorithm = models.write(root / "algorithm", models.modelopt, models.one_algorithm())
    scheme = models.scheme(16, "nvfp4-pack-quantized")
    tensors = models.write(root / "compressed-tensors", models.compressed_tensors, scheme)
    mx = models.scheme(32, "mxfp4-pack-quantized")
    kimi = models.write(root / "mxfp4", models.compressed_tensors_mxfp4, mx, shards=True)
    return {
        "one file": (one, csf(one)),
        "index": (several, csf(several)),
        "folders": (several, in_folders(csf(several, "-flat"), root / "folders-csf")),
        "container": (several, csf(several, "-container", to=CompressTo.CONTAINER)),
        "one algorithm": (algorithm, csf(algorithm)),
        "compressed-tensors": (tensors, csf(tensors)),
        "mxfp4 container": (kimi, csf(kimi, to=CompressTo.CONTAINER)),
    }


def csf(dense: Path, suffix: str = "-csf", to: CompressTo = CompressTo.HF, size: Size = TINY) -> Path:
    """The checkpoint compressed, in a folder beside it."""
    target = dense.with_name(dense.name + suffix)
    done = compress(open_checkpoint(dense), target, CompressOptions(to), NumpyEncoder(), NumpyDecoder(), Silent())
    assert done.planes == 3 * size.experts * size.layers and not done.left
    return target


def in_folders(csf: Path, target: Path) -> Path:
    """The checkpoint with its shards in folders, where its index says."""
    index_name = "model.safetensors.index.json"
    shutil.copytree(csf, target)
    index = json.loads((csf / index_name).read_text())
    places = {name: f"weights/{i % 2}/{name}" for i, name in enumerate(sorted(set(index["weight_map"].values())))}
    for name, place in places.items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / name).rename(target / place)
    index["weight_map"] = {tensor: places[name] for tensor, name in index["weight_map"].items()}
    (target / index_name).write_text(json.dumps(index))
    return target
