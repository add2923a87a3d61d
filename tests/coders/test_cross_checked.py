"""A device that decodes wrongly is found, and is never called a fault of the checkpoint."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.choices import CompressTo, CrossCheck
from csf_tool.coders import decoder as decoders
from csf_tool.coders.coded import CodedPlane
from csf_tool.coders.cross_checked import SAMPLE_EVERY, CrossCheckedDecoder
from csf_tool.coders.decoder import Decoder, NumpyDecoder, make_decoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.errors import EnvironmentFault
from csf_tool.progress import Silent
from csf_tool.prove.verify import verify
from csf_tool.write.compress import CompressOptions, compress
from csf_tool.write.expand import expand
from tests.fixture_types import Sample

Spoils = Callable[[int, PlaneStreams], bool]
"""Whether a device decodes the plane of a number in a shard wrongly."""


class Device:
    """A device that spoils one byte of some planes."""

    device = "a device"

    def __init__(self, spoils: Spoils = lambda *_: False) -> None:
        self._spoils = spoils

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[CodedPlane]:
        for i, decoded in enumerate(NumpyDecoder().decode(streams)):
            if self._spoils(i, decoded.streams):
                decoded.scales[-1, -1] ^= 1
            yield replace(decoded, agreed=False)


def sampled(spoils: Spoils = lambda *_: False) -> Decoder:
    return CrossCheckedDecoder(Device(spoils), SAMPLE_EVERY)


FOUND = "a device gives other bytes than the CPU: do not trust this device"


def streams_of(planes: int, rows: int = 16, cols: int = 8, exceptions: int = 0) -> list[PlaneStreams]:
    """Planes of a geometry with so many exceptions each, as far as a sample looks at them."""
    plane = SimpleNamespace(fmt=SimpleNamespace(name="nvfp4"), rows=rows, cols=cols, name="a plane")
    words, scales = np.zeros(exceptions, "<u4"), np.zeros((rows, cols), np.uint8)
    one = SimpleNamespace(plane=plane, exceptions=words, decode=lambda: scales.copy())
    return [cast(PlaneStreams, one)] * planes


def agreed(streams: Iterable[PlaneStreams], every: int = SAMPLE_EVERY) -> list[int]:
    return [i for i, plane in enumerate(CrossCheckedDecoder(Device(), every).decode(streams)) if plane.agreed]


def test_a_sample_has_the_first_of_each_geometry_and_one_in_many() -> None:
    assert agreed(streams_of(130)) == [0, 61, 122]
    assert agreed(streams_of(3) + streams_of(62, rows=32) + streams_of(62)) == [0, 3, 64, 65 + 58]
    assert agreed(streams_of(5), every=1) == [0, 1, 2, 3, 4]


def test_a_sample_has_each_plane_with_the_most_exceptions_so_far() -> None:
    counts = [3, 2, 3, 4, 0, 9, 9]
    assert agreed(plane for n in counts for plane in streams_of(1, exceptions=n)) == [0, 3, 5]


@pytest.mark.parametrize("batch", [2, 3, 16, 60, 64, 109, 327])
def test_a_sample_falls_on_every_place_in_a_batch(batch: int) -> None:
    found = agreed(streams_of(SAMPLE_EVERY * batch))
    assert {i % batch for i in found} == set(range(batch))


@pytest.mark.parametrize(
    "spoils",
    [
        lambda *_: True,
        lambda _, s: s.plane.rows == max(s.plane.rows, s.plane.cols),
        lambda i, _: i == 0,
        lambda _, s: len(s.exceptions) > 0,
    ],
    ids=["all", "a geometry", "the first", "exceptions"],
)
@pytest.mark.parametrize("csf", ["nvfp4-csf-hf", "mxfp4-csf-container"])
def test_what_is_wrong_with_a_kernel_is_found_without_evidence(
    sample: Sample, tmp_path: Path, csf: str, spoils: Spoils
) -> None:
    planes = open_checkpoint(sample(csf)).planes
    with Readers() as readers:
        spoiled = any(spoils(i, readers.streams(plane)) for i, plane in enumerate(planes))
    if not spoiled:
        pytest.skip("this sample has no such plane")
    with pytest.raises(EnvironmentFault, match=FOUND):
        verify(open_checkpoint(sample(csf)), None, sampled(spoils), Silent())
    with pytest.raises(EnvironmentFault, match=FOUND):
        expand(open_checkpoint(sample(csf)), tmp_path / "out", sampled(spoils), Silent())


def second(i: int, _: PlaneStreams) -> bool:
    """The second plane of a shard."""
    return i == 1


@pytest.fixture
def unsampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples without a plane."""
    monkeypatch.setattr("csf_tool.coders.cross_checked._Sample.takes", lambda sample, _: sample._every == 1)


