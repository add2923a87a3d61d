"""Every JSON document is what its definition says, and docs/json.md says what the definitions say."""

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, is_typeddict

import pytest
from typer.testing import CliRunner

import csf_tool
from csf_tool.cli import app
from tests.documents.definitions import Definition, definitions, misfits
from tests.fixture_types import Sample
from tests.test_other_scales import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
HEAD = "\n## Documents\n"
"""What is written by hand stands above it."""

DEFINED = definitions()
WHOLE = {definition.schema: definition for definition in DEFINED.values() if definition.schema}


def run(*arguments: object) -> tuple[int, Any]:
    """A command with --json: its exit code, and its only document."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout)


def check(document: Any) -> None:
    definition = WHOLE[document["schema"]]
    fields = {name: hint for name, (hint, _) in definition.fields.items()}
    assert document.keys() == fields.keys()
    assert [each for name, hint in fields.items() for each in misfits(document[name], hint, name)] == []


COMMANDS = {
    "stats": "stats/1",
    "stats --scales": "stats/1",
    "verify --quick": "verify/1",
    "verify --device cpu": "verify/1",
    "identity --hash": "identity/1",
    "inspect": "inspect-planes/1",
    "inspect *layers.0.*experts.0.*": "inspect-planes/1",
    "inspect *layers.0.*experts.0.*w1* *": "error/1",
    "plan": "plan/1",
    "plan --tp 2 --gpu-memory 1GiB --resident 2": "plan/1",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nvfp4-csf-hf", "mxfp4-csf-container", "two-codecs-csf-hf", "nvfp4-dense"])
@pytest.mark.parametrize("command", COMMANDS)
def test_documents_that_look_and_prove(sample: Sample, name: str, command: str) -> None:
    words = command.split()
    _, document = run(words[0], sample(name), *words[1:])
    if "dense" not in name and name != "two-codecs-csf-hf":
        assert document["schema"] == f"csf-tool.{COMMANDS[command]}"
    check(document)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nvfp4-csf-hf", "mxfp4-csf-container", "nvfp4-dense"])
def test_documents_of_damaged_checkpoints(sample: Sample, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(sample(name), tmp_path / name))
    shard = next(folder.rglob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    for command in ("stats", "verify", "identity", "inspect", "plan"):
        code, document = run(command, folder)
        assert code or command in ("identity", "inspect")
        check(document)
    code, document = run("expand", folder, tmp_path / "out")
    assert code
    assert document["schema"] == "csf-tool.error/1"
    check(document)


def test_planes_and_scales_that_are_none(sample: Sample, tmp_path: Path) -> None:
    plane = csf_tool.open_checkpoint(sample("nvfp4-csf-hf")).planes[0]
    for folder in ("nvfp4-csf-hf", "nvfp4-dense"):
        _, document = run("inspect", sample(folder), plane.name)
        assert document["schema"] == "csf-tool.inspect-plane/1"
        check(document)
    for i, kind in enumerate(KINDS):
        root = kind.write(tmp_path / str(i))
        for arguments, schema in (([kind.scale.name], "inspect-scale/1"), ([], "inspect-scales/1")):
            _, document = run("inspect", root, *arguments)
            assert document["schema"] == f"csf-tool.{schema}"
            check(document)
        check(run("stats", root)[1])


@pytest.mark.slow
def test_documents_of_runs_that_write(sample: Sample, tmp_path: Path) -> None:
    dense, csf, container = tmp_path / "dense", tmp_path / "csf", tmp_path / "container"
    runs: list[Sequence[object]] = [
        ("expand", sample("nvfp4-csf-hf"), dense, "--shards", "1/2"),
        ("expand", sample("nvfp4-csf-hf"), dense),
        ("expand", sample("nvfp4-csf-hf"), dense),
        ("finish", sample("nvfp4-csf-hf"), dense),
        ("compress", dense, csf, "--exclude", "*.layers.0.*"),
        ("compress", dense, csf, "--exclude", "*.layers.0.*"),
        ("convert", csf, container, "--to", "container"),
    ]
    for arguments in runs:
        code, document = run(*arguments)
        assert code == 0, document
        assert document["schema"] == f"csf-tool.{'expand' if arguments[0] == 'finish' else arguments[0]}/1"
        check(document)


ERRORS: list[tuple[int, str, list[object]]] = [
    (2, "usage", ["stats", "nowhere"]),
    (2, "usage", ["stats"]),
    (2, "usage", ["nothing"]),
    (2, "usage", ["stats", "x", "--nothing"]),
    (2, "usage", ["stats", ""]),
    (2, "usage", ["ls", "nowhere"]),
    (2, "usage", ["verify", "x", "--jobs", "many"]),
    (2, "usage", ["verify", "x", "--quick", "--only", "y"]),
    (2, "usage", ["identity", "x", "--by", "colour"]),
    (2, "usage", ["plan", "x", "--gpu-memory", "much"]),
    (2, "usage", ["inspect", "x", "--figure", "x.doc"]),
    (2, "usage", ["expand", "x"]),
    (2, "usage", ["expand", "x", "y"]),
    (2, "usage", ["compress", "x", "y"]),
    (2, "usage", ["convert", "x", "y", "--to", "hf"]),
    (2, "usage", ["finish", "x", "y"]),
    (3, "environment", ["verify", "x", "--save-hashes", "/nowhere/hashes"]),
    (3, "environment", ["bench", "--device", "cuda:99"]),
]


@pytest.mark.parametrize(("code", "kind", "arguments"), ERRORS, ids=str)
def test_an_error_is_a_document_as_well(code: int, kind: str, arguments: list[object]) -> None:
    """Any command's, whoever finds it; the line on standard error and the exit code are as without --json."""
    said = CliRunner().invoke(app, list(map(str, arguments)))
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    document = json.loads(result.stdout)
    check(document)
    assert (result.exit_code, document["exit_code"], document["error"]["code"]) == (code, code, kind)
    assert (said.exit_code, said.stdout, said.stderr) == (code, "", result.stderr)


