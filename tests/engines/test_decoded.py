"""Weights as an engine gets them: scales in the place of streams, everything else as it was read, or brought."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from csf_tool.checkpoint.logical import LogicalTensor
from csf_tool.checkpoint.names import parse_stream_name
from csf_tool.codes import Code
from csf_tool.engines import decoded
from csf_tool.engines.decoded import Tally, decoded_weights
from csf_tool.errors import CsfToolError, StreamError
from csf_tool.loading.tensors import opened
from csf_tool.loading.torch_loader import TorchLoader
from tests.building import (
    MXFP4,
    NVFP4,
    Codec,
    compressed,
    mini_container,
    mini_dense,
    mini_hf,
    model,
    overwrite,
    span,
    write_hf,
)

CPU = torch.device("cpu")
Weights = Iterator[tuple[str, torch.Tensor]]


@pytest.fixture(autouse=True, params=[0, 2], ids=["its thread", "beside it"])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Batches that are loaded ahead: none in the engine's own thread, as for a CPU, or some beside it, as for a GPU."""
    monkeypatch.setitem(decoded._AHEAD, "cpu", request.param)
    return int(request.param)


def stored(folder: Path) -> Weights:
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, "pt") as f:
            for name in f.keys():
                yield name, f.get_tensor(name)


def raw(weights: Weights) -> dict[str, bytes]:
    return {name: bytes(tensor.reshape(-1).view(torch.uint8).numpy()) for name, tensor in weights}


def made(root: Path, codec: Codec) -> tuple[Path, Path]:
    dense = mini_dense(root / "dense", codec)
    return dense, mini_hf(root / "csf") if codec is NVFP4 else mini_container(root / "csf", codec)


@pytest.mark.parametrize("codec", [NVFP4, MXFP4], ids=lambda codec: str(codec.name))
@pytest.mark.parametrize("batch", [1, 1 << 20])
def test_every_weight_is_that_of_the_dense_checkpoint(tmp_path: Path, codec: Codec, batch: int) -> None:
    dense, csf = made(tmp_path, codec)
    tally = Tally()
    found = list(decoded_weights(stored(csf), opened(csf), CPU, tally, batch_bytes=batch))
    assert len(found) == len(dict(found))
    assert raw(iter(found)) == raw(stored(dense))
    planes = opened(csf).planes
    assert (tally.planes, tally.stored_bytes) == (len(planes), sum(plane.csf_bytes for plane in planes))
    assert tally.dense_bytes == sum(plane.dense_bytes for plane in planes) > 0
    assert str(tally).startswith(f"decoded {tally.planes} CSF planes, ")


def test_other_accelerators_get_scales_that_the_cpu_decoded(tmp_path: Path) -> None:
    dense, csf = made(tmp_path, NVFP4)
    there = torch.device("meta")
    found = dict(decoded_weights(stored(csf), opened(csf), there, Tally()))
    scales = {plane.name for plane in opened(csf).planes}
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {n: (t.dtype, t.shape) for n, t in stored(dense)}
    assert {name for name, tensor in found.items() if tensor.device == there} == scales


def test_what_the_engine_leaves_out_is_left_out(tmp_path: Path) -> None:
    dense, csf = made(tmp_path, NVFP4)
    kept = [(name, tensor) for name, tensor in stored(csf) if ".layers.0." in name]
    found = raw(decoded_weights(kept, opened(csf), CPU, Tally()))
    assert found == {name: data for name, data in raw(stored(dense)).items() if ".layers.0." in name}


def test_planes_that_are_not_wanted_are_neither_read_nor_decoded(tmp_path: Path) -> None:
    _, csf = made(tmp_path, NVFP4)
    checkpoint, tally = opened(csf), Tally()
    first = checkpoint.planes[0]
    overwrite(csf / first.fixed.shard.name, first.fixed.tensor.begin, b"\xff")  # would be refused
    found = dict(decoded_weights(stored(csf), opened(csf), CPU, tally, lambda name: name != first.name))
    assert first.name not in found
    assert (tally.passed_over, tally.planes) == (1, len(checkpoint.planes) - 1)
    assert "(and skipped 1)" in str(tally)


