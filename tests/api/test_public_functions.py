"""What commands do, from Python: the same documents, errors that can be caught, nothing printed."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import csf_tool
from csf_tool.cli import app
from csf_tool.errors import CheckpointError, CsfToolError, EnvironmentFault, UsageError
from tests.building import tree
from tests.commands import document
from tests.fixture_types import Copied, Sample
from tests.hub_server import Hub

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(csf_tool, name)
    for name in ("stats", "plan", "verify", "identity", "expand", "compress", "convert", "finish")
}
NOT_IN_PYTHON = {"by", "figure", "markdown", "dry_run", "yes", "as_json", "quiet", "verbose"}
"""Options about what is printed, or asked."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_those_of_the_command(name: str) -> None:
    there = {param.name for param in typer.main.get_command(app).commands[name].params}  # type: ignore[attr-defined]
    renamed = {"compute_hashes": "hash", "checkpoints": "checkpoint"}
    wanted = {renamed.get(option, option) for option in there}
    left_out = NOT_IN_PYTHON - ({"by"} if name == "identity" else set())
    assert inspect.signature(FUNCTIONS[name]).parameters.keys() - {"on_progress"} == wanted - left_out
    assert all(f"{option}: " in (FUNCTIONS[name].__doc__ or "") for option in wanted - left_out)


def test_what_looks_and_proves_says_what_the_command_says(sample: Sample) -> None:
    folder, dense = sample("nvfp4-csf-hf"), sample("nvfp4-dense")
    assert csf_tool.stats(folder) == document("stats", folder)
    assert csf_tool.stats(folder, scales=True) == document("stats", folder, "--scales")
    found: dict[str, Any] = {**csf_tool.plan(folder, tp=2, gpu_memory="1GiB")}
    assert found == document("plan", folder, "--tp", 2, "--gpu-memory", "1GiB")
    assert csf_tool.plan(folder, tp=2, gpu_memory=1 << 30) == found
    assert csf_tool.identity(folder, by="sizes") == document("identity", folder, "--by", "sizes")
    proof = csf_tool.verify(folder, against=dense, device="cpu")
    assert proof == document("verify", folder, "--against", dense, "--device", "cpu")
    assert proof["ok"]


def test_a_path_a_name_and_an_opened_checkpoint_are_the_same(sample: Sample) -> None:
    folder = sample("nvfp4-csf-hf")
    assert csf_tool.stats(folder) == csf_tool.stats(str(folder)) == csf_tool.stats(csf_tool.open_checkpoint(folder))


@pytest.mark.slow
def test_names_on_the_hub(hub: Hub) -> None:
    assert csf_tool.stats("org/nvfp4-csf-hf")["planes"] == 36
    found = csf_tool.verify("org/nvfp4-csf-hf", against="org/nvfp4-dense", device="cpu")
    assert found["ok"]
    with pytest.raises(CsfToolError):
        csf_tool.stats("org/nothing")


def without_times(found: Any) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in ("seconds", "destination")}


@pytest.mark.slow
def test_what_writes_says_what_the_command_says(sample: Sample, tmp_path: Path) -> None:
    source = sample("nvfp4-csf-hf")
    expanded = csf_tool.expand(source, tmp_path / "dense", device="cpu", jobs=1)
    by_command = document("expand", source, tmp_path / "dense2", "--device", "cpu", "--jobs", 1)
    assert without_times(expanded) == without_times(by_command)
    assert tree(tmp_path / "dense") == tree(tmp_path / "dense2")
    again = csf_tool.expand(source, tmp_path / "dense", device="cpu")
    assert again["was_complete"] or again["resumed_shards"]

    globs = ["*.layers.0.*", "*.layers.1.*"]
    made = csf_tool.compress(tmp_path / "dense", tmp_path / "csf", exclude=globs, device="cpu")
    options = [word for glob in globs for word in ("--exclude", glob)]
    assert without_times(made) == without_times(
        document("compress", tmp_path / "dense", tmp_path / "csf2", *options, "--device", "cpu")
    )
    moved = csf_tool.convert(tmp_path / "csf", tmp_path / "container", to="container", family="mini")
    assert moved["to"] == "container"
    assert csf_tool.verify(tmp_path / "container", device="cpu")["ok"]


@pytest.mark.slow
def test_parts_and_their_finish(sample: Sample, tmp_path: Path) -> None:
    source, out = sample("nvfp4-csf-hf"), tmp_path / "out"
    assert csf_tool.expand(source, out, shards="1/2", device="cpu")["missing_shards"]
    with pytest.raises(EnvironmentFault, match="not complete"):
        csf_tool.finish(source, out)
    csf_tool.expand(source, out, shards="2/2", device="cpu")
    assert csf_tool.finish(source, out)["schema"] == "csf-tool.expand/1"


@pytest.mark.slow
def test_a_source_that_is_consumed(sample: Sample, tmp_path: Path) -> None:
    source = Path(shutil.copytree(sample("nvfp4-csf-hf"), tmp_path / "source"))
    done = csf_tool.expand(source, tmp_path / "out", consume_source=True, device="cpu")
    assert len(done["removed_sources"]) == 3
    if hasattr(os, "getxattr") and not list(source.glob("*.safetensors")):
        again = csf_tool.expand(source, tmp_path / "out", consume_source=True, device="cpu")
        assert again["was_complete"]
        words = ["expand", source, tmp_path / "out", "--consume-source", "--yes", "--device", "cpu"]
        assert document(*words) == again


