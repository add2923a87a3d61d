"""Reading many shards: with a copy of the process or without, shard by shard or all together, it is the same."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from csf_tool.checkpoint import background, planes, shard_headers
from csf_tool.checkpoint import open as layouts
from csf_tool.checkpoint.model import Checkpoint
from csf_tool.checkpoint.open import open_checkpoint
from tests.building import MXFP4, NVFP4, Codec, Tensor, compressed, index_of, layer, model, shard_name, write_hf

SHARDS = 11

Shards = dict[str, list[Tensor]]


def of(codec: Codec) -> Callable[[], Shards]:
    return lambda: {name: compressed(tensors, codec) for name, tensors in model(codec, SHARDS).items()}


def of_both_formats() -> Shards:
    codecs = [NVFP4, MXFP4]
    return {shard_name(i + 1, SHARDS): compressed(layer(i, codecs[i % 2]), codecs[i % 2]) for i in range(SHARDS)}


def in_the_next_shard(is_moved: Callable[[str], bool]) -> Callable[[], Shards]:
    """Each shard has some of the tensors of the one before it."""

    def make() -> Shards:
        shards = list(of(NVFP4)().values())
        moved = [[t for t in tensors if is_moved(t.name)] for tensors in shards]
        kept = [[t for t in tensors if not is_moved(t.name)] for tensors in shards]
        return {shard_name(i + 1, SHARDS): [*kept[i], *moved[i - 1]] for i in range(SHARDS)}

    return make


def with_scales_as_well() -> Shards:
    """The last shard has dense scales of planes in the first."""
    shards = of(NVFP4)()
    first, *_, last = shards
    scales = [t for t in model(NVFP4, SHARDS)[first] if t.name.endswith("weight_scale")]
    return shards | {last: [*shards[last], *scales]}


MODELS = {
    "NVFP4": of(NVFP4),
    "MXFP4": of(MXFP4),
    "both formats": of_both_formats,
    "weights elsewhere": in_the_next_shard(lambda name: name.endswith(".weight")),
    "exceptions elsewhere": in_the_next_shard(lambda name: name.endswith("_exceptions")),
    "dense as well": with_scales_as_well,
}


def write(folder: Path, shards: Shards) -> Path:
    """With an index as most are: sorted by name."""
    index = index_of(shards)
    index["weight_map"] = dict(sorted(index["weight_map"].items()))
    write_hf(folder, shards, index=False)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder


def content(checkpoint: Checkpoint) -> object:
    return checkpoint.planes, checkpoint.dense_planes, checkpoint.shards, checkpoint.formats, checkpoint.problems


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
def test_however_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shards = MODELS[name]()
    written = write(tmp_path / "model", shards)
    told: list[int] = []
    joined: list[bool] = []

    def join(*args: Any) -> Any:
        joined.append(True)
        return planes.join_planes(*args)

    def reading(copied: bool, by_shard: bool) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(background, "can_be_copied", lambda: copied)
            if not by_shard:
                patch.setattr(shard_headers, "planes_of_shard", lambda _: None)
            patch.setattr(layouts, "join_planes", join)
            checkpoint = open_checkpoint(written)
        told.append(len(checkpoint.plane_table))
        return content(checkpoint)

    expected = reading(copied=False, by_shard=False)
    assert reading(copied=False, by_shard=True) == expected
    assert reading(copied=True, by_shard=False) == expected
    assert reading(copied=True, by_shard=True) == expected
    assert bool(joined) == (name in ("NVFP4", "MXFP4", "both formats", "dense as well"))
    assert told[0] == sum(t.name.endswith("_fixed") for tensors in shards.values() for t in tensors)


def test_a_shard_tells_its_planes_unless_others_may_have_a_say(tmp_path: Path) -> None:
    def telling(name: str) -> set[bool]:
        folder = write(tmp_path / name, MODELS[name]())
        checkpoint = Checkpoint(folder, folder, open_checkpoint(folder).layout)
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        read = shard_headers.read_faultless(checkpoint, names, with_planes=True)
        assert list(read) == names
        return {found.planes is not None for found in read.values()}

    assert telling("NVFP4") == telling("both formats") == {True}
    assert telling("weights elsewhere") == telling("exceptions elsewhere") == {False}
