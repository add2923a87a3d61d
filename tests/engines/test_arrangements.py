"""Folders with more shards than one list has, or with shards elsewhere: vLLM's choice of files is that of its weights.

Each is made twice, of dense tensors and of streams: what vLLM reads of the first is what the loader must give of the
second, to the byte, or an error of csf_tool's. Anything else would be a wrong model.
"""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from csf_tool.engines.read_files import checkpoint_of
from csf_tool.errors import CheckpointError, CsfToolError
from tests.building import (
    NVFP4,
    Tensor,
    compressed,
    index_of,
    is_scale,
    model,
    recipes_config,
    write_json,
    write_shard,
)
from tests.engines import loading

INDEX = "model.safetensors.index.json"
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/engines runs these")
pytestmark = pytest.mark.slow

Parts = dict[str, list[Tensor]]


class Folder:
    """A folder that is being filled, with dense tensors or with their streams."""

    def __init__(self, root: Path, *, csf: bool) -> None:
        self.root = root
        self._csf = csf
        root.mkdir()
        write_json(root / "config.json", recipes_config(2, csf=csf))

    def write(self, index: str | None = INDEX, /, **shards: list[Tensor]) -> None:
        """Write shards, named without their ending, `__` for a slash, and an index of them."""
        stored: Parts = {}
        for name, tensors in shards.items():
            path = name.replace("__", "/") + ".safetensors"
            stored[path] = compressed(tensors, NVFP4) if self._csf else tensors
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            write_shard(self.root / path, stored[path])
        if index:
            write_json(self.root / index, index_of(stored))


def parts() -> list[list[Tensor]]:
    return list(model(NVFP4, 2).values())


def other(tensors: list[Tensor], prefix: str = "") -> list[Tensor]:
    """The tensors with other scales, perhaps under other names."""
    return [
        Tensor(prefix + one.name, one.dtype, one.shape, one.data[::-1] if is_scale(one) else one.data)
        for one in tensors
    ]


def everything() -> list[Tensor]:
    return [tensor for part in parts() for tensor in part]


def scales_apart(folder: Folder, place: str) -> None:
    tensors = everything()
    folder.write(
        rest=[one for one in tensors if not is_scale(one)], **{place: [one for one in tensors if is_scale(one)]}
    )


def beside(folder: Folder, index: str | None = INDEX, /, **more: list[Tensor]) -> None:
    """A model of two shards, and more shards that its index does not list."""
    first, second = parts()
    folder.write(index, model_1=first, model_2=second)
    folder.write(None, **more)


Make = Callable[[Folder], None]

ARRANGEMENTS: dict[str, Make] = {
    "all in a folder": lambda f: f.write(weights__a=parts()[0], weights__b=parts()[1]),
    "the first in a folder": lambda f: f.write(weights__a=parts()[0], b=parts()[1]),
    "the second in a folder": lambda f: f.write(a=parts()[0], weights__b=parts()[1]),
    "scales in a file": lambda f: scales_apart(f, "scales"),
    "scales in a folder": lambda f: scales_apart(f, "scales__all"),
    "one file": lambda f: f.write(None, model=everything()),
    "one file of another name": lambda f: f.write(None, weights=everything()),
    "no index": lambda f: f.write(None, a=parts()[0], b=parts()[1]),
    "a draft model beside it": lambda f: f.write(None, model=parts()[0], mtp=parts()[1]),
    "the same once more": lambda f: beside(f, again=everything()),
    "other scales, not listed": lambda f: beside(f, z=other(everything())),
    "Mistral's file of the same": lambda f: beside(f, consolidated=everything()),
    "Mistral's file of other scales": lambda f: beside(f, consolidated=other(everything())),
    "Mistral's file of other names": lambda f: beside(f, consolidated=other(everything(), "x.")),
    "a draft model with some of the model's": lambda f: beside(
        f, mtp=[*everything()[:1], *other(everything(), "mtp.")]
    ),
    "an index that vLLM does not know": lambda f: beside(f, "other.safetensors.index.json"),
    "the index of a variant": lambda f: beside(f, "model.safetensors.index.fp4.json"),
    "an unknown index, and more": lambda f: beside(f, "other.safetensors.index.json", z=other(everything(), "x.")),
}
"""By what they show, ways to store a model."""

IN_FOLDERS = ["all in a folder", "the first in a folder", "the second in a folder", "scales in a folder"]

AMBIGUOUS: dict[str, Make] = {
    "an unknown index, and other scales": lambda f: beside(f, "other.safetensors.index.json", z=other(everything())),
    "a whole and its parts": lambda f: beside(f, None, model=everything()),
}
"""Those in which vLLM reads a tensor twice, so that its order decides."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., loading.Weights]:
    """The weights of a folder by the loader that is registered."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    from csf_tool.engines.vllm.plugin import register

    register()
    return lambda folder, **source: loading.weights(loading.loader(), folder.root, **source)


