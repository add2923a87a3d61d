"""Readers of the Hugging Face layout go by recipes: modules as a whole, layouts that readers find, configs restored."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import CompressTo, Target
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.errors import UsageError
from csf_tool.progress import Silent
from csf_tool.prove.verify import verify
from csf_tool.write.compress import Compressed, CompressOptions, compress
from csf_tool.write.convert import ConvertOptions, convert
from csf_tool.write.expand import expand
from csf_tool.write.selection import Rules
from tests.building import NVFP4, Tensor, matrix, tree, write_hf

LAYERS = ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
RECIPE = {"quant_algo": "NVFP4", "group_size": 16}
UNIFORM = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}}
FOREIGN = {"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}}


def with_recipes(*modules: str) -> dict[str, Any]:
    layers = dict.fromkeys(modules, RECIPE)
    block = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    return {"quantization_config": block}


def layer(number: int, **changed: bytes) -> list[Tensor]:
    """Experts of a layer; `changed` has other scales for some, as `up_1`."""
    tensors = []
    for expert in range(4):
        for part in ("gate", "up", "down"):
            made = matrix(f"{LAYERS[number]}.{expert}.{part}_proj", NVFP4, expert, rows=32, cols=16)
            data = changed.get(f"{part}_{expert}")
            tensors += [
                Tensor(t.name, t.dtype, t.shape, data if data and t.name.endswith("weight_scale") else t.data)
                for t in made
            ]
    return tensors


WILD = random.Random(1).randbytes(32 * 16)
"""Scales without any order: most become exceptions, four bytes each."""


def source(folder: Path, config: object, *layers: list[Tensor], inside: str = "") -> Path:
    layers = layers or (layer(0), layer(1))
    shards = {f"model-0000{i}-of-00002.safetensors": tensors for i, tensors in enumerate(layers, 1)}
    return write_hf(folder, shards, config=config, folder=inside)


def run(folder: Path, to: Path, layout: CompressTo | None = None, **rules: Any) -> Compressed:
    options = CompressOptions(layout, Rules(**rules))
    return compress(open_checkpoint(folder), to, options, NumpyEncoder(), NumpyDecoder(), Silent())


def marked(folder: Path, name: str = "config.json") -> set[str]:
    config = json.loads((folder / name).read_text())
    layers = config.get("quantization_config", config)["quantized_layers"]
    return {module for module, recipe in layers.items() if recipe.get("weight_scale_encoding") == "csf"}


def sound(folder: Path, dense: Path) -> Checkpoint:
    """The checkpoint that was written: nothing is wrong with it, and it stands for the dense one."""
    checkpoint = open_checkpoint(folder)
    assert list(checkpoint.problems) == []
    assert verify(checkpoint, open_checkpoint(dense), NumpyDecoder(), Silent()).ok
    return checkpoint


def test_a_plane_that_grows_goes_along_with_its_module(tmp_path: Path) -> None:
    dense = source(tmp_path / "in", with_recipes(*LAYERS), layer(0, up_1=WILD), layer(1))
    done = run(dense, tmp_path / "hf")
    assert (done.planes, done.left, marked(tmp_path / "hf")) == (24, [], set(LAYERS))
    assert done.notes[0].startswith("1 plane took ")
    sound(tmp_path / "hf", dense)
    done = run(dense, tmp_path / "container", CompressTo.CONTAINER)
    assert (done.planes, [entry.plane.name for entry in done.left]) == (23, [f"{LAYERS[0]}.1.up_proj.weight_scale"])
    assert done.notes == []


def test_a_module_that_grows_as_a_whole_stays_dense(tmp_path: Path) -> None:
    parts = {f"{part}_{expert}": WILD for part in ("gate", "up", "down") for expert in range(3)}
    dense = source(tmp_path / "in", with_recipes(*LAYERS), layer(0, **parts), layer(1))
    done = run(dense, tmp_path / "hf")
    assert (done.planes, len(done.left), marked(tmp_path / "hf")) == (12, 12, {LAYERS[1]})
    [reason] = {entry.reason for entry in done.left}
    assert reason.startswith(f"{LAYERS[0]} as a whole would not shrink: CSF would take ")
    assert reason.endswith("(--keep-larger forces it)")
    sound(tmp_path / "hf", dense)
    assert run(dense, tmp_path / "forced", keep_larger=True).planes == 24


@pytest.mark.parametrize("rows", [24, 32])
def test_a_module_with_a_plane_that_no_stream_can_hold_stays_dense(tmp_path: Path, rows: int) -> None:
    """Rows that no slab fits, or a scale that does not fit its weight: neither can be CSF, so the module cannot."""
    odd = matrix(f"{LAYERS[0]}.9.up_proj", NVFP4, 9, rows=rows, cols=16)
    if rows == 32:
        odd = [Tensor(t.name, t.dtype, (16, 16), t.data[:256]) if t.name.endswith("_scale") else t for t in odd[1:3]]
    dense = source(tmp_path / "in", with_recipes(*LAYERS), layer(0) + odd, layer(1))
    done = run(dense, tmp_path / "hf", CompressTo.HF)
    assert (done.planes, marked(tmp_path / "hf")) == (12, {LAYERS[1]})
    assert f"{LAYERS[0]} stays dense as a whole because of {LAYERS[0]}.9.up_proj.weight_scale" in done.left[1].reason
    assert run(dense, tmp_path / "container", CompressTo.CONTAINER).planes == 24


def test_modules_without_a_recipe_stay_dense_where_others_have_one(tmp_path: Path) -> None:
    dense = source(tmp_path / "in", with_recipes(LAYERS[0]))
    done = run(dense, tmp_path / "hf")
    assert (done.target.layout.name, done.planes, done.notes) == ("hf", 12, [])
    assert {entry.plane.name.partition(".experts.")[0] for entry in done.left} == {"model.layers.1.mlp"}
    assert {entry.reason for entry in done.left} == {
        "no recipe covers it: readers of this layout would not find it (--to container compresses it)"
    }
    assert run(dense, tmp_path / "container", CompressTo.CONTAINER).planes == 24


def test_recipes_of_single_experts_are_marked_all_or_none(tmp_path: Path) -> None:
    """Readers take one expert's recipe for the whole group."""
    names = [f"{LAYERS[i]}.{e}.{part}_proj" for i in (0, 1) for e in range(4) for part in ("gate", "up", "down")]
    odd = f"{LAYERS[0]}.9.up_proj"
    plain = layer(0, up_1=WILD)
    dense = source(tmp_path / "a", with_recipes(*names), plain, layer(1))
    assert run(dense, tmp_path / "hf a").planes == 24
    assert marked(tmp_path / "hf a") == set(names)
    dense = source(tmp_path / "b", with_recipes(*names, odd), plain + matrix(odd, NVFP4, 9, rows=24), layer(1))
    assert run(dense, tmp_path / "hf b").planes == 12
    assert marked(tmp_path / "hf b") == set(names[12:])