@pytest.mark.parametrize("bring", [False, True])
def test_a_broken_stream_is_named_with_its_file(tmp_path: Path, bring: bool) -> None:
    _, csf = made(tmp_path, NVFP4)
    plane = opened(csf).planes[-1]
    file = csf / plane.fixed.shard.name
    begin, _ = span(file, plane.fixed.tensor.name)
    overwrite(file, begin, b"\xff")
    with pytest.raises(StreamError) as error:
        list(decoded_weights(stored(csf), opened(csf), CPU, Tally(), bring=bring))
    assert (error.value.file, error.value.tensor) == (plane.fixed.shard.name, plane.name)
    assert error.value.code in set(Code)


def test_an_engine_that_stops_early_leaves_nothing_running(tmp_path: Path) -> None:
    _, csf = made(tmp_path, NVFP4)
    weights = decoded_weights(stored(csf), opened(csf), CPU, Tally(), batch_bytes=1)
    next(weights)
    weights.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("csf-tool-decode")]


# Stored tensors that are brought to the device, too


def untold(folder: Path) -> list[tuple[str, torch.Tensor]]:
    """What an engine has of the stored tensors before it looks at their data: here these are wrong."""
    return [(name, torch.full_like(tensor, 1)) for name, tensor in stored(folder)]


def dense_names(folder: Path) -> list[str]:
    """The names in the engine's order, a scale where its fixed stream is."""
    pairs = [(name, parse_stream_name(name)) for name, _ in stored(folder)]
    return [stream.scale if stream else name for name, stream in pairs if not stream or stream.is_fixed]


@pytest.mark.parametrize("codec", [NVFP4, MXFP4], ids=lambda codec: str(codec.name))
@pytest.mark.parametrize("batch", [1200, 1 << 20])
def test_all_weights_are_brought_in_the_order_of_the_engine(tmp_path: Path, codec: Codec, batch: int) -> None:
    dense, csf = made(tmp_path, codec)
    tally = Tally()
    found = list(decoded_weights(untold(csf), opened(csf), CPU, tally, batch_bytes=batch, bring=True))
    assert [name for name, _ in found] == dense_names(csf)
    want = raw(stored(dense))
    assert raw(iter(found)) == want
    assert tally.planes + tally.brought == len(want)
    assert tally.dense_bytes + tally.brought_bytes == sum(map(len, want.values()))
    assert f" and read {tally.brought} tensors of " in str(tally)


def test_a_tensor_larger_than_a_batch_stays_the_engines(tmp_path: Path) -> None:
    _, csf = made(tmp_path, NVFP4)
    given = untold(csf)
    limit = sorted(tensor.nbytes for name, tensor in given if not parse_stream_name(name))[-1] - 1
    tally = Tally()
    found = dict(decoded_weights(given, opened(csf), CPU, tally, batch_bytes=limit, bring=True))
    large = {name: tensor for name, tensor in given if tensor.nbytes > limit}
    assert large and tally.brought
    assert {name for name, tensor in given if found.get(name) is tensor} == large.keys()


def converted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64)