def filled(root: Path, make: Make, *, csf: bool = True) -> Folder:
    folder = Folder(root / ("csf" if csf else "dense"), csf=csf)
    make(folder)
    return folder


@needs_vllm
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_weights_are_those_of_the_files_that_vllm_chooses(
    tmp_path: Path, read: Callable[..., loading.Weights], name: str
) -> None:
    # vLLM takes no shards in folders: there, dense ones lie side by side.
    side_by_side: Make = lambda f: f.write(a=parts()[0], b=parts()[1])  # noqa: E731
    dense = filled(tmp_path, side_by_side if name in IN_FOLDERS else ARRANGEMENTS[name], csf=False)
    assert read(filled(tmp_path, ARRANGEMENTS[name])) == loading.weights(loading.stock(), dense.root)


@needs_vllm
@pytest.mark.parametrize("name", AMBIGUOUS)
def test_files_that_hold_a_tensor_twice_are_refused(
    tmp_path: Path, read: Callable[..., loading.Weights], name: str
) -> None:
    folder = filled(tmp_path, AMBIGUOUS[name])
    with pytest.raises(CheckpointError, match=r"are also in .*\.safetensors: remove one set of shards"):
        read(folder)


@needs_vllm
@pytest.mark.parametrize("prefix", ["", "x."])
def test_files_that_only_a_pattern_names(tmp_path: Path, read: Callable[..., loading.Weights], prefix: str) -> None:
    def make(folder: Folder) -> None:
        beside(folder, z=other(everything(), prefix))

    dense = filled(tmp_path, make, csf=False)
    want = loading.weights(loading.stock(), dense.root, allow_patterns_overrides=["z*.safetensors"])
    assert read(filled(tmp_path, make), allow_patterns_overrides=["z*.safetensors"]) == want


@needs_vllm
@pytest.mark.parametrize("name", [*IN_FOLDERS, "scales in a file", "the same once more"])
def test_a_listed_shard_that_is_missing_ends_the_load(
    tmp_path: Path, read: Callable[..., loading.Weights], name: str
) -> None:
    """Whichever it is: without one of them there may be no stream left to tell that it is CSF."""
    folder = filled(tmp_path, ARRANGEMENTS[name])
    for shard in sorted(set(json.loads((folder.root / INDEX).read_text())["weight_map"].values())):
        file = folder.root / shard
        file.rename(tmp_path / "away")
        with pytest.raises(CsfToolError, match=rf"{shard}: is missing"):
            read(folder)
        (tmp_path / "away").rename(file)


@needs_vllm
@pytest.mark.parametrize("index", [None, INDEX])
@pytest.mark.parametrize("layers", ["01", "0", "1"])
def test_streams_that_are_missing_end_the_load(
    tmp_path: Path, read: Callable[..., loading.Weights], index: str | None, layers: str
) -> None:
    """Of a layer or of all: without a list that names their shard, only the config knows of them."""
    found = [one for one in everything() if not (is_scale(one) and one.name[len("model.layers.")] in layers)]
    folder = filled(tmp_path, lambda f: f.write(index, model=found))
    with pytest.raises(CheckpointError, match=rf"layers\.{layers[0]}\..* no block scale.* are lost"):
        read(folder)


@needs_vllm
def test_a_config_that_says_csf_of_a_dense_checkpoint_is_no_matter_here(
    tmp_path: Path, read: Callable[..., loading.Weights]
) -> None:
    folder = filled(tmp_path, lambda f: f.write(model=everything()), csf=False)
    write_json(folder.root / "config.json", recipes_config(2))
    assert read(folder) == loading.weights(loading.stock(), folder.root)


@pytest.mark.parametrize("name", [*ARRANGEMENTS, *AMBIGUOUS])
def test_every_stream_of_an_engines_files_is_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    """Whatever files an engine takes, together or alone: SGLang's choice is another one than vLLM's."""
    folder = filled(tmp_path, (ARRANGEMENTS | AMBIGUOUS)[name])
    files = sorted(map(str, folder.root.rglob("*.safetensors")))
    for chosen in (files, *([file] for file in files)):
        try:
            found = checkpoint_of(folder.root, chosen)
        except CsfToolError:
            continue
        held = {str(shard.path) for shard in found.shards}
        assert set(chosen) <= held
        streams = {plane.fixed.tensor.name for plane in found.planes}
        stored = {n for shard in found.shards for n in shard.header.names if n.endswith("_csf_fixed")}
        assert streams == stored
