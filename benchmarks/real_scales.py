#!/usr/bin/env python3
"""Make a layer at Qwen3.8's geometry whose block scales are real ones, for `csf-tool bench --checkpoint`.

Writes a dense checkpoint of 1.35 GB. Its block scales are those of the sample checkpoint in tests/data, which was
made from real weights: its rows in turn, each repeated along the plane's. So bases are those of weights, and
exceptions gather where theirs do. The FP4 weights are random, as in `files.py`.

usage: benchmarks/real_scales.py FOLDER     (new; compress it, or give it to bench as it is)
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch
from files import HIDDEN, make_dense
from numpy.typing import NDArray
from safetensors import safe_open

SAMPLE = Path(__file__).resolve().parent.parent / "tests/data/samples/nvfp4-dense"


@cache
def sample_rows(of_down: bool) -> NDArray[np.uint8]:
    """The block scales of all layers and experts, plane below plane: those of down, or those of gate and up."""
    planes = []
    for shard in sorted(SAMPLE.glob("*.safetensors")):
        with safe_open(shard, "pt") as tensors:
            names = [name for name in tensors.keys() if ".experts." in name and name.endswith(".weight_scale")]
            chosen = [name for name in names if (".down_proj." in name) == of_down]
            planes += [tensors.get_tensor(name).view(torch.uint8).numpy() for name in chosen]
    return np.concatenate(planes)


def real_scales(rng: np.random.Generator, shape: tuple[int, ...]) -> bytes:
    """A plane of rows of the sample, from a random one on."""
    rows, cols = shape
    stored = sample_rows(rows == HIDDEN)
    chosen = stored[(rng.integers(len(stored)) + np.arange(rows)) % len(stored)]
    return np.tile(chosen, (1, -(-cols // chosen.shape[1])))[:, :cols].tobytes()


if __name__ == "__main__":
    make_dense(Path(sys.argv[1]), layers=1, scales=real_scales)
