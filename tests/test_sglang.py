"""SGLang's plug-in: hooks by themselves, and in SGLang's own loader, whose sources `.ci/sglang` brings."""

import logging
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from csf_tool.errors import CheckpointError, StreamError
from tests import sglang_source
from tests.building import NVFP4, is_scale, model, recipes_config, write_hf
from tests.fixture_types import Sample

Load = Callable[..., dict[str, torch.Tensor]]


def shards_in(folder: Path) -> list[str]:
    return sorted(map(str, folder.rglob("*.safetensors")))


def stored(files: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """As SGLang's own functions read files."""
    for file in files:
        yield from sorted(load_file(file).items())


def stated_entry_points(group: str) -> list[EntryPoint]:
    """Those that an installed csf-tool has."""
    points = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]["entry-points"]
    return [EntryPoint(name, value, group) for name, value in points[group].items()]


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SGLang as far as the plug-in sees it before anything is loaded: it can be found."""
    if not sglang_source.IS_HERE:
        module = ModuleType("sglang")
        module.__spec__ = ModuleSpec("sglang", None, is_package=True)
        monkeypatch.setitem(sys.modules, "sglang", module)
    yield
    for name in [name for name in sys.modules if name.startswith("csf_tool.engines.sglang")]:
        del sys.modules[name]


@pytest.fixture
def read(sglang: None) -> Load:
    """The weights of some files through the hook, around a function like SGLang's."""
    from csf_tool.engines.sglang.hooks import with_scales

    return lambda files: dict(with_scales(stored, files))


@pytest.fixture
def load(sglang: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """The weights of a model through SGLang's own loader, after its own loading of plug-ins."""
    if not sglang_source.IS_HERE:
        pytest.skip("the sources of SGLang are not here: .ci/sglang brings them")
    monkeypatch.setattr("sys.meta_path", [sglang_source.StubFinder(), *sys.meta_path])
    sglang_source.forget()
    from sglang.srt import plugins
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import DefaultModelLoader

    monkeypatch.setattr(plugins, "entry_points", stated_entry_points)
    plugins.load_plugins()

    def loaded(folder: Path, prefix: str = "", **options: Any) -> dict[str, torch.Tensor]:
        loader = DefaultModelLoader(LoadConfig(**options))
        source = DefaultModelLoader.Source(str(folder), None, prefix)
        return dict(loader._get_weights_iterator(source))

    yield loaded
    sglang_source.forget()


@pytest.fixture
def broken(sample: Sample, tmp_path: Path) -> tuple[Path, str]:
    """A shard with a row base that is too high, and the name of its scale."""
    file = tmp_path / "model.safetensors"
    tensors = load_file(shards_in(sample("nvfp4-csf-hf"))[0])
    name = next(name for name in tensors if name.endswith("_csf_fixed"))
    tensors[name][0, 0] = 255
    save_file(tensors, file, {"format": "pt"})
    return file, name.rpartition(".")[0]


@pytest.mark.parametrize(
    ("csf", "dense"),
    [("nvfp4-csf-hf", "nvfp4-dense"), ("nvfp4-dense", "nvfp4-dense"), ("mxfp4-csf-container", "mxfp4-dense")],
)
def test_weights_are_those_of_the_dense_checkpoint(read: Load, sample: Sample, csf: str, dense: str) -> None:
    assert_same(read(shards_in(sample(csf))), dict(stored(shards_in(sample(dense)))))


def test_some_of_the_files(read: Load, sample: Sample) -> None:
    """As with `allow_patterns_overrides`, or a rank's share."""
    assert_same(read(shards_in(sample("nvfp4-csf-hf"))[1:2]), dict(stored(shards_in(sample("nvfp4-dense"))[1:2])))


def test_a_broken_stream_ends_the_load(read: Load, broken: tuple[Path, str]) -> None:
    file, scale = broken
    with pytest.raises(StreamError, match=f"model.safetensors: {scale}: row 0: base 255 is above 240"):
        read([str(file)])


def test_streams_that_are_no_plane_are_not_passed_over(read: Load, broken: tuple[Path, str]) -> None:
    file, scale = broken
    tensors = load_file(file)
    del tensors[f"{scale}.nvfp4_csf_exceptions"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=scale):
        read([str(file)])


def test_a_checkpoint_of_which_all_streams_are_missing_ends_the_load(sglang: None, tmp_path: Path) -> None:
    """It has no tensor that would tell, but its config does."""
    from csf_tool.engines.sglang.hooks import with_containers

    parts = model(NVFP4, 2)
    dense = write_hf(tmp_path / "dense", parts, config=recipes_config(2))
    lost = {name: [one for one in tensors if not is_scale(one)] for name, tensors in parts.items()}
    csf = write_hf(tmp_path / "csf", lost, config=recipes_config(2))

    def find(_: Any, folder: str) -> tuple[str, list[str], bool]:
        return folder, shards_in(Path(folder)), True

    assert with_containers(find, None, str(dense)) == find(None, str(dense))
    with pytest.raises(CheckpointError, match="has a global scale but no block scale"):
        with_containers(find, None, str(csf))


def test_a_container_that_lacks_a_shard_is_not_loaded_without_it(sglang: None, sample: Sample, tmp_path: Path) -> None:
    """By whatever name it is given: SGLang would not know that the shard should be there."""
    from csf_tool.engines.sglang.hooks import with_containers

    def find(*_: Any) -> tuple[str, list[str], bool]:
        raise RuntimeError("Cannot find any model weights")

    root = tmp_path / "container"
    shutil.copytree(sample("mxfp4-csf-container"), root)
    (tmp_path / "link").symlink_to(root / "metadata")
    names = [root / "metadata", tmp_path / "link"]
    for name in names:
        assert [Path(file).name for file in with_containers(find, None, str(name))[1]] == [
            Path(file).name for file in shards_in(root)
        ]
    Path(shards_in(root)[0]).unlink()
    for name in names:
        with pytest.raises(CheckpointError, match=r"model-00001-of-00002\.safetensors: is missing"):
            with_containers(find, None, str(name))


def test_what_is_read_by_sglang_itself_is_left_to_it(
    read: Load, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("csf_tool.engines.sglang.weights.sglang_reads", lambda _: True)
    files = shards_in(sample("nvfp4-csf-hf"))
    assert_same(read(files), dict(stored(files)))


def test_sglangs_loader_gives_the_weights_of_the_dense_checkpoint(
    load: Load, sample: Sample, caplog: pytest.LogCaptureFixture
) -> None:
    want = load(sample("nvfp4-dense"))
    caplog.set_level(logging.INFO, "sglang.csf_tool")
    assert_same(load(sample("nvfp4-csf-hf")), want)
    assert [record.message.partition(", in ")[0] for record in caplog.records if record.name == "sglang.csf_tool"] == [
        f"{sample('nvfp4-csf-hf')}: csf-tool decoded 36 CSF planes, 187.81 KiB to 324.00 KiB of block scales"
    ]
    assert_same(want, dict(stored(shards_in(sample("nvfp4-dense")))))


def test_sglangs_loader_reads_containers(load: Load, sample: Sample, tmp_path: Path) -> None:
    assert_same(load(sample("mxfp4-csf-container") / "metadata"), load(sample("mxfp4-dense")))
    with pytest.raises(RuntimeError, match="Cannot find any model weights"):
        load(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"load_format": "safetensors"},
        {"model_loader_extra_config": {"enable_multithread_load": False}},
        {"prefix": "language_model."},
    ],
    ids=["safetensors", "one-thread", "prefix"],
)
def test_sglangs_options(load: Load, sample: Sample, options: dict[str, Any]) -> None:
    assert_same(load(sample("nvfp4-csf-hf"), **options), load(sample("nvfp4-dense"), **options))


