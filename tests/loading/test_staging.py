"""Bringing stored tensors to memory by several threads, one of which fails."""

import time
from pathlib import Path

import pytest
import torch

from csf_tool.checkpoint.logical import logical_tensors
from csf_tool.checkpoint.stored import Located
from csf_tool.checkpoint.streams import Readers
from csf_tool.loading import staging
from csf_tool.loading.staging import Stager, Transfer
from csf_tool.loading.tensors import opened
from tests.building import Tensor, write_hf

THREADS, NBYTES = 4, 1 << 20

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("through_slots", [False, True])
def test_a_read_that_fails_leaves_none_running_and_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through_slots: bool
) -> None:
    tensors = [Tensor(f"{i}.data", "U8", (NBYTES,), bytes([i]) * NBYTES) for i in range(2 * THREADS)]
    folder = write_hf(tmp_path, {"model.safetensors": tensors})
    sources = (tensor.source for tensor in logical_tensors(opened(folder)).values())
    stored = [source for source in sources if isinstance(source, Located)]
    read_share, reading = staging._read_share, list[Readers]()

    def failing(readers: Readers, share: list[tuple[staging._Piece, memoryview]]) -> None:
        if any(piece.begin == stored[0].tensor.begin for piece, _ in share):
            raise OSError("the first cannot be read")
        reading.append(readers)
        time.sleep(0.05)  # others find out that it failed
        read_share(readers, share)
        reading.remove(readers)

    def run(stager: Stager) -> list[torch.Tensor]:
        found = [torch.zeros(NBYTES, dtype=torch.uint8) for _ in stored]
        stager.run(Transfer(source, buffer, 0) for source, buffer in zip(stored, found, strict=True))
        return found

    with Stager(torch.device("cpu"), threads=THREADS, through_slots=through_slots) as stager:
        with monkeypatch.context() as patch:
            patch.setattr(staging, "_read_share", failing)
            with pytest.raises(OSError, match="the first cannot be read"):
                run(stager)
        assert reading == []
        assert not any(readers._open for readers in stager._readers)
        assert [set(tensor.tolist()) for tensor in run(stager)] == [{i} for i in range(2 * THREADS)]
