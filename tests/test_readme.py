"""The commands that the README shows print what it shows: run as they stand there."""

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

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
    blocks = "".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
    commands = re.findall(r"^csf-tool (.*)$", blocks, re.MULTILINE)
    assert commands
    assert [CliRunner().invoke(app, shlex.split(command)).exit_code for command in commands] == [0] * len(commands)


def test_its_first_part_is_short() -> None:
    assert len(README.partition("## What it works on")[0].splitlines()) <= 120


@pytest.mark.slow
def test_its_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """In the base install, so without torch; on the checkpoint that the commands before it write."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.chdir(tmp_path)
    compress = next(command for command, _ in shown() if command.startswith("compress"))
    assert CliRunner().invoke(app, shlex.split(compress.replace(str(SAMPLES), str(ROOT / SAMPLES)))).exit_code == 0
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(example, {})
    assert "gate_proj.weight_scale [384, 24] F8_E4M3\n" in capsys.readouterr().out