def test_layers_of_a_draft_model(load: Load, sample: Sample, tmp_path: Path) -> None:
    """SGLang renames the tensors of the draft layer that it wants, and leaves out those of others."""
    for name in ("nvfp4-csf-hf", "nvfp4-dense"):
        (tmp_path / name).mkdir()
        tensors = dict(stored(shards_in(sample(name))))
        renamed = {f"model.mtp.layers.{key.partition('layers.')[2]}": tensor for key, tensor in tensors.items()}
        save_file(renamed, tmp_path / name / "model.safetensors", {"format": "pt"})
    want = load(tmp_path / "nvfp4-dense", draft_model_idx=1)
    assert any(name.startswith("model.mtp.layers.0.") for name in want)
    assert not any(name.startswith("model.mtp.layers.1.") for name in want)
    assert_same(load(tmp_path / "nvfp4-csf-hf", draft_model_idx=1), want)


def test_a_broken_stream_ends_sglangs_load(load: Load, broken: tuple[Path, str]) -> None:
    file, scale = broken
    with pytest.raises(StreamError, match=scale):
        load(file.parent)


def test_an_sglang_with_other_functions_is_left_as_it_is(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    from csf_tool.engines.sglang import plugin

    HookRegistry.reset()
    monkeypatch.setattr(plugin, "READERS", ("gone",))
    plugin.register()
    assert not HookRegistry._hooks
    assert [record.levelname for record in caplog.records if record.name == "sglang.csf_tool"] == ["WARNING"]
    assert "csf-tool expand" in caplog.text


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [("0.5.14", True), ("0.5.23", True), ("0.5.23.post1", True), ("0.6.0", False), ("x", False)],
)
def test_versions(sglang: None, version: str, is_tested: bool) -> None:
    from csf_tool.engines.sglang import versions

    assert versions.TESTED.includes(version) is is_tested
