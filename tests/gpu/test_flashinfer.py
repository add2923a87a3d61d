"""The rival of the benchmark: what it is given, and when it is left out."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from csf_tool.bench import flashinfer
from csf_tool.codec.formats import MXFP4, NVFP4
from csf_tool.gpu.streams import CsfStreams
from tests.gpu.stacks import on_device, random_stack


def test_each_slab_knows_where_its_exceptions_begin() -> None:
    stack = random_stack(NVFP4, 3, 48, 10, 0.05)
    words = np.concatenate(stack.exceptions)
    counts = [len(plane) for plane in stack.exceptions]
    streams = CsfStreams.of(NVFP4, on_device(np.stack(stack.fixed)), on_device(words.view(np.int32)), counts, 48, 10)
    want = [0]
    for plane in stack.exceptions:
        rows = (plane & 0xFFFFFF) // 10
        want += [want[-1] + int((rows < 16).sum()), want[-1] + int((rows < 32).sum()), want[-1] + len(rows)]
    assert flashinfer.slab_starts(streams).tolist() == want


def no_compiler(_: object) -> None:
    raise RuntimeError("no nvcc")


def test_why_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flashinfer.missing(MXFP4) == "it has no MXFP4"
    monkeypatch.setattr(flashinfer, "find_spec", lambda _: None)
    monkeypatch.delenv(flashinfer.FOLDER, raising=False)
    assert flashinfer.missing() == "flashinfer is not installed"
    monkeypatch.setattr(flashinfer, "find_spec", lambda _: True)
    for name, module in (("flashinfer", ModuleType("flashinfer")), ("flashinfer.quantization", None)):
        monkeypatch.setitem(sys.modules, name, module)
    assert str(flashinfer.missing()).startswith("flashinfer cannot be imported: ")
    monkeypatch.setitem(sys.modules, "flashinfer.quantization", ModuleType("flashinfer.quantization"))
    assert flashinfer.missing() == "this flashinfer has no CSF functions"
    monkeypatch.setenv(flashinfer.FOLDER, str(tmp_path))
    assert flashinfer.missing() == "CSF_TOOL_FLASHINFER has no csf_scales.cu"
    (tmp_path / "csf_scales.cu").touch()
    monkeypatch.setattr(flashinfer, "make_streams", lambda *_: None)
    monkeypatch.setattr(flashinfer, "expander", no_compiler)
    assert flashinfer.missing() == f"{tmp_path}: its kernels cannot be used: RuntimeError('no nvcc')"
