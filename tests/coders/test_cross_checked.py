"""A device that decodes wrongly is found, and is never called a fault of the checkpoint."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import csf_tool
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
from csf_tool.prove.options import VerifyOptions
from csf_tool.prove.verify import verify
from csf_tool.write.compress import CompressOptions, compress
from tests.fixture_types import Copied, Sample

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


def streams_of(
    planes: int, rows: int = 16, cols: int = 8, exceptions: int = 0, name: str = "\udc80"
) -> list[PlaneStreams]:
    """Planes of a geometry with so many exceptions each, as far as a sample looks at them."""
    plane = SimpleNamespace(fmt=SimpleNamespace(name="nvfp4"), rows=rows, cols=cols, name=name)
    words, scales = np.zeros(exceptions, "<u4"), np.zeros((rows, cols), np.uint8)
    one = SimpleNamespace(plane=plane, exceptions=words, decode=lambda: scales.copy())
    return [cast(PlaneStreams, one)] * planes


def agreed(streams: Iterable[PlaneStreams], every: int = SAMPLE_EVERY) -> list[int]:
    return [i for i, plane in enumerate(CrossCheckedDecoder(Device(), every).decode(streams)) if plane.agreed]


EARLY = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256}
"""Planes of a geometry that are in every sample."""


def test_a_sample_has_the_first_of_each_geometry_and_one_in_many() -> None:
    everything = set(agreed(streams_of(500)))
    start, *further = sorted(everything - EARLY)
    assert everything >= EARLY
    assert start < SAMPLE_EVERY
    assert set(further) == set(range(start, 500, SAMPLE_EVERY)) - EARLY - {start}
    taken = [i for i in sorted(everything) if i < 65]
    mixed = agreed(streams_of(3) + streams_of(65, rows=32) + streams_of(62))
    assert [i - 3 for i in mixed if 3 <= i < 68] == taken
    assert [i if i < 3 else i - 65 for i in mixed if not 3 <= i < 68] == taken
    assert agreed(streams_of(5), every=1) == [0, 1, 2, 3, 4]


def test_shards_are_not_sampled_at_the_same_places_but_each_always_at_its_own() -> None:
    """A device may be wrong at one place in a batch, which one stride could miss in every shard."""
    samples = [agreed(streams_of(128, name=f"layers.{i}.up.weight_scale")) for i in range(400)]
    assert set().union(*samples) == set(range(128))
    assert samples[7] == agreed(streams_of(128, name="layers.7.up.weight_scale"))


def from_on(first: int, i: int, _: PlaneStreams) -> bool:
    """All planes from one on."""
    return i >= first


@pytest.mark.parametrize("planes", [2, 3, 5, 60, 128])
def test_a_device_that_decodes_only_the_first_half_is_found_in_each_shard(planes: int) -> None:
    for right in range(1, planes // 2 + 1):
        with pytest.raises(EnvironmentFault, match=FOUND):
            list(sampled(partial(from_on, right)).decode(streams_of(planes)))


def test_a_sample_has_each_plane_with_the_most_exceptions_so_far() -> None:
    counts = [3, 2, 3, 4, 0, 9, 9, 9, 9, 10]
    assert agreed(plane for n in counts for plane in streams_of(1, exceptions=n)) == [0, 1, 2, 3, 4, 5, 8, 9]


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
        lambda i, _: i > 0,
        lambda _, s: len(s.exceptions) > 0,
    ],
    ids=["all", "a geometry", "the first", "all but the first", "exceptions"],
)
@pytest.mark.parametrize("csf", ["nvfp4-csf-hf", "mxfp4-csf-container"])
def test_what_is_wrong_with_a_kernel_is_found_without_evidence(sample: Sample, csf: str, spoils: Spoils) -> None:
    planes = open_checkpoint(sample(csf)).planes
    with Readers() as readers:
        spoiled = any(spoils(i, readers.streams(plane)) for i, plane in enumerate(planes))
    if not spoiled:
        pytest.skip("this sample has no such plane")
    with pytest.raises(EnvironmentFault, match=FOUND):
        verify(open_checkpoint(sample(csf)), None, sampled(spoils), Silent())


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


def most_exceptions(csf: Path) -> Spoils:
    """The planes that have as many exceptions as any."""
    with Readers() as readers:
        most = max(len(readers.streams(plane).exceptions) for plane in open_checkpoint(csf).planes)
    return lambda _, streams: len(streams.exceptions) == most


@pytest.mark.parametrize("csf", ["nvfp4-csf-hf", "two-codecs-csf-hf", "mxfp4-csf-container"])
@pytest.mark.parametrize("which", ["all but the first", "most exceptions", "the last of all", "the second"])
@pytest.mark.parametrize("consume", [False, True])
def test_no_plane_of_a_wrong_device_is_written(
    sample: Sample, copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, csf: str, which: str, consume: bool
) -> None:
    """Nor is one kept by the next run, nor a source removed that it was decoded from."""
    source = copied(csf)
    last = open_checkpoint(sample(csf)).planes[-1].name
    spoils: Spoils = {
        "all but the first": lambda i, _: i > 0,
        "most exceptions": most_exceptions(sample(csf)),
        "the last of all": lambda _, streams: streams.plane.name == last,
        "the second": second,
    }[which]
    beside_gpu(monkeypatch, spoils)
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match=FOUND):
            csf_tool.expand(source, tmp_path / "out", device="cuda", jobs=1, consume_source=consume)
    right = sample(csf.replace("-csf-hf", "-dense").replace("-csf-container", "-dense"))
    for written in (tmp_path / "out").glob("*.safetensors"):  # of the shards before it
        found = verify(open_checkpoint(written), open_checkpoint(right / written.name), NumpyDecoder(), Silent())
        assert not [p for p in found.reference.failures if "differs" in p.problem]
    csf_tool.expand(source, tmp_path / "out", device="cpu", consume_source=consume)
    assert csf_tool.verify(tmp_path / "out", against=right, tensors_only=True)["ok"]


def test_a_proof_of_a_wrong_device_is_none(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside_gpu(monkeypatch, second)
    dense, to = open_checkpoint(sample("mxfp4-dense")), CompressOptions(CompressTo.CONTAINER)
    with pytest.raises(EnvironmentFault, match=FOUND):
        compress(dense, tmp_path / "csf", to, NumpyEncoder(), make_decoder("cuda"), Silent())
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
    for jobs in (1, 3):
        assert verify(csf, None, sampled(), Silent(), VerifyOptions(jobs=jobs)).decode.note == found.decode.note
    assert found.decode.note == f"on a device, {taken} planes compared with the CPU"
    assert found.device == "a device"
    everything = verify(csf, None, CrossCheckedDecoder(Device(), 1), Silent())
    assert everything.decode.note == f"on a device, {len(csf.planes)} planes compared with the CPU"
    assert verify(csf, None, Device(), Silent()).decode.note == "on a device, 0 planes compared with the CPU"
    assert verify(csf, None, NumpyDecoder(), Silent()).decode.note == "on CPU (numpy)"


def beside_gpu(monkeypatch: pytest.MonkeyPatch, spoils: Spoils = lambda *_: False) -> None:
    """Let `--device cuda` mean a device that spoils planes."""
    monkeypatch.setattr(decoders, "named_cuda", lambda name: None if name in ("auto", "cpu") else name)
    module = SimpleNamespace(GpuDecoder=lambda _: Device(spoils))
    monkeypatch.setitem(sys.modules, "csf_tool.coders.gpu_codec", cast(Any, module))


def test_verify_compares_a_sample_unless_asked_otherwise_and_runs_that_write_all(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside_gpu(monkeypatch)
    csf = sample("nvfp4-csf-hf")
    hows: list[Any] = [{}, {"cross_check": "sample"}, {"cross_check": "all"}, {"cross_check": "none"}]
    notes = [
        {check["name"]: check["note"] for check in csf_tool.verify(csf, device="cuda", **how)["checks"]}["decode"]
        for how in hows
    ]
    assert notes[0] == notes[1] == verify(open_checkpoint(csf), None, sampled(), Silent()).decode.note
    assert notes[2] == f"on a device, {len(open_checkpoint(csf).planes)} planes compared with the CPU"
    assert notes[3] == "on a device, 0 planes compared with the CPU"
    for asked, every in (((), 1), ((CrossCheck.SAMPLE,), SAMPLE_EVERY), ((CrossCheck.ALL,), 1)):
        found = make_decoder("cuda", *asked)
        assert isinstance(found, CrossCheckedDecoder)
        assert found._every == every
    assert isinstance(make_decoder("cuda", CrossCheck.NONE), Device)