def test_every_command_with_json_has_its_error_tried() -> None:
    group = __import__("typer").main.get_command(app)
    takers = {name for name, command in group.commands.items() if any("--json" in p.opts for p in command.params)}
    assert takers == {str(arguments[0]) for _, _, arguments in ERRORS} - {"nothing"}


def test_an_unforeseen_error_is_a_document_as_well(monkeypatch: pytest.MonkeyPatch, sample: Sample) -> None:
    for error in (OSError(5, "Input/output error", "/disk/x"), MemoryError(), ZeroDivisionError("a secret")):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("csf_tool.look.stats.collect_stats", fail)
        code, document = run("stats", sample("nvfp4-dense"))
        check(document)
        assert (code, document["exit_code"], document["error"]["code"]) == (3, 3, "environment")


def test_every_field_has_a_meaning() -> None:
    lacking = [f"{d.name}.{name}" for d in DEFINED.values() for name, (_, text) in d.fields.items() if text[-1:] != "."]
    assert lacking == []
    assert [d.name for d in DEFINED.values() if d.meaning[-1:] != "."] == []


def test_the_page_says_what_the_definitions_say() -> None:
    """CSF_TOOL_UPDATE_SNAPSHOTS=1 rewrites it."""
    if os.environ.get("CSF_TOOL_UPDATE_SNAPSHOTS"):
        PAGE.write_text(PAGE.read_text().partition(HEAD)[0] + HEAD + rendered())
    assert PAGE.read_text().partition(HEAD)[2] == rendered()


def rendered() -> str:
    """The part of the page that is made from the definitions."""
    whole = sorted(WHOLE.values(), key=lambda definition: str(definition.schema))
    named = sorted(named_in([hint for d in whole for hint, _ in d.fields.values()]))
    parts = [DEFINED[name] for name in named if not DEFINED[name].schema]
    lines = [f"\n### {d.schema}\n\n{d.meaning}\n\n{table(d)}" for d in whole]
    lines += ["\n## Parts of documents\n"]
    return "".join(lines + [f"\n### {d.name}\n\n{d.meaning}\n\n{table(d)}" for d in parts])


def table(definition: Definition) -> str:
    rows = [f"| `{name}` | {words(hint)} | {text} |\n" for name, (hint, text) in definition.fields.items()]
    return "| field | type | meaning |\n| --- | --- | --- |\n" + "".join(rows)


def named_in(hints: Sequence[Any]) -> set[str]:
    """The parts that types name, and those that these name in turn."""
    found: set[str] = set()
    for hint in hints:
        if is_typeddict(hint):
            found |= {hint.__name__} | named_in([kind for kind, _ in DEFINED[hint.__name__].fields.values()])
        else:
            found |= named_in([each for each in get_args(hint) if not isinstance(each, str)])
    return found


PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null"}


def words(hint: Any) -> str:
    """A type as the page names it."""
    origin, args = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        name = DEFINED[hint.__name__].schema or hint.__name__
        return f"[{name}](#{re.sub('[./]', '', name.lower())})"
    if origin is list:
        return f"list of {words(args[0])}"
    if origin is dict:
        return f"object, a {words(args[1])} for each name"
    if origin is Literal:
        return " or ".join(f'`"{each}"`' for each in args)
    return " or ".join(map(words, args)) if args else PLAIN[hint]
