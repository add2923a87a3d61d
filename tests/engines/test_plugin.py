"""The entry point, on a tree of modules that stands for vLLM's: what it imports, and what it leaves as it was."""

import logging
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

LOADERS = """
import logging
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
logger = logging.getLogger(__name__)
class Other: ...
_LOAD_FORMAT_TO_MODEL_LOADER = {"auto": DefaultModelLoader, "hf": DefaultModelLoader, "dummy": Other, "pt": Other}
def register_model_loader(name):
    def register(loader):
        logger.warning("is already registered")
        _LOAD_FORMAT_TO_MODEL_LOADER[name] = loader
        return loader
    return register
"""

ARGUMENTS = """
class EngineArgs:
    def create_engine_config(self): ...
    def create_model_config(self): ...
"""

FILES = {
    "__init__": "",
    "version": "__version__ = '0.32.0'",
    "config/__init__": "class ModelConfig: ...\nclass LoadConfig: ...",
    "engine/__init__": "",
    "engine/arg_utils": ARGUMENTS,
    "model_executor/__init__": "",
    "model_executor/model_loader/__init__": LOADERS,
    "model_executor/model_loader/default_loader": "class DefaultModelLoader:\n    class Source: ...",
    "model_executor/model_loader/ep_weight_filter": "def parse_expert_id(name): ...",
    "model_executor/models/__init__": "",
    "model_executor/models/utils": "def get_pp_missing_layer_names(model): return []",
}

MODEL_LOADER = "vllm.model_executor.model_loader"


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tree of modules with vLLM's names in place of it, nothing of it imported, and csf_tool's plug-in neither."""
    for name, text in FILES.items():
        file = tmp_path / "vllm" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    mine = ("vllm", "csf_tool.engines.vllm")
    before = {name: module for name, module in sys.modules.items() if name.startswith(mine)}
    finders = list(sys.meta_path)
    for name in before:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in finders if type(finder).__name__ != "_Watch"]  # of another test, say
    yield tmp_path / "vllm"
    for name in [name for name in sys.modules if name.startswith(mine)]:
        del sys.modules[name]
    sys.modules.update(before)
    sys.meta_path[:] = finders


def register() -> None:
    from csf_tool.engines.vllm.plugin import register

    register()


def loaders() -> dict[str, Any]:
    module: ModuleType = import_module(MODEL_LOADER)
    return {name: loader.__name__ for name, loader in module._LOAD_FORMAT_TO_MODEL_LOADER.items()}


REGISTERED = {"auto": "CsfModelLoader", "hf": "CsfModelLoader", "dummy": "Other", "pt": "Other"}
UNTOUCHED = {"auto": "DefaultModelLoader", "hf": "DefaultModelLoader", "dummy": "Other", "pt": "Other"}


def test_the_package_has_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {"csf": "csf_tool.engines.vllm.plugin:register"}
    assert not [need for need in project["dependencies"] if "vllm" in need]


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_entry_point_is_installed() -> None:
    (found,) = [point for point in entry_points(group="vllm.general_plugins") if point.name == "csf"]
    found.load()()


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
@pytest.mark.parametrize("module", ["", ".plugin", ".loader", ".places"])
def test_without_vllm_one_line_says_what_is_missing(module: str) -> None:
    code = f"import csf_tool.engines.vllm{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.endswith("works inside vLLM, which is not installed here (pip install vllm)")


def test_registering_imports_nothing_of_vllm_and_next_to_nothing_of_csf_tool(vllm: Path) -> None:
    code = (
        "import sys, logging; before = set(sys.modules)\n"
        "from csf_tool.engines.vllm.plugin import register; register(); register()\n"
        "print(*sorted(m for m in set(sys.modules) - before if m.startswith(('vllm', 'csf_tool', 'torch', 'numpy'))))"
    )
    env = {"PYTHONPATH": f"{vllm.parent}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == [
        "csf_tool",
        "csf_tool.engines",
        "csf_tool.engines.vllm",
        "csf_tool.engines.vllm.plugin",
        "csf_tool.version",
    ]


def test_the_loader_is_registered_when_vllm_imports_its_own(vllm: Path, caplog: pytest.LogCaptureFixture) -> None:
    register()
    assert MODEL_LOADER not in sys.modules
    assert loaders() == REGISTERED
    assert caplog.records == []  # vLLM's warnings of replaced loaders are not for the user
    assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_Watch" and finder.name == MODEL_LOADER]  # type: ignore[attr-defined]


def test_the_loader_is_registered_where_vllm_has_imported_its_own(vllm: Path) -> None:
    assert loaders() == UNTOUCHED
    register()
    assert loaders() == REGISTERED


@pytest.mark.parametrize("first", ["model_executor/models/utils", "config/__init__"])
def test_any_module_of_vllm_may_be_imported_first(vllm: Path, caplog: pytest.LogCaptureFixture, first: str) -> None:
    """A module that imports the loaders is half there when they are: all of vLLM's models import one that does."""
    before = f"import {MODEL_LOADER}\n" if "models" in first else ""
    (vllm / f"{first}.py").write_text(before + FILES[first])
    register()
    import_module(f"vllm.{first}".replace("/", ".").removesuffix(".__init__"))
    assert loaders() == REGISTERED
    assert caplog.records == []


