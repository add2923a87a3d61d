"""Loading onto a device whose planes are decoded there: the same tensors, whatever the batches.

Without a GPU the kernels run in Triton's interpreter, and the copies through pinned memory are left out.
"""

from pathlib import Path

import pytest
import torch

import csf_tool
from csf_tool.checkpoint.logical import LogicalTensor, logical_tensors
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.errors import EnvironmentFault, StreamError
from csf_tool.gpu.streams import CsfStreams
from csf_tool.loading.staging import Stager, Transfer
from csf_tool.loading.torch_loader import TorchLoader
from tests.fixture_types import Copied, Sample
from tests.gpu.stacks import DEVICE

SAMPLES = ["nvfp4-csf-hf", "mxfp4-csf-container"]


def some_tensors(folder: Path) -> list[LogicalTensor]:
    """Tensors of every kind: those of two experts, and what stands around them."""
    return list(logical_tensors(open_checkpoint(folder)).values())[:28]


@pytest.mark.parametrize("csf", SAMPLES)
def test_tensors_are_those_of_the_cpu(sample: Sample, csf: str) -> None:
    tensors = some_tensors(sample(csf))
    with TorchLoader(torch.device("cpu"), decode_there=False) as loader:
        want = loader.load(tensors)
    with TorchLoader(torch.device(DEVICE), decode_there=True) as loader:
        for got in (loader.load(tensors), [loader.load([tensor])[0] for tensor in tensors[:4]]):
            for mine, theirs in zip(got, want, strict=False):
                assert mine.device.type == DEVICE
                assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
                assert bytes_of(mine) == bytes_of(theirs)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_broken_streams_are_named_as_the_cpu_names_them(copied: Copied) -> None:
    root = copied("nvfp4-csf-hf")
    plane = open_checkpoint(root).planes[2]
    with open(plane.fixed.shard.path, "r+b") as file:
        file.seek(plane.fixed.tensor.begin + 5)
        file.write(b"\xf1")
    with (
        TorchLoader(torch.device(DEVICE), decode_there=True) as loader,
        pytest.raises(StreamError, match=rf"{plane.name}: row 5: base 241 is above 240"),
    ):
        loader.load(some_tensors(root))


def test_a_device_that_sees_faults_where_none_are_is_found_out(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("plane 0: it is Monday")

    monkeypatch.setattr(CsfStreams, "check", refuse)
    with (
        TorchLoader(torch.device(DEVICE), decode_there=True) as loader,
        pytest.raises(EnvironmentFault, match="it is Monday, but the CPU does not: do not trust this device"),
    ):
        loader.load(some_tensors(sample("nvfp4-csf-hf")))


@pytest.mark.parametrize("through_slots", [True, False])
@pytest.mark.parametrize("slot_bytes", [1000, 4097, 1 << 21])
def test_staged_bytes_arrive_in_any_pieces(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, slot_bytes: int, through_slots: bool
) -> None:
    """Slots smaller than a tensor, and of no whole number of tensors; buffers filled in turns."""
    tensors = [t for t in open_checkpoint(sample("nvfp4-csf-hf")).tensors() if t.tensor.nbytes][:60]
    groups: dict[int, torch.Tensor] = {}
    for size in {t.tensor.nbytes for t in tensors}:
        n = sum(t.tensor.nbytes == size for t in tensors)
        groups[size] = torch.zeros(n * size, dtype=torch.uint8, device=DEVICE)
    filled = dict.fromkeys(groups, 0)
    transfers = []
    for t in tensors:
        transfers.append(Transfer(t, groups[t.tensor.nbytes], filled[t.tensor.nbytes]))
        filled[t.tensor.nbytes] += t.tensor.nbytes
    monkeypatch.setattr("csf_tool.loading.staging._ALONE_BYTES", 3000)  # so that there is work for threads
    through = through_slots or DEVICE == "cuda"
    with Stager(torch.device(DEVICE), slot_bytes, threads=3, through_slots=through) as stager:
        stager.run(transfers)
    for (shard, tensor), buffer, at in transfers:
        data = shard.path.read_bytes()[tensor.begin : tensor.end]
        assert bytes_of(buffer[at : at + tensor.nbytes]) == data


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("csf", SAMPLES)
def test_the_public_functions_on_a_gpu(sample: Sample, csf: str) -> None:
    want = csf_tool.load_file(sample(csf))
    with csf_tool.safe_open(sample(csf), device="cuda") as f:
        for name, tensor in csf_tool.iter_tensors(sample(csf), device="cuda", batch=100_000):
            assert tensor.is_cuda
            assert bytes_of(tensor) == bytes_of(want[name]) == bytes_of(f.get_tensor(name))
            assert bytes_of(f.get_slice(name)[:1] if tensor.ndim else tensor) == bytes_of(
                want[name][:1] if tensor.ndim else tensor
            )
