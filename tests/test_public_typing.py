"""A user's code, held against the types of the public API: mypy checks this file, strictly, with all others.

It runs, too, so that what the types promise is what happens.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, assert_type

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import csf_tool
from csf_tool import (
    CompressDocument,
    ConvertDocument,
    CsfScales,
    ExpandDocument,
    ScaleWorkspace,
    StatsDocument,
    VerifyDocument,
)
from tests.fixture_types import Sample


def torch_tensors(folder: Path) -> dict[str, torch.Tensor]:
    with csf_tool.safe_open(folder, framework="pt", device="cpu") as f:
        assert_type(f.keys(), list[str])
        assert_type(f.offset_keys(), list[str])
        assert_type(f.metadata(), dict[str, str] | None)
        name = f.keys()[0]
        assert_type(f.get_tensor(name), torch.Tensor)
        part = f.get_slice(name)
        assert_type(part.get_shape(), list[int])
        assert_type(part.get_dtype(), str)
        assert_type(part[0:1], torch.Tensor)
        assert_type(csf_tool.safe_open(folder).get_tensor(name), torch.Tensor)
        return f.get_tensors()


def numpy_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    with csf_tool.safe_open(folder, "np") as f:
        assert_type(f.get_tensor(f.keys()[0]), NDArray[Any])
        assert_type(f.get_slice(f.keys()[0])[...], NDArray[Any])
        return f.get_tensors()


def loaded(folder: Path) -> int:
    checkpoint = csf_tool.open_checkpoint(folder)
    tensors = csf_tool.iter_tensors(checkpoint, device=torch.device("cpu"), names=None, batch=1 << 20)
    assert_type(tensors, Iterator[tuple[str, torch.Tensor]])
    assert_type(csf_tool.load_file(folder, "cpu"), dict[str, torch.Tensor])
    return sum(tensor.nbytes for _, tensor in tensors)


def stacks(folder: Path) -> ScaleWorkspace:
    gate_up = csf_tool.load_stack(folder, 0, "gate_up", device="cpu", tp_rank=0, tp_size=1, order=("up", "gate"))
    assert_type(gate_up, CsfScales)
    workspace = csf_tool.ScaleWorkspace(gate_up, csf_tool.load_stack(folder, 0, "down", device="cpu"))
    assert_type(workspace.nbytes, int)
    return workspace


def decoded(workspace: ScaleWorkspace, stack: CsfScales, expert_start: torch.Tensor | None) -> torch.Tensor:
    dense = workspace.decompress(stack, expert_start=expert_start)
    assert_type(dense, torch.Tensor)
    return dense


def documents(folder: Path, dense: Path, out: Path) -> None:
    looked = csf_tool.stats(folder, scales=True)
    assert_type(looked, StatsDocument)
    assert_type(looked["scales"]["csf_bytes"], int | None)
    assert_type(looked["by_layer"][0]["layer"], str)
    proof = csf_tool.verify(csf_tool.open_checkpoint(folder), against=dense, device="cpu", only=["*"], jobs=1)
    assert_type(proof, VerifyDocument)
    assert_type(proof["ok"], bool)
    assert_type(proof["checks"][0]["status"], Literal["passed", "failed", "warning", "skipped"])
    assert_type(csf_tool.identity(folder, by="sizes")["identity"], str)
    assert_type(csf_tool.plan(folder, gpu_memory="96GiB", tp=2)["saved_bytes"], int)
    written = csf_tool.expand(folder, out / "dense", device="cpu", on_progress=lambda done, total: total - done)
    assert_type(written["proved_shards"], list[str])
    assert_type(csf_tool.compress(dense, out / "csf", device="cpu", exclude="*.layers.0.*"), CompressDocument)
    assert_type(csf_tool.convert(folder, out / "container", to="container"), ConvertDocument)
    assert_type(csf_tool.finish(folder, out / "dense"), ExpandDocument | CompressDocument | ConvertDocument)


@pytest.mark.slow
def test_what_the_types_promise_of_documents(sample: Sample, tmp_path: Path) -> None:
    documents(sample("nvfp4-csf-hf"), sample("nvfp4-dense"), tmp_path)


@pytest.mark.slow
def test_a_script_elsewhere_is_checked_strictly(tmp_path: Path) -> None:
    """As users check theirs: by the types of the package (`py.typed`), right and wrong ones."""
    script = tmp_path / "script.py"
    script.write_text(
        "import csf_tool\n"
        "ok: bool = csf_tool.verify('x')['ok']\n"
        "saved: int | None = csf_tool.stats('x')['scales']['saved_bytes']\n"
        "document: csf_tool.ExpandDocument = csf_tool.expand('x', 'y', jobs=2)\n"
        "csf_tool.verify('x', cross_check='some')\n"
        "csf_tool.stats('x')['nothing']\n"
    )
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\n[mypy-torch.*,triton.*]\nfollow_imports = skip\n"
    )  # large
    check = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), str(script)]
    done = subprocess.run(check, capture_output=True, text=True, check=False, cwd=tmp_path)
    faults = [line.split(": ")[0].rpartition(":")[2] for line in done.stdout.splitlines() if ": error:" in line]
    assert faults == ["5", "6"], done.stdout


def test_what_the_types_promise(sample: Sample) -> None:
    folder = sample("nvfp4-csf-hf")
    tensors, arrays = torch_tensors(folder), numpy_arrays(folder)
    assert isinstance(next(iter(tensors.values())), torch.Tensor)
    assert isinstance(next(iter(arrays.values())), np.ndarray)
    assert loaded(folder) == sum(tensor.nbytes for tensor in tensors.values())
    assert stacks(folder).nbytes > 0
