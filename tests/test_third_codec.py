"""A codec added as docs/architecture.md says: a format, the values of its bytes, and all commands work on files.

A format of 2-bit codes is added in a process of its own. The original's hashes, taken before it was compressed,
prove what comes back.
"""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from csf_tool.codec import reference
from csf_tool.codec.formats import NVFP4
from csf_tool.codec.values import VALUES, scale_values
from tests.building import Tensor, index_of, write_json, write_shard

THIRD = replace(
    NVFP4,
    name="third",
    title="Third",
    codec="row-base-window2-u24-exceptions/1",
    schema="third-csf-checkpoint/1",
    serving_method="third_csf",
    code_bits=2,
    column_multiple=4,
    dense_dtypes=("F8_E5M2",),
    scale_type="E5M2",
)


def e5m2() -> NDArray[np.float64]:
    """The upper half of a float16, as OCP's specification has it."""
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float64)


WITH_THIRD = """
import sys
from csf_tool.codec import formats
from csf_tool.codec.values import VALUES
from tests.test_third_codec import THIRD, e5m2
formats.FORMATS += (THIRD,)
VALUES[THIRD.scale_type] = e5m2
from csf_tool.cli import app
app(sys.argv[1:])
"""


@given(seed=st.integers(0, 2**32), cols=st.integers(1, 9), slabs=st.integers(1, 3))
def test_numpy_encodes_and_decodes_it(seed: int, cols: int, slabs: int) -> None:
    scales = np.random.default_rng(seed).integers(100, 107, (16 * slabs, 4 * cols), np.uint8)
    fixed, words = reference.encode(THIRD, scales)
    assert fixed.nbytes == 16 * slabs * (1 + cols)
    assert not reference.check(THIRD, fixed, words, rows=16 * slabs, cols=4 * cols)
    assert np.array_equal(reference.decode(THIRD, fixed, words, rows=16 * slabs, cols=4 * cols), scales)


def test_its_bytes_are_taken_for_no_other_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        NotImplementedError, match=r"^Third scales are E5M2, and codec/values\.py has no values for them$"
    ):
        scale_values(THIRD)
    monkeypatch.setitem(VALUES, THIRD.scale_type, e5m2)
    assert scale_values(THIRD)[0x3C] == 1.0


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITH_THIRD, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False)


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    tensors = []
    for expert in range(2):
        stem = f"layers.0.mlp.experts.{expert}.up_proj"
        scales = rng.integers(60, 64, (64, 32), np.uint8)
        scales[3, 5] = 200
        tensors.append(Tensor(f"{stem}.weight", "U8", (64, 256), rng.bytes(64 * 256)))
        tensors.append(Tensor(f"{stem}.weight_scale", "F8_E5M2", (64, 32), scales.tobytes()))
    shards = {"model.safetensors": tensors}
    write_shard(tmp_path / "dense" / "model.safetensors", tensors)
    write_json(tmp_path / "dense" / "model.safetensors.index.json", index_of(shards))
    write_json(tmp_path / "dense" / "config.json", {})
    return tmp_path / "dense"


@pytest.mark.slow
def test_files_of_it_are_compressed_verified_and_restored(dense: Path, tmp_path: Path) -> None:
    csf, back = tmp_path / "csf", tmp_path / "back"
    original = hashlib.sha256((dense / "model.safetensors").read_bytes()).hexdigest()
    done = run("compress", dense, csf, "--to", "container", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert json.loads((csf / "manifest.json").read_text())["codec"] == THIRD.codec
    assert (csf / "tensors" / "model.safetensors").stat().st_size < (dense / "model.safetensors").stat().st_size
    verified = run("verify", csf, "--against", dense, "--json", "--device", "cpu")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["kind"] == "CSF container, Third CSF"
    inspected = run("inspect", csf, "layers.0.mlp.experts.0.up_proj.weight_scale")
    assert inspected.returncode == 0, inspected.stderr
    assert "columns of E5M2 scales (F8_E5M2)" in inspected.stdout
    assert "\n60 (1)\t" in inspected.stdout  # the base of most rows, 0x3C
    assert run("expand", csf, back, "--device", "cpu").returncode == 0
    assert hashlib.sha256((back / "model.safetensors").read_bytes()).hexdigest() == original