def reshaped(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(1, *tensor.shape)


def elsewhere(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta")


@pytest.mark.parametrize("change", [converted, reshaped, elsewhere])
def test_what_the_engine_has_in_another_form_stays_so(tmp_path: Path, change: Any) -> None:
    _, csf = made(tmp_path, NVFP4)
    given = [(name, change(tensor)) for name, tensor in stored(csf)]
    tally = Tally()
    found = dict(decoded_weights(given, opened(csf), CPU, tally, bring=True))
    assert tally.brought == 0 and tally.planes
    assert all(found[name] is tensor for name, tensor in given if not parse_stream_name(name))


def test_what_the_engine_has_no_use_for_is_not_read(tmp_path: Path) -> None:
    _, csf = made(tmp_path, NVFP4)
    given = untold(csf)
    tally = Tally()
    found = dict(decoded_weights(given, opened(csf), CPU, tally, lambda name: ".layers.0." not in name, bring=True))
    assert tally.brought and tally.passed_over
    others = {name: tensor for name, tensor in given if ".layers.0." in name and not parse_stream_name(name)}
    assert others and all(found[name] is tensor for name, tensor in others.items())


def many(root: Path, experts: int = 12) -> tuple[Path, Path]:
    """A dense checkpoint of many tensors, and its CSF."""
    tensors = model(NVFP4, 2, experts=experts)
    dense = write_hf(root / "dense", tensors)
    return dense, write_hf(root / "csf", {name: compressed(part, NVFP4) for name, part in tensors.items()})


def test_few_batches_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    _, csf = many(tmp_path)
    loaded: list[list[weakref.ref[torch.Tensor]]] = []
    load = TorchLoader.load

    def watched(self: TorchLoader, batch: Sequence[LogicalTensor]) -> list[torch.Tensor]:
        tensors = load(self, batch)
        loaded.append([weakref.ref(tensor) for tensor in tensors])
        return tensors

    monkeypatch.setattr(TorchLoader, "load", watched)
    limit, most = 1200, 0
    for _, tensor in decoded_weights(untold(csf), opened(csf), CPU, Tally(), batch_bytes=limit, bring=True):
        del tensor
        most = max(most, sum(any(given() is not None for given in batch) for batch in loaded))
    assert len(loaded) > 4
    assert 1 <= most <= ahead + 1


def test_an_engine_that_keeps_all_it_is_given_keeps_its_own(tmp_path: Path, ahead: int) -> None:
    """A list of all weights: views of files cost it nothing, and tensors on a GPU all of its memory."""
    dense, csf = many(tmp_path)
    tally, limit = Tally(), 1200
    found = list(decoded_weights(stored(csf), opened(csf), CPU, tally, batch_bytes=limit, bring=True))
    want = raw(stored(dense))
    assert raw(iter(found)) == want
    at_once = decoded._MOST_KEPT + ahead + 2  # with those that were on their way when it was seen
    assert 0 < tally.brought_bytes < at_once * 2 * limit < sum(map(len, want.values())) - tally.dense_bytes


def test_an_engine_that_keeps_a_few_of_each_allocation_keeps_its_own(tmp_path: Path, ahead: int) -> None:
    """Tensors of one shape in a batch are one allocation, which the last of them holds."""
    _, csf = many(tmp_path, experts=36)
    limit, tally = 2400, Tally()
    kept: dict[int, torch.Tensor] = {}
    for _, tensor in decoded_weights(untold(csf), opened(csf), CPU, tally, batch_bytes=limit, bring=True):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)  # the first of each
    everything = sum(tensor.nbytes for _, tensor in untold(csf))
    at_once = decoded._MOST_KEPT + ahead + 2
    assert 0 < tally.brought_bytes < at_once * 2 * limit < everything / 2


def test_the_thread_that_loads_does_so_on_the_stream_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    _, csf = made(tmp_path, NVFP4)
    entered: list[str] = []

    class Stream(nullcontext[None]):
        def __enter__(self) -> None:
            entered.append(threading.current_thread().name)

    asked: list[str] = []

    def current(device: torch.device) -> Stream:
        assert device == CPU
        asked.append(threading.current_thread().name)
        return Stream()

    monkeypatch.setattr(decoded, "_current_stream", current)
    list(decoded_weights(stored(csf), opened(csf), CPU, Tally(), batch_bytes=256, bring=True))
    assert set(asked) == {threading.current_thread().name}
    assert len(entered) == len(asked) > 1
    assert all(name.startswith("csf-tool-decode" if ahead else threading.current_thread().name) for name in entered)


def test_a_file_that_is_cut_off_meanwhile_is_named(tmp_path: Path) -> None:
    _, csf = made(tmp_path, NVFP4)
    checkpoint, given = opened(csf), untold(csf)
    file = csf / checkpoint.shards[-1].name
    with file.open("r+b") as end:
        end.truncate(file.stat().st_size - 100)
    with pytest.raises(CsfToolError, match=file.name):
        list(decoded_weights(given, checkpoint, CPU, Tally(), bring=True))