def test_a_vllm_that_does_not_tell_of_other_ranks_has_all_decoded(vllm: Path) -> None:
    (vllm / "model_executor" / "models" / "utils.py").write_text("")
    register()
    assert loaders() == REGISTERED
    from csf_tool.engines.vllm.model import missing_on_this_rank

    assert not missing_on_this_rank(None)("model.layers.0.mlp.gate.weight")  # type: ignore[arg-type]


def test_registering_again_changes_nothing(vllm: Path) -> None:
    register()
    register()
    assert len([finder for finder in sys.meta_path if type(finder).__name__ == "_Watch"]) == 2
    assert loaders() == REGISTERED
    from vllm.engine.arg_utils import EngineArgs

    first = EngineArgs.create_engine_config
    register()
    assert loaders() == REGISTERED
    assert EngineArgs.create_engine_config is first


def test_what_another_plugin_has_registered_stays(vllm: Path) -> None:
    loaders()
    module = sys.modules[MODEL_LOADER]
    module._LOAD_FORMAT_TO_MODEL_LOADER["hf"] = module.Other
    register()
    assert loaders() == REGISTERED | {"hf": "Other"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("model_executor/model_loader/__init__", LOADERS.replace("_LOAD_FORMAT_TO", "_FORMATS_TO")),
        ("model_executor/model_loader/__init__", LOADERS.replace("return register\n", "return 1 / (name == 'auto')\n")),
        ("model_executor/model_loader/ep_weight_filter", ""),
        ("config/__init__", ""),
    ],
    ids=["no table", "fails halfway", "no filter", "no config"],
)
def test_what_goes_wrong_is_one_warning_and_vllm_is_as_it_was(
    vllm: Path, caplog: pytest.LogCaptureFixture, file: str, text: str
) -> None:
    (vllm / f"{file}.py").write_text(text)
    register()
    module = __import__(MODEL_LOADER, fromlist=["_"])
    table = getattr(module, "_LOAD_FORMAT_TO_MODEL_LOADER", None) or module._FORMATS_TO_MODEL_LOADER
    assert {name: loader.__name__ for name, loader in table.items()} == UNTOUCHED
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "csf-tool expand writes a checkpoint that vLLM reads without csf-tool" in record.getMessage()


@pytest.mark.parametrize("kept", ["create_engine_config", "create_model_config"])
def test_arguments_that_have_changed_are_one_warning(vllm: Path, caplog: pytest.LogCaptureFixture, kept: str) -> None:
    (vllm / "engine" / "arg_utils.py").write_text(f"class EngineArgs:\n    def {kept}(self): ...")
    register()
    arguments = import_module("vllm.engine.arg_utils")
    assert len(caplog.records) == 1
    assert not hasattr(getattr(arguments.EngineArgs, kept), "resolves_containers")


REPO_UTILS = {
    "renamed": ("def other(): ...", 1),
    "other arguments": ("def file_or_path_exists(model): ...", 1),
    "not reachable": ("def file_or_path_exists(*_): raise ConnectionError", 0),
    "not reachable, by another error": ("def file_or_path_exists(*_): raise KeyError", 0),
}


@pytest.mark.parametrize("change", REPO_UTILS)
def test_looking_for_containers_never_ends_the_start_of_an_engine(
    vllm: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    """Of any model, dense ones too: vLLM says by itself what it cannot reach."""
    text, warnings = REPO_UTILS[change]
    (vllm / "transformers_utils").mkdir()
    (vllm / "transformers_utils" / "repo_utils.py").write_text(text)
    body = "    model, revision, speculative_config = 'org/model', None, None\n"
    body += "    def create_model_config(self): return self.model\n"
    body += "    def create_engine_config(self): return self.create_model_config()\n"
    (vllm / "engine" / "arg_utils.py").write_text("class EngineArgs:\n" + body)
    register()
    assert import_module("vllm.engine.arg_utils").EngineArgs().create_engine_config() == "org/model"
    assert len(caplog.records) == warnings
