"""A layer whose engine takes scales in Marlin's layout and in a number format of its own, kept compressed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from csf_tool.codec.formats import NVFP4 as NVFP4_CODEC
from csf_tool.engines.found_layout import layouts_with
from csf_tool.engines.kept_layer import SCALES, KeptLayer
from csf_tool.engines.layer_workspace import LayerWorkspace
from tests.building import MXFP4, NVFP4, Codec
from tests.engines import test_kept_layer
from tests.engines.test_kept_layer import DEVICE, dense, groups, layer_for, processed, raw, up_first
from tests.gpu.stacks import on_device, prepared, random_stack
from tests.gpu.test_layouts import marlin

pytestmark = pytest.mark.slow


def halves(byte: int) -> int:
    """vLLM's number format of NVFP4 scales for Marlin, S0E5M3: the value times 128 in float16, without its sign."""
    value = float(torch.tensor([byte], dtype=torch.uint8).view(torch.float8_e4m3fn).float()) * 128
    bits = int(np.float16(0 if value < 2 else value).view(np.uint16))
    return bits << 1 >> 8 & 0xFF


TABLE = np.array([halves(byte) for byte in range(256)], np.uint8)


def for_marlin(scales: torch.Tensor, *, table: bool = True) -> torch.Tensor:
    planes = [marlin(plane) for plane in scales.cpu().numpy()]
    made = np.stack([TABLE[plane] for plane in planes] if table else planes)
    return torch.from_numpy(made).to(scales.device)


@pytest.fixture(autouse=True)
def rows_of_whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_kept_layer, "HIDDEN", 64)


def kept_by(group: Any, process: test_kept_layer.Process, dtype: torch.dtype) -> tuple[KeptLayer, Any, Any]:
    workspace, layer = LayerWorkspace(DEVICE), layer_for(group, dtype)
    kept = KeptLayer(group, workspace)
    assert kept.lay(layer) is None
    kept.fill(layer)
    wanted = processed(layer, process)
    assert kept.settle(layer) is None
    assert kept.finish(layer)
    workspace.buffer.fill_(0xA5)
    return kept, layer, wanted


PROCESSES: dict[str, test_kept_layer.Process] = {
    "Marlin": for_marlin,
    "Marlin, up first": lambda scales: for_marlin(up_first(scales)),
    "Marlin, bytes as they are": lambda scales: for_marlin(scales, table=False),
}


@pytest.mark.parametrize("codec", [NVFP4, MXFP4], ids=lambda codec: codec.name)
@pytest.mark.parametrize("process", PROCESSES)
def test_scales_are_decoded_as_marlin_takes_them(tmp_path: Path, codec: Codec, process: str) -> None:
    (group,) = groups(tmp_path, codec)
    dtype = torch.float8_e4m3fn if codec is NVFP4 else torch.uint8
    kept, layer, wanted = kept_by(group, PROCESSES[process], dtype)
    kept.decode()
    for name, expected in zip(SCALES, wanted, strict=True):
        assert torch.equal(raw(getattr(layer, name)), expected)
    assert [len(scales[0].flatten()) for scales in dense(group)] == [len(one[0].flatten()) for one in wanted]


def test_only_the_chosen_experts_are_decoded(tmp_path: Path) -> None:
    (group,) = groups(tmp_path)
    kept, layer, wanted = kept_by(group, for_marlin, torch.float8_e4m3fn)
    kept.decode(torch.tensor([[2], [-1]], device=DEVICE))
    for name, expected in zip(SCALES, wanted, strict=True):
        found = raw(getattr(layer, name))
        assert torch.equal(found[2], expected[2])
        assert (found[[0, 1, 3]] == 0xA5).all()


def test_bytes_that_no_table_explains_are_no_layout() -> None:
    """One byte that two scales of one value became is enough."""
    stack = random_stack(NVFP4_CODEC, 2, 64, 8, 0.05)
    data = for_marlin(torch.from_numpy(stack.scales)).reshape(-1)
    assert [layout.form for layout in layouts_with(prepared(stack), on_device(data.numpy()))] == ["marlin"]
    data[5] ^= 1
    assert not list(layouts_with(prepared(stack), on_device(data.numpy())))