def test_each_config_is_marked_by_the_recipes_that_it_has(tmp_path: Path) -> None:
    """One file states one algorithm, the other has recipes of single experts: both come back as they were."""
    dense = source(tmp_path / "in", UNIFORM)
    names = [f"{LAYERS[i]}.{e}.{part}_proj" for i in (0, 1) for e in range(4) for part in ("gate", "up", "down")]
    (dense / "hf_quant_config.json").write_text(json.dumps(with_recipes(*names)["quantization_config"], indent=4))
    assert run(dense, tmp_path / "hf").target.layout.name == "hf"
    assert marked(tmp_path / "hf") == set(LAYERS)
    assert marked(tmp_path / "hf", "hf_quant_config.json") == set(names)
    sound(tmp_path / "hf", dense)
    expand(open_checkpoint(tmp_path / "hf"), tmp_path / "back", NumpyDecoder(), Silent())
    for name in ("config.json", "hf_quant_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (dense / name).read_bytes()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (FOREIGN, "config.json has quant_method compressed-tensors, but no recipe that could be marked"),
        ({"model_type": "x"}, "config.json has no quantization"),
        (None, "there is no config.json"),
        (with_recipes("lm_head"), "no recipe of config.json covers them"),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}},
            "config.json has quant_method modelopt and quant_algo MIXED_PRECISION, but no recipe that could be marked",
        ),
    ],
)
def test_where_no_recipe_can_be_marked_a_container_is_written(tmp_path: Path, config: object, why: str) -> None:
    dense = source(tmp_path / "in", config)
    done = run(dense, tmp_path / "default")
    assert (done.target.layout.name, done.planes) == ("container", 24)
    unfound = "readers that go by recipes will not find its CSF planes, such as those of"
    assert done.notes == [
        f"--to container was chosen, because in the other layout {unfound} {LAYERS[0]} (of 2 modules): {why}"
    ]
    done = run(dense, tmp_path / "hf", CompressTo.HF)
    assert (done.target.layout.name, done.planes) == ("hf", 24)
    assert done.notes == [f"{unfound} {LAYERS[0]} (of 2 modules): {why}; --to container writes what other readers find"]
    assert run(dense, tmp_path / "container", CompressTo.CONTAINER).notes == []


def test_shards_in_a_folder_cannot_be_a_container_and_are_written_with_a_warning(tmp_path: Path) -> None:
    dense = source(tmp_path / "in", FOREIGN, inside="weights")
    done = run(dense, tmp_path / "out")
    assert done.target.layout.name == "hf"
    assert "will not find its CSF planes" in done.notes[0]
    with pytest.raises(UsageError, match="is in a folder; a container's shards are not"):
        run(dense, tmp_path / "container", CompressTo.CONTAINER)


@pytest.mark.parametrize("config", [UNIFORM, with_recipes(*LAYERS)])
def test_convert_marks_a_config_as_compress_does_and_gives_it_back(tmp_path: Path, config: object) -> None:
    dense = source(tmp_path / "in", config)
    run(dense, tmp_path / "container", CompressTo.CONTAINER)
    run(dense, tmp_path / "hf", CompressTo.HF)
    for source_, target in (("container", Target.HF), ("hf", Target.CONTAINER)):
        convert(open_checkpoint(tmp_path / source_), tmp_path / target.name, target, ConvertOptions(), Silent())
    ours, theirs = tree(tmp_path / "HF"), tree(tmp_path / "hf")
    assert ours["config.json"] == theirs["config.json"]
    assert marked(tmp_path / "HF") == set(LAYERS)
    assert (tmp_path / "CONTAINER" / "metadata" / "config.json").read_bytes() == (dense / "config.json").read_bytes()


def test_include_names_what_gets_a_mark_and_all_quantised_modules_get_a_recipe(tmp_path: Path) -> None:
    attention = matrix("model.layers.0.self_attn.q_proj", NVFP4, 1, rows=32, cols=16)
    dense = source(tmp_path / "in", UNIFORM, layer(0) + attention, layer(1))
    run(dense, tmp_path / "default")
    layers = json.loads((tmp_path / "default" / "config.json").read_text())["quantization_config"]["quantized_layers"]
    assert set(layers) == {*LAYERS, "model.layers.0.self_attn.q_proj"}
    assert marked(tmp_path / "default") == set(LAYERS)
    run(dense, tmp_path / "all", include=("*",))
    assert marked(tmp_path / "all") == set(layers)
    sound(tmp_path / "default", dense)
    sound(tmp_path / "all", dense)
