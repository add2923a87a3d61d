"""Words for devices, beside GPUs that are there, hidden or too few."""

import sys
from pathlib import Path

import pytest

from csf_tool.devices import choose_cuda, named_cuda, why_no_gpu
from csf_tool.errors import EnvironmentFault

torch = pytest.importorskip("torch")

HIDDEN = ["", "-1", "-1,0", " ", ",1"]
"""Lists in which CUDA finds no GPU: it stops at the first that is no number of one."""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with the files of a driver, whether or not torch finds a GPU there."""
    monkeypatch.setattr("csf_tool.devices._GPU_FILES", (tmp_path,))
    monkeypatch.setattr("csf_tool.devices._missing_packages", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def found(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let torch find so many GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


@pytest.mark.parametrize("visible", HIDDEN)
def test_hidden_gpus_are_none(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    """Who hides them need not be told, and torch need not be asked; who wants one all the same is told why not."""
    found(monkeypatch, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    said: list[str] = []
    assert choose_cuda("auto", "encoding", said.append) is None
    assert said == []
    for device in ("cuda", "cuda:0", "cuda:7"):
        with pytest.raises(EnvironmentFault) as refused:
            named_cuda(device)
        assert str(refused.value) == f"--device {device}: CUDA_VISIBLE_DEVICES hides all GPUs"


@pytest.mark.parametrize("visible", [None, "0", "3,-1", "GPU-5a3f"])
def test_a_gpu_that_is_not_hidden_and_not_found_is_missed(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    found(monkeypatch, 0)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    said: list[str] = []
    assert choose_cuda("auto", "encoding", said.append) is None
    [told] = said
    assert told.startswith("encoding on the CPU, although there is a GPU: torch finds no GPU")


@pytest.mark.parametrize(
    ("number", "visible", "reason"),
    [
        (1, None, "torch finds 1 GPU, numbered from 0"),
        (2, None, "torch finds 2 GPUs, numbered from 0"),
        (1, "3", "torch finds 1 GPU, numbered from 0, and CUDA_VISIBLE_DEVICES is 3"),
    ],
)
def test_numbers_beyond_the_last_gpu(
    monkeypatch: pytest.MonkeyPatch, number: int, visible: str | None, reason: str
) -> None:
    found(monkeypatch, number)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose_cuda("auto", "encoding", pytest.fail) == "cuda"
    assert named_cuda(f"cuda:{number - 1}") == f"cuda:{number - 1}"
    assert why_no_gpu("cuda:7") == reason


@pytest.mark.parametrize("raised", ["OSError('libcublas.so.12: no such file\\nmore')", "ImportError('ncclCommSplit')"])
def test_a_torch_that_cannot_be_loaded_stops_only_who_asks_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raised: str
) -> None:
    (tmp_path / "torch.py").write_text(f"raise {raised}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    said: list[str] = []
    assert choose_cuda("auto", "encoding", said.append) is None
    cause = raised.partition("'")[2].partition("'")[0].partition("\\n")[0]
    assert said == [f"encoding on the CPU, although there is a GPU: torch cannot be loaded: {cause}"]
    with pytest.raises(EnvironmentFault, match=f"--device cuda:1: torch cannot be loaded: {cause}$"):
        named_cuda("cuda:1")


def test_a_gpu_that_torch_holds_already_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines hide GPUs from the processes that they start later."""
    found(monkeypatch, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert why_no_gpu("cuda") is None
