"""The commands that the README shows print what it shows: run as they stand there."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from csf_tool.cli import app
from tests.test_cli import steady

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

SAMPLES = Path("tests/data/samples")


def shown() -> list[tuple[str, str]]:
    """Commands and their outputs, in the README's order."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    return [
        (found[1], found[2])
        for block in blocks
        for found in re.finditer(r"\$ csf-tool (.*)\n((?:[^$].*\n|\n)*)", block)
    ]


def without_padding(text: str) -> str:
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def test_the_outputs_are_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a clone: the samples lie where they do there."""
    shutil.copytree(ROOT / SAMPLES, tmp_path / SAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    run = shown()
    assert [command.split()[0] for command, _ in run] == ["verify", "expand", "compress"]
    for command, output in run:
        result = CliRunner().invoke(app, [*shlex.split(command), "--device", "cpu"])
        assert result.exit_code == 0, result.stderr
        assert steady(without_padding(result.stdout)) == steady(output), command


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert "docs/images/saved.svg" in links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_what_has_no_output_runs_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = re.findall(r"^csf-tool (.*)$", README, re.MULTILINE)
    assert commands
    assert [CliRunner().invoke(app, shlex.split(command)).exit_code for command in commands] == [0] * len(commands)


def test_its_first_part_is_short() -> None:
    assert len(README.partition("## What it works on")[0].splitlines()) <= 120
