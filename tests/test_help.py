"""Help pages: whole at 80 and 60 columns, short enough to read, with examples that can be pasted."""

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from csf_tool.cli import app
from csf_tool.cli import help as pages

LONGEST = 48
"""Lines at 80 columns: a screen and a half, of 32."""

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


def page(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = CliRunner().invoke(app, [name, "--help"] if name else ["--help"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    return shown.stdout.splitlines()


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_a_page_fits_80_columns_and_a_screen_and_a_half(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = page(name, 80, monkeypatch)
    assert len(lines) <= LONGEST
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_there_whole_with_its_text(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = page(name, columns, monkeypatch)
    words = " ".join(" ".join(lines).split())
    for param in COMMANDS[name].params:
        assert f"  {pages.name_of(param)}" in "\n".join(lines)
        assert pages.declared(COMMANDS[name])[param.name][1].help in words
    examples = pages.parts_of(COMMANDS[name].help)[2]
    assert [line for line in lines if len(line) > columns and line.strip() not in examples] == []


def test_a_page_has_no_types_and_one_kind_of_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COMMANDS:
        text = "\n".join(page(name, 80, monkeypatch))
        assert not re.search(r"<\w+|\[required\]|None|range|\(\d|\[default: \(", text)


def test_the_summary_of_each_command_is_one_line_of_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = page("", 60, monkeypatch)
    for name, command in COMMANDS.items():
        assert len(command.short_help.split()) <= 7
        assert sum(bool(re.fullmatch(rf"  {name} +{re.escape(command.short_help)}", line)) for line in lines) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_taken_by_the_parser(name: str) -> None:
    *_, examples = pages.parts_of(COMMANDS[name].help)
    assert len(examples) == 2
    for example in examples:
        tool, command, *words = shlex.split(example)
        assert (tool, command) == ("csf-tool", name)
        COMMANDS[name].make_context(name, words)


def test_help_is_a_word_too() -> None:
    for asked, same in (
        (["help"], ["--help"]),
        (["help", "plan"], ["plan", "--help"]),
        (["plan", "-h"], ["help", "plan"]),
    ):
        shown, wanted = (CliRunner().invoke(app, words) for words in (asked, same))
        assert (shown.exit_code, shown.stdout) == (0, wanted.stdout)
    assert CliRunner().invoke(app, ["help", "plam"]).exit_code == 2


@pytest.mark.parametrize("words", [[], ["--"]])
def test_without_a_command_the_page_is_no_result(words: list[str]) -> None:
    shown = CliRunner().invoke(app, words)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr == CliRunner().invoke(app, ["--help"]).stdout