@pytest.mark.usefixtures("unsampled")
@pytest.mark.parametrize("reference", [False, True])
def test_a_wrong_plane_that_differs_from_evidence_is_no_fault_of_the_checkpoint(
    sample: Sample, reference: bool
) -> None:
    csf = sample("nvfp4-csf-hf" if reference else "mxfp4-csf-container")
    against = open_checkpoint(sample("nvfp4-dense")) if reference else None
    for decoder in (sampled(second), Device(second)):
        with pytest.raises(EnvironmentFault, match=FOUND):
            verify(open_checkpoint(csf), against, decoder, Silent())


@pytest.mark.usefixtures("unsampled")
def test_a_wrong_plane_of_a_known_shard_is_no_fault_of_the_checkpoint(sample: Sample, tmp_path: Path) -> None:
    csf = open_checkpoint(sample("mxfp4-csf-container"))
    with pytest.raises(EnvironmentFault, match=FOUND):
        expand(csf, tmp_path / "out", sampled(second), Silent())
    dense, to = open_checkpoint(sample("mxfp4-dense")), CompressOptions(CompressTo.CONTAINER)
    with pytest.raises(EnvironmentFault, match=FOUND):
        compress(dense, tmp_path / "csf", to, NumpyEncoder(), sampled(second), Silent())
    assert not [*tmp_path.rglob("*.safetensors")]


def test_a_fault_of_the_checkpoint_is_one_on_every_device(sample: Sample) -> None:
    csf, other = sample("nvfp4-csf-hf"), sample("mxfp4-dense")
    ours, theirs = (
        verify(open_checkpoint(csf), open_checkpoint(other), decoder, Silent())
        for decoder in (sampled(), NumpyDecoder())
    )
    assert not ours.ok
    assert [check.failures for check in ours.checks] == [check.failures for check in theirs.checks]


def test_the_report_says_how_many_planes_were_compared(sample: Sample) -> None:
    csf = open_checkpoint(sample("nvfp4-csf-hf"))
    found = verify(csf, None, sampled(), Silent())
    with Readers() as readers:
        streams = [[readers.streams(plane) for plane in csf.planes if plane.fixed.shard is s] for s in csf.shards]
    taken = sum(len(agreed(shard)) for shard in streams)
    assert 0 < taken <= len(csf.planes)
    assert found.decode.note == f"on a device, {taken} planes compared with the CPU"
    assert found.device == "a device"
    everything = verify(csf, None, CrossCheckedDecoder(Device(), 1), Silent())
    assert everything.decode.note == f"on a device, {len(csf.planes)} planes compared with the CPU"
    assert verify(csf, None, Device(), Silent()).decode.note == "on a device, 0 planes compared with the CPU"
    assert verify(csf, None, NumpyDecoder(), Silent()).decode.note == "on CPU (numpy)"


def test_a_sample_is_what_a_gpu_gets_unless_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "named_cuda", lambda name: name)
    monkeypatch.setitem(
        __import__("sys").modules,
        "csf_tool.coders.gpu_codec",
        cast(Any, SimpleNamespace(GpuDecoder=lambda _: Device())),
    )
    for asked, every in (((), SAMPLE_EVERY), ((CrossCheck.SAMPLE,), SAMPLE_EVERY), ((CrossCheck.ALL,), 1)):
        found = make_decoder("cuda", *asked)
        assert isinstance(found, CrossCheckedDecoder)
        assert found._every == every
    assert isinstance(make_decoder("cuda", CrossCheck.NONE), Device)
