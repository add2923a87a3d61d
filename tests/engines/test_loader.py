"""The loader inside a real vLLM, without an engine: what DefaultModelLoader honours, this one honours, too."""

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors
import torch

from csf_tool.checkpoint.logical import LogicalTensor, logical_tensors
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.dtypes import DTYPES
from csf_tool.errors import CsfToolError
from csf_tool.loading.tensors import opened
from tests.building import (
    LFS_POINTER,
    MXFP4,
    NVFP4,
    Tensor,
    compressed,
    home_made,
    mini_container,
    mini_dense,
    mini_hf,
    model,
    overwrite,
    recipes_config,
    write_hf,
)
from tests.engines import loading
from tests.engines.checkpoints import NVFP4_PAIRS, Pairs
from tests.hub_server import Hub

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/engines runs these"),
    pytest.mark.slow,
]

INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    from csf_tool.engines.vllm.plugin import register

    register()


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return mini_dense(tmp_path / "dense", NVFP4)


@pytest.fixture
def csf(tmp_path: Path) -> Path:
    return mini_hf(tmp_path / "csf")


@pytest.fixture(params=[False, True], ids=["views", "brought"])
def bring(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether stored tensors are brought to the device, which is the CPU here: with both, weights are the same."""
    monkeypatch.setattr(type(loading.loader()), "_takes_all_of_each", lambda _: request.param)
    return bool(request.param)


both_ways = pytest.mark.usefixtures("bring")


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What csf_tool's logger inside vLLM says; vLLM's do not hand on to the root's."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vllm.csf_tool")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield messages
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


def in_folder(root: Path) -> Path:
    stored = {name: compressed(tensors, NVFP4) for name, tensors in model(NVFP4, 2).items()}
    return write_hf(root, stored, config=recipes_config(2), folder="weights")


def single(root: Path) -> Path:
    tensors = [tensor for part in model(NVFP4, 2).values() for tensor in part]
    return write_hf(root, {"model.safetensors": compressed(tensors, NVFP4)}, config=recipes_config(2), index=False)


@both_ways
@pytest.mark.parametrize("load_format", ["auto", "hf", "safetensors"])
@pytest.mark.parametrize(
    "make", [mini_hf, single, in_folder, mini_container, home_made], ids=lambda make: str(make.__name__)
)
def test_every_layout_gives_the_dense_weights(tmp_path: Path, dense: Path, make: Any, load_format: str) -> None:
    found = loading.weights(loading.loader(load_format), make(tmp_path / "csf"))
    assert found == loading.weights(loading.stock(load_format), dense)


@both_ways
@pytest.mark.parametrize("make", [mini_container, home_made], ids=lambda make: str(make.__name__))
def test_mxfp4_by_deepseeks_names(tmp_path: Path, make: Any) -> None:
    dense = mini_dense(tmp_path / "dense", MXFP4)
    assert loading.weights(loading.loader(), make(tmp_path / "csf", MXFP4)) == loading.weights(loading.stock(), dense)


def test_a_containers_model_folder_leads_to_its_weights(tmp_path: Path, dense: Path) -> None:
    container = mini_container(tmp_path / "csf")
    assert loading.weights(loading.loader(), container / "metadata") == loading.weights(loading.stock(), dense)


def in_order(loader: Any, folder: Path) -> list[str]:
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    return [name for name, _ in loader._get_weights_iterator(DefaultModelLoader.Source(str(folder), None))]


def test_weights_come_in_the_order_of_vllm(dense: Path, csf: Path, bring: bool) -> None:
    """Scales apart, which come when they are decoded, unless all others come in the same way."""
    found, want = in_order(loading.loader(), csf), in_order(loading.stock(), dense)
    assert found == want or not bring
    assert [n for n in found if not n.endswith("weight_scale")] == [n for n in want if not n.endswith("weight_scale")]
    assert sorted(found) == sorted(want)


def test_safetensors_is_asked_for_what_lies_askew_alone(
    tmp_path: Path, dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.model_executor.model_loader import weight_utils

    asked: list[str] = []

    class Recording:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.file = safetensors.safe_open(*args, **kwargs)

        def get_tensor(self, name: str) -> torch.Tensor:
            asked.append(name)
            found: torch.Tensor = self.file.get_tensor(name)
            return found

    csf = mini_hf(tmp_path / "csf")
    want = loading.weights(loading.stock(), dense)
    monkeypatch.setattr(weight_utils, "safe_open", Recording)
    assert loading.weights(loading.loader(), csf) == want
    askew = [name for name, tensor in logical_tensors(opened(csf)).items() if is_askew(tensor)]
    assert sorted(asked) == sorted(askew)


def is_askew(tensor: LogicalTensor) -> bool:
    """Whether a stored tensor begins where its dtype cannot be read in place."""
    return not isinstance(tensor.source, Plane) and tensor.source.tensor.begin % (DTYPES[tensor.dtype].bits // 8) > 0


@both_ways
def test_odd_tensors_are_as_safetensors_gives_them(tmp_path: Path) -> None:
    """Without elements, of no dimension, of dtypes that take turns, and begun at any byte."""
    odd = [
        ("a.odd", "U8", [3], b"abc"),
        ("b.word", "F32", [], b"\0\0\x80\x3f"),
        ("c.none", "BF16", [0, 4], b""),
        ("d.flag", "BOOL", [1], b"\1"),
        ("e.wide", "I64", [1], bytes(8)),
        ("f.half", "BF16", [2, 1], b"\x80\x3f\0\x40"),
        ("g.exponent", "F8_E8M0", [1], b"\x7f"),
    ]
    tensors = [Tensor(name, dtype, tuple(shape), data) for name, dtype, shape, data in odd]
    parts = model(NVFP4, 1)
    dense = write_hf(tmp_path / "dense", {name: [*part, *tensors] for name, part in parts.items()})
    csf = write_hf(tmp_path / "csf", {name: [*compressed(part, NVFP4), *tensors] for name, part in parts.items()})
    assert loading.weights(loading.loader(), csf) == loading.weights(loading.stock(), dense)


def test_a_shard_that_is_another_by_now_is_read_anew(csf: Path) -> None:
    from csf_tool.engines.vllm.mapped import mapped

    checkpoint, loader = opened(csf), loading.stock()
    for shard in csf.glob("*.safetensors"):
        os.utime(shard, (1, 1))
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    weights = loader._get_weights_iterator(DefaultModelLoader.Source(str(csf), None))
    found = {name: loading.raw(tensor) for name, tensor in mapped(weights, checkpoint)}
    assert found == loading.weights(loading.stock(), csf)  # with streams, by safetensors


def test_reading_of_another_kind_is_left_as_it_is(csf: Path) -> None:
    from csf_tool.engines.vllm.mapped import mapped

    def other() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a.weight", torch.zeros(1)

    for weights in (other(), ((name, tensor) for name, tensor in other()), iter([])):
        assert mapped(weights, opened(csf)) is weights  # type: ignore[arg-type]


@both_ways
@pytest.mark.parametrize("strategy", ["lazy", "eager", "prefetch"])
def test_every_way_of_reading(dense: Path, csf: Path, strategy: str) -> None:
    found = loading.weights(loading.loader(safetensors_load_strategy=strategy), csf)
    assert found == loading.weights(loading.stock(), dense)


def test_several_threads(dense: Path, csf: Path) -> None:
    options = {"enable_multithread_load": True, "num_threads": 2}
    found = loading.weights(loading.loader(model_loader_extra_config=options), csf)
    assert found == loading.weights(loading.stock(), dense)


def test_prefix_and_subfolder(tmp_path: Path, dense: Path, csf: Path) -> None:
    (tmp_path / "outer").mkdir()
    shutil.move(csf, tmp_path / "outer" / "inner")
    found = loading.weights(loading.loader(), tmp_path / "outer", subfolder="inner", prefix="language_model.")
    want = loading.weights(loading.stock(), dense)
    assert found == {f"language_model.{name}": data for name, data in want.items()}


PLACES = [mini_hf, in_folder, mini_container, home_made]


@pytest.mark.parametrize("make", PLACES, ids=lambda make: str(make.__name__))
def test_patterns(tmp_path: Path, dense: Path, make: Any) -> None:
    """They are of names as the dense checkpoint has them, wherever the shards are."""
    patterns = ["model-00002*.safetensors"]
    found = loading.weights(loading.loader(), make(tmp_path / "csf"), allow_patterns_overrides=patterns)
    assert found == loading.weights(loading.stock(), dense, allow_patterns_overrides=patterns)
    assert found


@pytest.mark.parametrize("make", [*PLACES, mini_dense], ids=lambda make: str(make.__name__))
def test_patterns_of_no_file_end_it_as_in_vllm(tmp_path: Path, make: Any) -> None:
    with pytest.raises(RuntimeError, match="Cannot find any model weights with"):
        loading.weights(loading.loader(), make(tmp_path / "model"), allow_patterns_overrides=["other*.safetensors"])


def test_what_patterns_leave_out_need_not_be_there(dense: Path, csf: Path) -> None:
    """vLLM downloads nothing else."""
    patterns = ["model-00002*.safetensors"]
    want = loading.weights(loading.stock(), dense, allow_patterns_overrides=patterns)
    (csf / "model-00001-of-00002.safetensors").unlink()
    assert loading.weights(loading.loader(), csf, allow_patterns_overrides=patterns) == want
    with pytest.raises(CsfToolError, match="is missing"):
        loading.weights(loading.loader(), csf)


@pytest.mark.parametrize("make", [mini_container, home_made], ids=lambda make: str(make.__name__))
def test_containers_by_all_their_names(tmp_path: Path, dense: Path, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    container = make(tmp_path / "csf")
    model = container / "metadata" if make is mini_container else container
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "outer").symlink_to(container)
    monkeypatch.chdir(model)
    names = [".", "../" + model.name, f"{model}/", tmp_path / "link", tmp_path / "outer" / model.relative_to(container)]
    want = loading.weights(loading.stock(), dense)
    assert [name for name in names if loading.weights(loading.loader(), name) != want] == []


def test_shards_that_the_index_does_not_list_do_not_count(dense: Path, csf: Path) -> None:
    want = loading.weights(loading.stock(), dense)
    shutil.copy(csf / "model-00001-of-00002.safetensors", csf / "again.safetensors")  # the same names once more
    assert loading.weights(loading.loader(), csf) == want
    (csf / "rubbish.safetensors").write_bytes(b"<html>")
    assert loading.weights(loading.loader(), csf) == want


@both_ways
def test_the_filter_of_experts(tmp_path: Path) -> None:
    tensors = model(NVFP4, 1, experts=4)
    dense = write_hf(tmp_path / "dense", tensors)
    csf = write_hf(tmp_path / "csf", {name: compressed(part, NVFP4) for name, part in tensors.items()})
    mine, stock = loading.loader(), loading.stock()
    mine.local_expert_ids = stock.local_expert_ids = {1, 3}
    want = loading.weights(stock, dense)
    found = loading.weights(mine, csf)
    others = {name for name in want if ".0." in name.partition("experts")[2] or ".2." in name.partition("experts")[2]}
    scales = {name for name in others if name.endswith(".weight_scale")}
    assert len(scales) == 6
    assert found == {name: data for name, data in want.items() if name not in scales}


@both_ways
def test_weights_that_a_model_says_are_unused(dense: Path, csf: Path) -> None:
    def unused(name: str) -> bool:
        """As the heads of Qwen's models have it, by names of the dense checkpoint."""
        assert "_csf_" not in name
        return ".layers.0." in name

    found = loading.weights(loading.loader(), csf, is_unused_weight=unused)
    assert found == loading.weights(loading.stock(), dense, is_unused_weight=unused)
    assert found and not [name for name in found if ".layers.0." in name]


def load(model: loading.Module, folder: Path, loader: Any) -> loading.Weights:
    """Load a model in the whole way, with a config that asks for nothing special."""
    from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config

    config = SimpleNamespace(model=str(folder), revision=None, quantization="modelopt_mixed", is_moe=True)
    config.multimodal_config = None
    with set_current_vllm_config(VllmConfig(parallel_config=ParallelConfig())):
        loader.load_weights(model, config)
    return model.found


@both_ways
def test_a_model_with_further_sources(tmp_path: Path, dense: Path, csf: Path) -> None:
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    def further(folder: Path) -> list[Any]:
        return [DefaultModelLoader.Source(str(folder), None, prefix="draft.")]

    csf_model = loading.Module(secondary_weights=further(csf))
    want = load(loading.Module(secondary_weights=further(dense)), dense, loading.stock())
    assert load(csf_model, csf, loading.loader()) == want
    assert len(want) == 2 * len(loading.weights(loading.stock(), dense))


RANKS = {
    "one rank": ({}, None, True),
    "tensors in parts": ({"tensor_parallel_size": 2}, None, False),
    "experts in parts": ({"data_parallel_size": 2}, None, False),
    "others' experts as well": ({"data_parallel_size": 2, "enable_expert_parallel": True}, None, False),
    "its own experts": ({"tensor_parallel_size": 2, "enable_expert_parallel": True}, {1, 3}, True),
}


ASKED_AHEAD = {
    "one rank of CPUs": ("cpu", None, True),
    "a CPU with its own experts": ("cpu", {1, 3}, False),
    "a GPU": ("cuda:0", None, False),
}


@pytest.mark.parametrize(("device", "experts", "asked"), ASKED_AHEAD.values(), ids=ASKED_AHEAD)
def test_pages_are_asked_for_ahead_where_a_cpu_copies_all_of_them(
    csf: Path, device: str, experts: set[int] | None, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    from csf_tool.engines.pages_ahead import PagesAhead

    files: set[int] = set()
    expect = PagesAhead.expect

    def watched(self: PagesAhead, begin: int, end: int) -> None:
        files.add(id(self))
        expect(self, begin, end)

    monkeypatch.setattr(PagesAhead, "expect", watched)
    mine = loading.loader()
    mine.local_expert_ids, mine._device = experts, torch.device(device)
    weights = mine._get_weights_iterator(DefaultModelLoader.Source(str(csf), None))
    assert len(list(islice(weights, 8))) == 8  # the first alone may be one that is not mapped
    weights.close()
    assert bool(files) == asked
    time_out = time.monotonic() + 60
    while any(thread.name.startswith("csf-tool-pages") for thread in threading.enumerate()):
        assert time.monotonic() < time_out, "a thread is left"
        time.sleep(0.01)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("device", ["cuda:0", "cpu", "meta"])
def test_stored_tensors_are_brought_where_a_gpu_takes_all_of_them(
    ranks: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    settings, experts, brought = RANKS[ranks]
    config = VllmConfig(parallel_config=ParallelConfig())
    for name, value in settings.items():
        setattr(config.parallel_config, name, value)
    found: list[bool] = []

    def load(self: Any, *_: Any) -> None:
        self.local_expert_ids = experts
        found.append(self._takes_all_of_each())

    class Model(torch.nn.Module):
        def parameters(self, recurse: bool = True) -> Iterator[Any]:  # noqa: ARG002
            first = "cpu" if device == "cpu" else "cuda:0"
            return iter([SimpleNamespace(device=torch.device(each)) for each in (first, device)])

    mine = loading.loader()
    monkeypatch.setattr(DefaultModelLoader, "load_weights", load)
    with set_current_vllm_config(config):
        mine.load_weights(Model(), None)
    assert found == [brought and device == "cuda:0"]
    assert not mine._takes_all_of_each()  # the config is known while a model is built and loaded


def test_layers_of_other_ranks_are_not_decoded(dense: Path, csf: Path, said: list[str]) -> None:
    from vllm.model_executor.models.utils import PPMissingLayer, WeightsMapper

    inner = torch.nn.Module()
    inner.layers = torch.nn.ModuleList([PPMissingLayer(), torch.nn.Identity()])
    mapper = WeightsMapper(orig_to_new_prefix={"model.": "language_model."})
    model = loading.Module(language_model=inner, hf_to_vllm_mapper=mapper)
    want = loading.weights(loading.stock(), dense)
    found = load(model, csf, loading.loader())
    missing = {name for name in want if name.startswith("model.layers.0.") and name.endswith(".weight_scale")}
    assert len(missing) == 3
    assert found == {name: data for name, data in want.items() if name not in missing}
    assert "decoded 3 CSF planes (and skipped 3)" in said[-1]


def test_one_line_says_what_was_done(csf: Path, said: list[str], bring: bool) -> None:
    loading.weights(loading.loader(), csf)
    (line,) = said
    beside = " and read 20 tensors of 3.07 KiB," if bring else ""
    assert line.startswith(f"{csf}: csf-tool decoded 6 CSF planes, 384 B to 384 B of block scales,{beside} in ")
    assert line.endswith(" s that loading took")


@both_ways
@pytest.mark.parametrize("make", [mini_hf, mini_container], ids=lambda make: str(make.__name__))
def test_a_broken_stream_ends_it_with_file_and_tensor(tmp_path: Path, make: Any) -> None:
    csf = make(tmp_path / "csf")
    plane = opened(csf).planes[2]
    overwrite(csf / plane.fixed.shard.name, plane.fixed.tensor.begin, b"\xff")
    with pytest.raises(CsfToolError) as error:
        loading.weights(loading.loader(), csf)
    assert str(error.value).startswith(f"{plane.fixed.shard.name}: {plane.name}: ")


def test_a_missing_stream_ends_it(csf: Path) -> None:
    for file in (csf / "model-00001-of-00002.safetensors", csf / INDEX):
        file.write_bytes(file.read_bytes().replace(b"nvfp4_csf_exceptions", b"nvfp4_csf_exceptionz", 1))
    with pytest.raises(CsfToolError, match=r"model-00001-of-00002\.safetensors: model\.layers\.0\.mlp"):
        loading.weights(loading.loader(), csf)


@pytest.mark.parametrize("make", [in_folder, mini_container], ids=lambda make: str(make.__name__))
def test_a_csf_checkpoint_without_its_shards_says_what_to_do(tmp_path: Path, make: Any) -> None:
    csf = make(tmp_path / "csf")
    for shard in csf.rglob("*.safetensors"):
        shard.unlink()
    with pytest.raises(CsfToolError, match=r"download the \.safetensors files too"):
        loading.weights(loading.loader(), csf)


@pytest.mark.parametrize("data", [b"", b"\xff" * 50, LFS_POINTER], ids=["empty", "cut off", "pointers"])
@pytest.mark.parametrize("make", PLACES, ids=lambda make: str(make.__name__))
def test_a_csf_checkpoint_of_which_no_shard_can_be_read(tmp_path: Path, make: Any, data: bytes) -> None:
    """By the config it is one; safetensors would not say which file is meant."""
    csf = make(tmp_path / "csf")
    for shard in csf.rglob("*.safetensors"):
        shard.write_bytes(data)
    with pytest.raises(CsfToolError, match=r"model-00001-of-00002\.safetensors"):
        loading.weights(loading.loader(), csf)


@pytest.mark.parametrize("make", PLACES, ids=lambda make: str(make.__name__))
@pytest.mark.parametrize("stream", ["fixed", "exceptions"])
def test_streams_of_one_kind_that_are_all_lost_end_it(tmp_path: Path, make: Any, stream: str) -> None:
    csf = make(tmp_path / "csf")
    for file in csf.rglob("*.safetensors*"):
        other = stream[:-1] + "z"
        file.write_bytes(file.read_bytes().replace(f"nvfp4_csf_{stream}".encode(), f"nvfp4_csz_{other}".encode()))
    with pytest.raises(CsfToolError, match=r"weight_scale: has no NVFP4 (fixed|exceptions?) "):
        loading.weights(loading.loader(), csf)


def test_what_vllm_says_of_other_folders_stays(tmp_path: Path, dense: Path) -> None:
    (dense / "model-00002-of-00002.safetensors").unlink()
    (tmp_path / "empty").mkdir()
    for folder in (dense, tmp_path / "empty"):
        with pytest.raises((RuntimeError, FileNotFoundError)) as stock:
            loading.weights(loading.stock(), folder)
        with pytest.raises(type(stock.value)) as mine:
            loading.weights(loading.loader(), folder)
        assert str(mine.value) == str(stock.value)


def test_a_checkpoint_without_streams_is_left_to_vllm(
    dense: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from csf_tool.engines.vllm import loader

    monkeypatch.setattr(loader.CsfModelLoader, "_with_scales", None)
    assert loading.weights(loading.loader(), dense) == loading.weights(loading.stock(), dense)
    assert said == []


@pytest.mark.parametrize("make", [mini_dense, lambda root: root], ids=["dense", "nothing"])
@pytest.mark.parametrize("choice", ["compressed", "yes"])
def test_keeping_scales_is_no_matter_of_other_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, choice: str
) -> None:
    """Of those without streams, or of whose files the model itself knows."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    monkeypatch.setenv("CSF_TOOL_VLLM", choice)
    monkeypatch.setattr(DefaultModelLoader, "load_model", lambda *_, **__: "loaded by vLLM")
    config = SimpleNamespace(model=str(make(tmp_path)), revision=None)
    assert loading.loader().load_model(None, config) == "loaded by vLLM"


def test_a_choice_that_is_none_ends_the_load_of_a_checkpoint_with_streams(
    csf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CSF_TOOL_VLLM", "yes")
    with pytest.raises(ValueError, match="CSF_TOOL_VLLM must be"):
        loading.loader().load_model(None, SimpleNamespace(model=str(csf), revision=None))


def test_a_vllm_that_reads_csf_is_let(csf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from csf_tool.engines.vllm import loader

    monkeypatch.setattr(loader, "vllm_reads", lambda name: name == "nvfp4")
    assert loading.weights(loading.loader(), csf) == loading.weights(loading.stock(), csf)


def test_this_vllm_does_not_read_csf() -> None:
    from csf_tool.engines.vllm.versions import vllm_reads

    assert not vllm_reads("nvfp4") and not vllm_reads("mxfp4")


def test_a_vllm_that_has_the_streams_name_in_a_loader_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from csf_tool.engines import own_reader
    from csf_tool.engines.vllm import versions

    reader = tmp_path / "model_executor" / "layers" / "quantization" / "b12x" / "nvfp4.py"
    reader.parent.mkdir(parents=True)
    reader.write_text('FIXED = "weight_scale.nvfp4_csf_fixed"')
    monkeypatch.setattr(own_reader, "find_spec", lambda _: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    monkeypatch.setattr(versions, "vllm_reads", versions.vllm_reads.__wrapped__)  # without what it remembers
    assert versions.vllm_reads("nvfp4") and not versions.vllm_reads("mxfp4")


VERSIONS = {"0.26.0": True, "0.32.0+cpu": True, "0.33.1.dev3": True, "0.25.9": False, "1.0.0": False, "dev": False}


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_that_are_known(version: str) -> None:
    from csf_tool.engines.vllm.versions import TESTED

    assert TESTED.includes(version) is VERSIONS[version]


def test_other_versions_are_one_warning(csf: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from csf_tool.engines.version_range import warn_once
    from csf_tool.engines.vllm import versions

    warn_once.cache_clear()
    monkeypatch.setattr(versions, "running_version", lambda: "0.99.0")
    for _ in range(2):
        loading.weights(loading.loader(), csf)
    assert len([line for line in said if line.startswith("vLLM 0.99.0 is outside the range")]) == 1
    warn_once.cache_clear()


def test_what_patterns_leave_out_is_not_downloaded(
    tmp_path: Path, dense: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/csf", mini_hf(tmp_path / "csf"))
    at_the_hub(hub, monkeypatch)
    patterns = ["model-00002*.safetensors"]
    mine = loading.loader(download_dir=str(tmp_path / "downloads"))
    found = loading.weights(mine, "org/csf", allow_patterns_overrides=patterns)
    assert found == loading.weights(loading.stock(), dense, allow_patterns_overrides=patterns)
    assert len(list((tmp_path / "downloads").rglob("*.safetensors"))) == 1


@pytest.mark.parametrize("make", [mini_hf, in_folder, mini_container, home_made], ids=lambda make: str(make.__name__))
@pytest.mark.parametrize("revision", [None, "main"])
def test_a_name_on_the_hub(
    tmp_path: Path, dense: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, make: Any, revision: str | None
) -> None:
    hub.add("org/csf", make(tmp_path / "csf"))
    at_the_hub(hub, monkeypatch)
    mine = loading.loader(download_dir=str(tmp_path / "downloads"))
    found = loading.weights(mine, "org/csf", revision=revision)
    assert found == loading.weights(loading.stock(), dense)
    assert list((tmp_path / "downloads").rglob("*.safetensors"))


@both_ways
@pytest.mark.parametrize("pair", [*NVFP4_PAIRS, "mxfp4 container"])
def test_the_parameters_of_a_real_model(pairs: Pairs, pair: str) -> None:
    from tests.engines.reference_experts import register

    register()
    assert pairs.keys() == {*NVFP4_PAIRS, "mxfp4 container"}
    dense, csf = pairs[pair]
    want, found = loading.parameters(dense), loading.parameters(csf)
    # Where `compress` has written recipes for one algorithm, vLLM gives attention no scales, which were not used.
    unused = {name for name in want if re.search(r"\.attn\.\w+_scale$", name)} - found.keys()
    assert found == {name: data for name, data in want.items() if name not in unused}
    assert any(set(data) != {0} for name, data in want.items() if name.endswith("w13_weight_scale"))


@pytest.mark.parametrize("place", ["container", "folder"])
def test_kimis_scales_that_no_receipt_describes(tmp_path: Path, pairs: Pairs, place: str) -> None:
    """vLLM copies them into bytes: labelled as numbers, they would be converted on the way."""
    from tests.engines.reference_experts import register

    register()
    dense, csf = pairs["mxfp4 container"]
    bare = Path(shutil.copytree(csf, tmp_path / "bare"))
    shutil.rmtree(bare / "receipts")
    if place == "folder":
        shutil.copytree(bare / "metadata", tmp_path / "folder", ignore=lambda *_: [INDEX])
        shutil.copytree(bare / "tensors", tmp_path / "folder", dirs_exist_ok=True)
    assert loading.parameters(tmp_path / place if place == "folder" else bare / "metadata") == loading.parameters(dense)


def at_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have vLLM ask the Hub on the loopback."""
    from huggingface_hub import HfApi, HfFileSystem
    from vllm.model_executor.model_loader import weight_utils
    from vllm.transformers_utils import repo_utils

    HfFileSystem.clear_instance_cache()
    for module in (weight_utils, repo_utils):
        for name, client in (("hf_api", HfApi), ("hf_fs", HfFileSystem)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda client=client: client(endpoint=hub.endpoint))
