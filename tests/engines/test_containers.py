"""Containers in the engine's arguments: the model that vLLM is told of, and the name that it is served by."""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.building import home_made, mini_container, mini_dense, mini_hf
from tests.engines.test_loader import at_the_hub
from tests.hub_server import Hub

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/engines runs these"),
    pytest.mark.slow,
]


def resolved(model: str, **changes: Any) -> SimpleNamespace:
    """The arguments of an engine after the change that the plug-in makes."""
    from csf_tool.engines.vllm.containers import resolve_containers

    class EngineArgs(SimpleNamespace):
        def create_engine_config(self) -> None:
            """Stands for vLLM's."""

        create_model_config = create_engine_config

    resolve_containers(SimpleNamespace(EngineArgs=EngineArgs))  # type: ignore[arg-type]
    args = EngineArgs(model=model, revision=None, tokenizer=None, served_model_name=None, speculative_config=None)
    vars(args).update({"download_dir": None, "ignore_patterns": ["original/**/*"], **changes})
    args.create_engine_config()
    args.create_model_config()
    return args


def test_a_container_is_its_metadata_under_its_own_name(tmp_path: Path) -> None:
    container = str(mini_container(tmp_path / "csf"))
    args = resolved(container)
    assert (args.model, args.served_model_name) == (f"{container}/metadata", [container])
    args = resolved(container, served_model_name=["mine"], tokenizer=container)
    assert (args.served_model_name, args.tokenizer) == (["mine"], f"{container}/metadata")
    assert resolved(container, tokenizer="org/other").tokenizer == "org/other"


def test_a_draft_model_in_a_container(tmp_path: Path) -> None:
    dense, container = str(mini_dense(tmp_path / "dense")), str(mini_container(tmp_path / "csf"))
    args = resolved(dense, speculative_config={"model": container, "num_speculative_tokens": 2})
    assert args.model == dense
    assert args.speculative_config["model"] == f"{container}/metadata"
    assert args.speculative_config["num_speculative_tokens"] == 2


@pytest.mark.parametrize("make", [mini_dense, mini_hf, home_made], ids=lambda make: str(make.__name__))
def test_what_has_its_config_where_vllm_looks_is_let_pass(tmp_path: Path, make: Any) -> None:
    folder = str(make(tmp_path / "model"))
    args = resolved(folder)
    assert (args.model, args.served_model_name) == (folder, None)


@pytest.mark.parametrize("model", ["/nowhere", "s3://bucket/model", "a.gguf"])
def test_what_is_no_folder_and_no_name_is_let_pass(model: str) -> None:
    assert resolved(model).model == model


def test_a_manifest_of_something_else(tmp_path: Path) -> None:
    container = mini_container(tmp_path / "csf")
    (container / "manifest.json").write_text('{"schema": "other"}')
    assert resolved(str(container)).model == str(container)


def test_a_container_on_the_hub(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    container = mini_container(tmp_path / "csf")
    hub.add("org/csf", container)
    at_the_hub(hub, monkeypatch)
    args = resolved("org/csf", download_dir=str(tmp_path / "downloads"))
    model = Path(args.model)
    assert (model.name, args.served_model_name) == ("metadata", ["org/csf"])
    assert model.is_relative_to(tmp_path / "downloads")
    wanted = {p.relative_to(container) for p in container.rglob("*") if p.is_file()}
    assert {p.relative_to(model.parent) for p in model.parent.rglob("*") if p.is_file()} == wanted
