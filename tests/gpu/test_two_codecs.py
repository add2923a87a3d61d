"""Two codecs in one checkpoint on the GPU core: batches, loading and stacks take each plane by its own format."""

from pathlib import Path

import pytest
import torch

from csf_tool import decompress_csf_scales, load_stack
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.streams import Readers
from csf_tool.coders.cross_checked import CrossCheckedDecoder
from csf_tool.coders.encoder import read_scales
from csf_tool.coders.gpu_codec import GpuDecoder, GpuEncoder
from csf_tool.errors import CheckpointError
from csf_tool.loading.tensors import opened
from csf_tool.loading.torch_loader import TorchLoader
from csf_tool.progress import Silent
from csf_tool.prove.verify import verify
from csf_tool.write.compress import CompressOptions, compress
from csf_tool.write.expand import expand
from tests import oracle
from tests.building import DRAFT_EXPERTS, MAIN_EXPERTS, MXFP4, compressed, tree, write_hf
from tests.fixture_types import Sample
from tests.test_two_codecs import CSF, DENSE, MIXES

pytestmark = pytest.mark.slow


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCHES = pytest.mark.parametrize("batch_bytes", [1, 300, 1 << 20], ids=["one-plane", "two-planes", "all-planes"])


@BATCHES
def test_planes_are_decoded_by_their_own_format(sample: Sample, batch_bytes: int) -> None:
    expected = oracle.stored_tensors(sample(DENSE))
    planes = open_checkpoint(sample(CSF)).planes[6:]  # those of the shard with both
    with Readers() as readers:
        found = list(GpuDecoder(DEVICE, batch_bytes).decode([readers.streams(plane) for plane in planes]))
    assert [(d.plane.name, d.scales.tobytes()) for d in found] == [(p.name, expected[p.name].data) for p in planes]


@BATCHES
def test_planes_are_encoded_by_their_own_format(sample: Sample, batch_bytes: int) -> None:
    expected = oracle.stored_tensors(sample(CSF))
    planes = open_checkpoint(sample(DENSE)).dense_planes[6:]
    with Readers() as readers:
        found = list(GpuEncoder(DEVICE, batch_bytes).encode(list(read_scales(readers, planes))))
    assert [encoded.plane.name for encoded in found] == [plane.name for plane in planes]
    for encoded in found:
        name, fmt = encoded.plane.name, encoded.plane.fmt
        assert encoded.streams.fixed.tobytes() == expected[name + fmt.fixed_suffix].data
        assert encoded.streams.exceptions.tobytes() == expected[name + fmt.exceptions_suffix].data


def test_commands(sample: Sample, tmp_path: Path) -> None:
    decoder = CrossCheckedDecoder(GpuDecoder(DEVICE, 1000), every=1)
    out, back = tmp_path / "out", tmp_path / "back"
    compress(open_checkpoint(sample(DENSE)), out, CompressOptions(), GpuEncoder(DEVICE, 1000), decoder, Silent())
    for name, content in tree(sample(CSF)).items():
        assert name.endswith(".json") or (out / name).read_bytes() == content, name
    assert verify(open_checkpoint(out), open_checkpoint(sample(DENSE)), decoder, Silent()).ok
    expand(open_checkpoint(out), back, decoder, Silent())
    assert oracle.stored_tensors(back) == oracle.stored_tensors(sample(DENSE))


def test_a_batch_of_both_is_loaded(sample: Sample) -> None:
    from csf_tool.checkpoint.logical import logical_tensors

    expected = oracle.stored_tensors(sample(DENSE))
    tensors = list(logical_tensors(opened(sample(CSF))).values())
    with TorchLoader(torch.device(DEVICE), decode_there=True) as loader:
        for tensor, loaded in zip(tensors, loader.load(tensors), strict=True):
            data = loaded.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
            assert (data, tuple(loaded.shape)) == (expected[tensor.name].data, expected[tensor.name].shape), tensor.name


@pytest.mark.parametrize("name", [DENSE, CSF])
def test_stacks_of_either(sample: Sample, name: str) -> None:
    expected = oracle.stored_tensors(sample(DENSE))
    checkpoint = open_checkpoint(sample(name))
    for layer, group, suffix, fmt in (
        ("model.layers.1", MAIN_EXPERTS.format(1), "weight_scale", "nvfp4"),
        ("mtp.layers.0", DRAFT_EXPERTS, "scale", "mxfp4"),
    ):
        stack = load_stack(checkpoint, layer, "gate_up", device=DEVICE)
        assert stack.format.name == fmt
        dense = decompress_csf_scales(stack).view(torch.uint8).cpu()
        for expert in range(2):
            parts = [expected[f"{group}.{expert}.{part}.{suffix}"].data for part in ("gate_proj", "up_proj")]
            assert dense[expert].numpy().tobytes() == b"".join(parts)


def test_a_stack_of_two_codecs_is_none(tmp_path: Path) -> None:
    """Neither experts nor projections of two codecs can be one stack; those of one can."""
    roots = {}
    for name in ("by expert", "by projection"):
        stored = {shard: compressed(tensors, MXFP4) for shard, tensors in MIXES[name]().items()}
        roots[name] = write_hf(tmp_path / name, stored)
    with pytest.raises(CheckpointError, match=r"is MXFP4 16x8, .* NVFP4 16x8: they cannot form a stack"):
        load_stack(roots["by expert"], 0, "gate", device=DEVICE)
    assert load_stack(roots["by projection"], 0, "gate_up", device=DEVICE).format.name == "nvfp4"
    assert load_stack(roots["by projection"], 0, "down", device=DEVICE).format.name == "mxfp4"
