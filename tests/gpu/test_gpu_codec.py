"""The commands on the GPU core: the same bytes, batch by batch, as on the CPU.

Without a GPU the kernels run in Triton's interpreter.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.coders.coded import CodedPlane
from csf_tool.coders.cross_checked import CrossCheckedDecoder
from csf_tool.coders.decoder import NumpyDecoder, make_decoder
from csf_tool.coders.encoder import NumpyEncoder, make_encoder, read_scales
from csf_tool.coders.gpu_codec import GpuDecoder, GpuEncoder
from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.progress import Silent
from csf_tool.prove.verify import verify
from csf_tool.write.expand import expand
from tests.fixture_types import Sample

pytestmark = pytest.mark.slow


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("csf", ["nvfp4-csf-hf", "mxfp4-csf-container"])
@pytest.mark.parametrize("batch_bytes", [1, 30_000, 1 << 20], ids=["one-plane", "few-planes", "all-planes"])
def test_planes_are_those_of_the_cpu_in_order(sample: Sample, csf: str, batch_bytes: int) -> None:
    planes = open_checkpoint(sample(csf)).planes[:12]
    with Readers() as readers:
        streams = [readers.streams(plane) for plane in planes]
    theirs = [d.scales.copy() for d in NumpyDecoder().decode(streams)]
    for plane, expected, got in zip(planes, theirs, GpuDecoder(DEVICE, batch_bytes).decode(streams), strict=True):
        assert got.plane is plane
        assert np.array_equal(got.scales, expected)


def test_expand_and_verify_on_the_gpu_core(sample: Sample, tmp_path: Path) -> None:
    decoder = CrossCheckedDecoder(GpuDecoder(DEVICE, 100_000), every=1)
    source = sample("mxfp4-csf-container")
    done = expand(open_checkpoint(source), tmp_path / "out", decoder, Silent())
    assert len(done.proved_shards) == 2
    found = verify(open_checkpoint(source), open_checkpoint(tmp_path / "out"), decoder, Silent())
    assert found.ok
    assert "compared with the CPU" in found.decode.note


@pytest.mark.parametrize("dense", ["nvfp4-dense", "mxfp4-dense"])
@pytest.mark.parametrize("batch_bytes", [1, 1 << 20], ids=["one-plane", "all-planes"])
def test_streams_are_those_of_the_cpu_in_order(sample: Sample, dense: str, batch_bytes: int) -> None:
    planes = open_checkpoint(sample(dense)).dense_planes[:5]
    with Readers() as readers:
        scales = list(read_scales(readers, planes))
    theirs = list(NumpyEncoder().encode(scales))
    ours = list(GpuEncoder(DEVICE, batch_bytes).encode(scales))
    assert [e.plane for e in ours] == planes
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.streams.fixed.tobytes() == other.streams.fixed.tobytes()
        assert mine.streams.exceptions.tobytes() == other.streams.exceptions.tobytes()


class Wrong:
    """A device that gets one byte of the third plane wrong."""

    device = "broken"

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[CodedPlane]:
        for i, decoded in enumerate(NumpyDecoder().decode(streams)):
            if i == 2:
                decoded.scales[5, 7] ^= 1
            yield decoded


def test_a_device_that_decodes_other_bytes_is_found_out(sample: Sample) -> None:
    planes = open_checkpoint(sample("nvfp4-csf-hf")).planes[:4]
    with Readers() as readers, pytest.raises(EnvironmentFault, match="other bytes than the CPU"):
        list(CrossCheckedDecoder(Wrong(), every=1).decode(readers.streams(plane) for plane in planes))


def test_device_names() -> None:
    assert isinstance(make_decoder("cpu"), NumpyDecoder)
    for name in ("tpu", "cuda:", "cuda:x", "cuda:-1", "CUDA"):
        with pytest.raises(UsageError):
            make_decoder(name)


MUCH = 1 << 50
"""More bytes of scales than any CPU encodes while a GPU starts."""


def told(device: str, nbytes: int = MUCH) -> list[str]:
    """What is said where so much is encoded, on the CPU after all."""
    said: list[str] = []
    encoder = make_encoder(device, said.append)
    encoder.expect(nbytes, 1)
    assert encoder.device == "CPU (numpy)"
    return said


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_auto_is_silent_and_cuda_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told("auto") == []
    monkeypatch.setattr("csf_tool.devices._GPU_FILES", (tmp_path,))  # there is one, and torch does not see it
    assert told("auto", 1000) == []
    [said] = told("auto")
    assert said.startswith("encoding on the CPU, although there is a GPU: ")
    with pytest.raises(EnvironmentFault, match="torch finds no GPU"):
        make_decoder("cuda")


def test_without_the_extra_cuda_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.devices._GPU_FILES", (tmp_path,))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EnvironmentFault, match="pip install torch triton"):
        make_decoder("cuda")
    assert "torch is not installed" in told("auto")[0]
