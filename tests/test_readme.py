"""The commands that the README shows print what it shows: run as they stand there, on samples of those names."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from csf_tool.cli import app
from tests.test_cli import steady

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

SAMPLES = {"MiniLM-MXFP4-CSF": "mxfp4-csf-container", "MiniLM-NVFP4": "nvfp4-dense"}
FULL_SIZE = "Qwen3.8-Flash-Next-FP4-Local"
"""What no test has: its output was taken from a checkpoint of 95 GiB."""


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


def test_the_outputs_are_real(copied: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, sample in SAMPLES.items():
        copied(sample, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    run = [(command, output) for command, output in shown() if FULL_SIZE not in command]
    assert {command.split()[0] for command, _ in run} == {"verify", "expand", "compress"}
    for command, output in run:
        result = CliRunner().invoke(app, [*shlex.split(command), "--device", "cpu"])
        assert result.exit_code == 0, result.stderr
        assert steady(without_padding(result.stdout)) == steady(output), command


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert "docs/images/saved.svg" in links
    assert [link for link in links if not (ROOT / link).exists()] == []
