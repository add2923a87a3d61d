"""The fuzzing notices what it is there to notice: each kind of fault, planted."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csf_tool.codec import reference
from tests.building import Tensor, mini_dense, mini_hf, shard_bytes
from tests.fuzz import commands
from tests.fuzz.commands import Hang, Workplace, run, workplace
from tests.fuzz.folders import read
from tests.oracle import tensors_of_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="alarms, pipes and links of POSIX")

Plant = Callable[[Callable[[], object]], None]

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    """A workplace with a good checkpoint."""
    with workplace(read(mini_hf(tmp_path / "source")), read(mini_dense(tmp_path / "reference"))) as found:
        yield found


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Makes `stats` do something before it does its work."""

    def plant(fault: Callable[[], object]) -> None:
        from csf_tool.look.stats import collect_stats

        monkeypatch.setattr("csf_tool.look.stats.collect_stats", lambda opened: (fault(), collect_stats(opened))[1])

    return plant


def test_a_file_beside_the_shards_that_verify_misses(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(place, "verify against everything") == 0
    (place.source / "tokenizer.json").write_bytes(b'{"a": 1.0}')
    (place.reference / "tokenizer.json").write_bytes(b'{"a": 1}')
    assert run(place, "verify against everything") == 1
    monkeypatch.setattr("csf_tool.prove.side_comparison.difference", lambda *_: None)
    with pytest.raises(AssertionError):
        run(place, "verify against everything")


def test_a_difference_that_verify_misses(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.source / SHARD
    tensors = [Tensor(name, t.dtype, t.shape, t.data) for name, t in tensors_of_file(path.read_bytes()).items()]
    tensors[0] = Tensor(tensors[0].name, tensors[0].dtype, tensors[0].shape, bytes(len(tensors[0].data)))
    path.write_bytes(shard_bytes(tensors))
    assert run(place, "verify against") == 1
    monkeypatch.setattr("csf_tool.prove.shard_check.ShardCheck._take_together", lambda *_: False)
    monkeypatch.setattr("csf_tool.prove.observers.TensorComparison.result", lambda _: None)
    with pytest.raises(AssertionError):
        run(place, "verify against")


def test_a_byte_that_expand_decodes_wrongly(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(place, "expand") == 0
    decode = reference.decode

    def wrongly(*args: Any, **kwargs: Any) -> Any:
        scales = decode(*args, **kwargs)
        scales[-1, -1] ^= np.uint8(1)
        return scales

    monkeypatch.setattr(reference, "decode", wrongly)
    with pytest.raises(AssertionError, match="weight_scale"):
        run(place, "expand")


@pytest.mark.parametrize("where", ["source/x", "reference/config.json", "outside/secret"])
def test_something_written_outside_the_destination(place: Workplace, plant: Plant, where: str) -> None:
    plant(lambda: (place.root / where).write_text("x"))
    with pytest.raises(AssertionError, match="outside the destination"):
        run(place, "stats")


@pytest.mark.parametrize("text", ["\x1b[2J", "a\u202eb", "\x7f", "Traceback (most recent call last)"])
def test_something_printed_that_should_not_be(place: Workplace, plant: Plant, text: str) -> None:
    plant(lambda: print(text))
    with pytest.raises(AssertionError):
        run(place, "stats")


def test_an_internal_error(place: Workplace, plant: Plant) -> None:
    plant(lambda: {"a": 1}["x"])
    with pytest.raises(AssertionError, match="internal error: KeyError"):
        run(place, "stats")


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
def test_a_size_that_is_believed(place: Workplace, plant: Plant) -> None:
    plant(lambda: bytearray(2 * commands.MOST_BYTES))
    with pytest.raises(AssertionError, match="not enough memory"):
        run(place, "stats")


def test_a_hang(place: Workplace, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MOST_SECONDS", 0.3)
    plant(lambda: [None for _ in iter(int, 1)])
    with pytest.raises(Hang):
        run(place, "stats")


def test_a_tab_that_makes_two_cells_of_one(place: Workplace, plant: Plant) -> None:
    """Tables have tabs between their cells in pipes: only there may one stand."""
    (place.source / "to\tken.json").write_text('{"na\\tme": 1}')
    assert run(place, "stats") == 0
    assert run(place, "ls") == 0
    for text in ("to\tken.json", "na\tme", "a\tb\nc\td\te"):
        plant(partial(print, text))
        with pytest.raises(AssertionError):
            run(place, "stats")


def test_a_dry_run_that_writes(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(place, "expand as dry run") == 0
    monkeypatch.setattr("csf_tool.write.engine._foreseen", lambda *_: place.destination.mkdir())
    with pytest.raises(AssertionError):
        run(place, "expand as dry run")
