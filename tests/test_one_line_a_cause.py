"""Hundreds of faults of one cause are one line in every command, and each is in the JSON documents."""

import json
from pathlib import Path

import pytest

from csf_tool.codes import Code
from tests.commands import run
from tests.many_faults import MANY, MANY_OF, ONCE, Built, hostile

MOST_LINES = 30
"""Most lines of a command on stdout and stderr: its table and the evidence of each check take two thirds of them."""

QUICK = {Code.INDEX_NAMES_MISSING_TENSOR, Code.TENSOR_IN_TWO_SHARDS}
"""Kinds that are tried in the quick lane as well."""


def commands(built: Built, out: Path) -> dict[str, tuple[object, ...]]:
    """Every command that reads a checkpoint, by a name for messages."""
    root = built.root
    return {
        "stats": ("stats", root),
        "stats --scales": ("stats", root, "--scales"),
        "verify": ("verify", root, *built.verify),
        "verify --quick": ("verify", root, "--quick"),
        "inspect": ("inspect", root, "--top", 2),
        "plan": ("plan", root),
        "identity": ("identity", root),
        "identity --hash": ("identity", root, "--hash"),
        "expand": ("expand", root, out / "expanded"),
        "compress": ("compress", root, out / "compressed"),
        "convert": ("convert", root, out / "converted", "--to", "hf"),
        "finish": ("finish", root, out / "compressed"),
    }


def listed(built: Built, code: Code) -> int:
    """Number of the faults of a kind that JSON has: stats and verify together, each of which sees its own."""
    stats = json.loads(run("stats", built.root, "--json").stdout)["problems"]
    checks = json.loads(run("verify", built.root, *built.verify, "--json").stdout)["checks"]
    verify = [problem for check in checks for problem in check["failures"] + check["warnings"]]
    return max([problem["code"] for problem in found].count(code) for found in (stats, verify))


def test_every_kind_is_tried_or_occurs_once() -> None:
    assert MANY_OF.keys() | ONCE == set(Code)
    assert not MANY_OF.keys() & ONCE


@pytest.mark.parametrize("code", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in MANY_OF])
def test_many_of_a_kind_are_a_line_and_all_are_in_json(code: Code, tmp_path: Path) -> None:
    made = MANY_OF[code](tmp_path / "in")
    built = made if isinstance(made, Built) else Built(made)
    for name, command in commands(built, tmp_path / "out").items():
        lines = [line for line in run(*command).output.splitlines() if "\t" not in line]  # tables have a row per layer
        assert len(lines) <= MOST_LINES, "\n".join([name, *lines[:60]])
    assert listed(built, code) >= MANY


@pytest.mark.slow
def test_as_many_causes_as_faults_stay_few_lines(tmp_path: Path) -> None:
    built = Built(hostile(tmp_path / "in"))
    for name, command in commands(built, tmp_path / "out").items():
        lines = run(*command).output.splitlines()
        assert len(lines) <= 2 * MOST_LINES, "\n".join([name, *lines])
    assert listed(built, Code.UNKNOWN_DTYPE) == MANY
    assert listed(built, Code.MISSING_FILE) >= MANY
