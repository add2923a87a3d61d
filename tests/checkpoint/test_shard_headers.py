"""Opening shards with an index: the same checkpoint, whether the index is compared as text or name by name."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.open import open_checkpoint
from tests.building import (
    MXFP4,
    NVFP4,
    Codec,
    Tensor,
    compressed,
    index_of,
    layer,
    model,
    shard_name,
    write_hf,
    write_shard,
)

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


@pytest.mark.parametrize("name", MODELS)
def test_an_index_in_another_order_makes_no_difference(tmp_path: Path, name: str) -> None:
    """One that is sorted is compared as text, any other name by name."""
    shards = MODELS[name]()
    folder = write(tmp_path / "model", shards)
    expected = open_checkpoint(folder)
    assert len(expected.plane_table) == sum(t.name.endswith("_fixed") for some in shards.values() for t in some)
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"] = dict(reversed(document["weight_map"].items()))
    index.write_text(json.dumps(document, indent=2))
    assert content(open_checkpoint(folder)) == content(expected)


def test_a_warning_about_one_shard_hides_nothing_of_another(tmp_path: Path) -> None:
    """With a warning no shard counts as faultless, and the index decides which shards there are."""
    shards = of(NVFP4)()
    first, last = shard_name(1, SHARDS), shard_name(SHARDS, SHARDS)
    shards[first].append(Tensor("odd", "F99", (1,), b"x"))
    folder = write(tmp_path, shards)
    write_shard(folder / last, shards[last][:-1])
    found = {(p.file, p.severity.value) for p in open_checkpoint(folder).problems}
    assert found == {(first, "warning"), (last, "error")}


def test_an_empty_index_beside_shards_that_cannot_be_read_lists_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, of(NVFP4)())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    os.truncate(folder / shard_name(1, SHARDS), 100)
    found = [p.problem for p in open_checkpoint(folder).problems if p.file == shard_name(2, SHARDS)]
    assert found == ["model.safetensors.index.json does not list this shard"]
