"""Several checkpoints in one call of `stats` and `verify`: each as if it were alone, and none stops the others."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from csf_tool.cli import app
from csf_tool.text import size
from tests.documents.test_definitions import check
from tests.fixture_types import Copied
from tests.hub_server import Hub

GOOD = ["nvfp4-csf-hf", "mxfp4-csf-container", "nvfp4-dense"]
COMMANDS = [["stats"], ["verify", "--quick"], ["verify", "--device", "cpu"]]


@pytest.fixture
def here(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of checkpoints: good ones, one that lacks a shard, one with a cut shard, one whose shards are gone."""
    for name in GOOD:
        folder = copied(name).parent
    (copied("nvfp4-csf-hf", "incomplete") / "model-00002-of-00003.safetensors").unlink()
    cut = copied("nvfp4-csf-hf", "cut") / "model-00001-of-00003.safetensors"
    cut.write_bytes(cut.read_bytes()[:-9])
    for shard in copied("nvfp4-csf-hf", "gone").glob("*.safetensors"):
        shard.unlink()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NO_COLOR", "1")
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def rows(result: Result) -> list[dict[str, str]]:
    header, *lines = [line.split("\t") for line in result.stdout.splitlines()]
    return [dict(zip(header, cells, strict=True)) for cells in lines]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_is_as_if_it_were_alone(here: Path, command: list[str]) -> None:
    """The row, the code, the document and the highest exit code; a file, a link and a broken one are among them."""
    Path("a link").symlink_to("nvfp4-csf-hf")
    shard = "nvfp4-csf-hf/model-00001-of-00003.safetensors"
    names = ["gone", "nvfp4-csf-hf", "nowhere", "incomplete", shard, "cut", "nvfp4-dense", ".", "a link", "cut"]
    alone = [run(*command, name, "--json") for name in names]
    together = run(*command, *names, "--json")
    document: Any = json.loads(together.stdout)
    check(document)
    assert [each["argument"] for each in document["checkpoints"]] == names
    assert [each["document"] for each in document["checkpoints"]] == [json.loads(each.stdout) for each in alone]
    assert [each["exit_code"] for each in document["checkpoints"]] == [each.exit_code for each in alone]
    assert together.exit_code == document["exit_code"] == max(each.exit_code for each in alone) == 2
    shown = run(*command, *names)
    assert shown.exit_code == 2
    assert [row["checkpoint"] for row in rows(shown)] == names
    assert [bool(row["fault"]) for row in rows(shown)] == [each.exit_code > 0 for each in alone]
    said = shown.stderr.splitlines()
    for name, each in zip(names, alone, strict=True):
        about = [line for line in said if line.startswith((f"error: {name}: ", f"csf-tool: {name}"))]
        assert bool(about) is bool(each.exit_code), name
        assert len(about) <= 3 * names.count(name)
    assert "Traceback" not in shown.stderr


def test_a_fault_among_good_ones_is_the_exit_code(here: Path) -> None:
    assert run("stats", *GOOD).exit_code == 0
    assert run("stats", "incomplete", *GOOD).exit_code == 1
    assert [row["fault"] for row in rows(run("stats", "incomplete", *GOOD))][1:] == ["", "", ""]
    assert run("verify", "--quick", GOOD[0], "cut", GOOD[1]).exit_code == 1
    assert [row["verdict"] for row in rows(run("verify", "--quick", GOOD[0], "cut", "gone"))] == [
        "NO FAULT FOUND",
        "FAILED",
        "NO VERDICT",
    ]


def test_sizes_are_those_of_the_document(here: Path) -> None:
    for row, name in zip(rows(run("stats", *GOOD)), GOOD, strict=True):
        document = json.loads(run("stats", name, "--json").stdout)
        scales, payload = document["scales"], document["tensor_payload"]
        stored = payload["csf_bytes"] or payload["dense_bytes"]
        assert [row["dense"], row["all tensors"]] == [size(scales["dense_bytes"]), size(stored)]
        assert row["CSF"] == ("" if scales["csf_bytes"] is None else size(scales["csf_bytes"]))
        assert row["planes"] == str(document["planes"] or document["dense_planes"])
        assert row["kind"] == document["checkpoint"]["kind"]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("stats", ["--by", "layer"]),
        ("stats", ["--by", "projection"]),
        ("stats", ["--figure", "x.svg"]),
        ("stats", ["--scales"]),
        ("stats", ["--markdown"]),
        ("verify", ["--against", "nvfp4-dense"]),
        ("verify", ["--hub", "org/name"]),
        ("verify", ["--manifest", "x"]),
        ("verify", ["--quick", "--manifest", "x"]),
        ("verify", ["--only", "x"]),
        ("verify", ["--save-hashes", "x"]),
    ],
    ids=str,
)
def test_options_for_one_are_refused(here: Path, command: str, options: list[str]) -> None:
    before = sorted(here.iterdir())
    result = run(command, *GOOD, *options)
    option = next(word for word in options if word.startswith("--") and word != "--quick")
    said = f"csf-tool: {option}: is for one checkpoint, and 3 are given (mxfp4-csf-container, ...)\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", said)
    assert sorted(here.iterdir()) == before


def test_two_that_are_not_compared_are_said_to_be_so(here: Path) -> None:
    """Who forgets --against must not take two verdicts for a comparison."""
    Path("nvfp4-csf-hf").rename("my csf")
    said = run("verify", "--quick", "my csf", "nvfp4-dense").stderr
    assert said == ("csf-tool: each is checked by itself; to compare: csf-tool verify 'my csf' --against nvfp4-dense\n")
    assert run("verify", "--quick", "my csf", "nvfp4-dense", "-q").stderr == ""
    assert run("verify", "--quick", "my csf", "nvfp4-dense", "gone").stderr.count("compare") == 0


def test_an_unforeseen_error_stops_none_of_the_others(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from csf_tool.look.stats import collect_stats

    errors = [OSError(5, "Input/output error", "/disk/x"), MemoryError(), ZeroDivisionError("a secret")]

    def fail(checkpoint: Any) -> Any:
        if "dense" in checkpoint.label:
            return collect_stats(checkpoint)
        raise errors.pop(0)

    monkeypatch.setattr("csf_tool.look.stats.collect_stats", fail)
    result = run("stats", *["nvfp4-csf-hf"] * 3, "nvfp4-dense")
    assert result.exit_code == 3
    assert [row["fault"] for row in rows(result)] == ["environment"] * 3 + [""]
    assert len(result.stderr.splitlines()) == 3


@pytest.mark.slow
def test_a_shell_glob_and_what_is_on_the_hub(hub: Hub, here: Path) -> None:
    environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(here / "cache")}
    call = f"{sys.executable} -m csf_tool stats org/nvfp4-csf-hf *fp4* org/none 2>/dev/null"
    done = subprocess.run(call, shell=True, capture_output=True, text=True, check=False, env=environment)
    found = [line.split("\t")[:2] for line in done.stdout.splitlines()[1:]]
    assert found == [["org/nvfp4-csf-hf", ""], *([name, ""] for name in sorted(GOOD)), ["org/none", "environment"]]
    assert done.returncode == 3


def test_one_is_the_single_form(here: Path) -> None:
    document = json.loads(run("stats", "nvfp4-dense", "--json").stdout)
    assert document["schema"] == "csf-tool.stats/1"