def test_a_verdict_is_a_value(copied: Copied, sample: Sample) -> None:
    folder = copied("mxfp4-csf-container")
    shard = next(folder.rglob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    found = csf_tool.verify(folder, device="cpu")
    assert not found["ok"]
    assert found["failed_files"]
    assert csf_tool.stats(folder)["problems"] == []


def test_progress_is_told(sample: Sample) -> None:
    told: list[tuple[int, int]] = []
    csf_tool.verify(sample("nvfp4-csf-hf"), device="cpu", on_progress=lambda done, total: told.append((done, total)))
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 0
    assert told == sorted(told)


@pytest.mark.slow
def test_nothing_is_printed_and_torch_is_not_needed(sample: Sample, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["torch"] = sys.modules["triton"] = None
import csf_tool
csf_tool.stats({str(sample("nvfp4-csf-hf"))!r}, scales=True)
csf_tool.verify({str(sample("nvfp4-csf-hf"))!r})
csf_tool.expand({str(sample("nvfp4-csf-hf"))!r}, {str(tmp_path / "out")!r})
assert "rich" not in sys.modules and "typer" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


LOADING = ("open_checkpoint", "safe_open", "load_file", "iter_tensors", "load_stack")
SOURCE_AND_DESTINATION = {"expand", "compress", "convert", "finish"}


@pytest.mark.parametrize("wrong", [None, 5, b"x", ["x"], 1.5], ids=repr)
@pytest.mark.parametrize("name", [*FUNCTIONS, *LOADING])
def test_a_wrong_type_is_named(name: str, wrong: object, sample: Sample, tmp_path: Path) -> None:
    """The message begins with the argument's name."""
    function: Any = getattr(csf_tool, name)
    rest: dict[str, Any] = {"to": "hf"} if name == "convert" else {}
    rest |= {"layer": 0, "projection": "gate"} if name == "load_stack" else {}
    first = next(iter(inspect.signature(function).parameters))
    both = {"destination": tmp_path / "out"} if name in SOURCE_AND_DESTINATION else {}
    with pytest.raises(TypeError, match=f"^{first}: "):
        function(wrong, **both, **rest)
    if name in SOURCE_AND_DESTINATION:
        with pytest.raises(TypeError, match=r"^destination: "):
            function(sample("nvfp4-csf-hf"), wrong, **rest)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_type_of_any_option_is_named(name: str, sample: Sample, tmp_path: Path) -> None:
    required = {"convert": {"to": "hf"}}.get(name, {})
    places = [sample("nvfp4-csf-hf"), *([tmp_path / "out"] if name in SOURCE_AND_DESTINATION else [])]
    for option, parameter in inspect.signature(FUNCTIONS[name]).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            with pytest.raises(TypeError, match=f"^{option}: takes .*, not complex$"):
                FUNCTIONS[name](*places, **required | {option: 1j})


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        ("stats", {"checkpoint": ""}, "checkpoint: is empty"),
        ("stats", {"checkpoint": " "}, "checkpoint: is empty"),
        ("expand", {"destination": ""}, "destination: is empty"),
        ("verify", {"cross_check": "some"}, "cross_check 'some': give all or sample or none"),
        ("verify", {"jobs": 0}, "jobs 0: give 1 or more"),
        ("verify", {"quick": True, "only": "x"}, "--quick"),
        ("verify", {"device": "gpu"}, "give auto, cpu, cuda or cuda:N"),
        ("identity", {"by": "colour"}, "by 'colour': give digests or sizes"),
        ("convert", {"to": "zip"}, "to 'zip': give hf or container or serving"),
        ("plan", {"gpu_memory": "much"}, "gpu_memory much: "),
        ("verify", {"tensors_only": True}, "--tensors-only"),
        ("convert", {"to": "hf", "checkpoint_root": "/x"}, "--checkpoint-root"),
        ("convert", {"to": "hf", "family": "x"}, "--family"),
        ("compress", {"to": "hf", "source_revision": "x"}, "--source-revision"),
        ("plan", {"tp": 0}, "tp 0: give 1 or more"),
        ("expand", {"shards": "3"}, "I/N"),
        ("expand", {"consume_source": True, "shards": "1/2"}, "--consume-source"),
    ],
)
def test_wrong_values_are_usage_errors(
    function: str, given: dict[str, Any], message: str, sample: Sample, tmp_path: Path
) -> None:
    first = next(iter(inspect.signature(FUNCTIONS[function]).parameters))
    places = {first: sample("nvfp4-csf-hf")}
    places |= {"destination": tmp_path / "out"} if function in SOURCE_AND_DESTINATION else {}
    with pytest.raises(UsageError, match=re.escape(message)):
        FUNCTIONS[function](**places | given)


def test_errors_are_those_of_the_package(copied: Copied, tmp_path: Path) -> None:
    folder = copied("nvfp4-csf-hf")
    shard = next(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError):
        csf_tool.expand(folder, tmp_path / "out", device="cpu")
    with pytest.raises(EnvironmentFault, match="save_hashes"):
        csf_tool.verify(folder, save_hashes=tmp_path / "no" / "x")
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError):
        csf_tool.stats(folder)


def test_what_the_system_refuses_is_an_error_of_the_package(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error", "/disk/x")

    monkeypatch.setattr("csf_tool.api.look.collect_stats", fail)
    with pytest.raises(EnvironmentFault, match="/disk/x: Input/output error"):
        csf_tool.stats(sample("nvfp4-csf-hf"))


def test_home_is_what_a_path_begins_with(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: Copied
) -> None:
    """A folder of the name `~` is never made: who removes it may remove their home."""
    monkeypatch.setenv("HOME", str(copied("nvfp4-csf-hf").parent))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert csf_tool.stats("~/nvfp4-csf-hf")["planes"] == 36
    assert len(csf_tool.open_checkpoint("~/nvfp4-csf-hf").planes) == 36
    csf_tool.expand("~/nvfp4-csf-hf", "~/dense", device="cpu")
    assert (tmp_path / "dense" / "config.json").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []
