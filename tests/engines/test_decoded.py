"""Weights as an engine gets them: scales in the place of streams, everything else as it was read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from csf_tool.codes import Code
from csf_tool.engines.decoded import Tally, decoded_weights
from csf_tool.errors import StreamError
from csf_tool.loading.tensors import opened
from tests.building import MXFP4, NVFP4, Codec, mini_container, mini_dense, mini_hf, overwrite, span

CPU = torch.device("cpu")
Weights = Iterator[tuple[str, torch.Tensor]]


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


def test_a_broken_stream_is_named_with_its_file(tmp_path: Path) -> None:
    _, csf = made(tmp_path, NVFP4)
    plane = opened(csf).planes[-1]
    file = csf / plane.fixed.shard.name
    begin, _ = span(file, plane.fixed.tensor.name)
    overwrite(file, begin, b"\xff")
    with pytest.raises(StreamError) as error:
        list(decoded_weights(stored(csf), opened(csf), CPU, Tally()))
    assert (error.value.file, error.value.tensor) == (plane.fixed.shard.name, plane.name)
    assert error.value.code in set(Code)


def test_an_engine_that_stops_early_leaves_nothing_running(tmp_path: Path) -> None:
    import threading

    _, csf = made(tmp_path, NVFP4)
    weights = decoded_weights(stored(csf), opened(csf), CPU, Tally(), batch_bytes=1)
    next(weights)
    weights.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("csf-tool-decode")]
