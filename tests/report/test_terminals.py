"""Reports on terminals of several widths, and in pipes: names stay whole, and records are a line each without one."""

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from csf_tool.report.console import print_out, terminal_width
from csf_tool.report.table import Table
from tests.commands import run
from tests.fixture_types import Copied
from tests.terminals import on_terminal

SAMPLES = ("nvfp4-csf-hf", "nvfp4-dense", "mxfp4-csf-container", "two-codecs-csf-hf")

COMMANDS = {
    "stats nvfp4-csf-hf": ["down_proj", "384x24"],
    "stats nvfp4-csf-hf --by layer": ["model.language_model.layers.0"],
    "stats nvfp4-csf-hf --by shard": ["model-00001-of-00003.safetensors"],
    "stats nvfp4-csf-hf --scales": ["model.language_model.layers.0"],
    "stats two-codecs-csf-hf --by layer": ["mtp.layers.0"],
    "stats nvfp4-dense --by shard": ["model-00003-of-00003.safetensors"],
    "stats nvfp4-csf-hf nvfp4-dense two-codecs-csf-hf": ["nvfp4-csf-hf", "two-codecs-csf-hf"],
    "inspect nvfp4-csf-hf --top 3": ["model.language_model.layers.2.mlp.experts.3.down_proj.weight_scale"],
    "inspect nvfp4-csf-hf *.layers.1.*.2.gate_proj --values": ["model-00002-of-00003.safetensors"],
    "plan nvfp4-csf-hf --gpu-memory 4MiB": ["gate_proj"],
    "compress nvfp4-dense out --to container --exclude *.layers.1.* --device cpu": ["excluded by --exclude"],
    "verify nvfp4-csf-hf --device cpu": ["model-00001-of-00003.safetensors"],
    "verify nvfp4-csf-hf --against two-codecs-csf-hf --device cpu": ["generation_config.json"],
}
"""Commands, and names that each has in a table or a sentence."""


PLAIN = {"NO_COLOR": "1", "TERM": "xterm"}


class Screen(io.StringIO):
    """What looks like a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def here(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> Path:
    folders = [copied(name) for name in SAMPLES]
    monkeypatch.chdir(folders[0].parent)
    return folders[0].parent


def whole(text: str, name: str) -> bool:
    """Whether a name is there in one piece, or what it begins with said once and the rest in one piece."""
    begins = re.findall(r"all\s+names\s+begin\s+with\s+(\S+)", text)
    return name in text or any(
        name.startswith(begin) and re.search(rf"^{re.escape(name[len(begin) :])}( |$)", text, re.MULTILINE)
        for begin in begins
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_names_stay_whole_on_a_terminal(here: Path, command: str, columns: int) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(shlex.split(command), columns, PLAIN, exit_code=None))
    lines = text.splitlines()
    assert [line for line in lines if len(line) > columns and len(line.split()) > 1] == []
    assert [name for name in COMMANDS[command] if not whole(text, name)] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_record_is_a_line_in_a_pipe(here: Path, command: str) -> None:
    environment = os.environ | {"COLUMNS": "40", "FORCE_COLOR": ""}
    call = [sys.executable, "-m", "csf_tool", *shlex.split(command)]
    text = subprocess.run(call, capture_output=True, text=True, env=environment, check=False).stdout
    assert [name for name in COMMANDS[command] if name not in text] == []
    assert "begin with" not in text
    assert "too narrow" not in text
    tables = [table.splitlines() for table in re.findall(r"(?:^.*\t.*\n)+", text, re.MULTILINE)]
    assert bool(tables) is not command.startswith("verify")
    for header, *records in tables:
        assert records
        assert {record.count("\t") for record in records} == {header.count("\t")}
        assert all(cell == cell.strip() for record in records for cell in record.split("\t"))


def test_first_fields_are_names(here: Path) -> None:
    """The first fields, as awk takes them, are what `--by` groups by."""
    call = f"{sys.executable} -m csf_tool stats nvfp4-csf-hf --by shard | awk -F'\\t' '{{print $1}}'"
    done = subprocess.run(call, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-3:] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


@pytest.mark.parametrize("columns", [30, 60])
def test_prose_wraps_at_blanks(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "model.language_model.layers.0.mlp.experts.0.down_proj.weight_scale"
    said = f"12 tensors, for example {name}: they are of a kind that is left as it is, and here is why."
    print_out(said, f"  {said}")
    text = screen.getvalue()
    assert name in text
    assert " ".join(text.split()) == f"{said} {said}"
    assert all(len(line) <= columns or line.split() == [f"{name}:"] for line in text.splitlines())


def test_a_table_without_room_says_what_is_left_out() -> None:
    table = Table("shard", "planes", "dense", "CSF")
    table.add_row("model-00001-of-00002.safetensors", "12", "108.00 KiB", "60.61 KiB")
    table.add_row("model-00002-of-00002.safetensors", "12", "108.00 KiB")
    assert [str(line) for line in table.lines(50)] == [
        "shard: all names begin with model-",
        "(the terminal is too narrow for: CSF)",
        "shard                       planes       dense",
        "00001-of-00002.safetensors      12  108.00 KiB",
        "00002-of-00002.safetensors      12  108.00 KiB",
    ]
    assert [str(line) for line in table.lines(26)] == [
        "(the terminal is too",
        "narrow for: CSF)",
        "shard",
        "    planes       dense",
        "model-00001-of-00002.safetensors",
        "        12  108.00 KiB",
        "model-00002-of-00002.safetensors",
        "        12  108.00 KiB",
    ]
    assert table.records()[1:] == [
        "model-00001-of-00002.safetensors\t12\t108.00 KiB\t60.61 KiB",
        "model-00002-of-00002.safetensors\t12\t108.00 KiB\t",
    ]


def test_no_table_of_nothing() -> None:
    assert Table("a", "b").records() == ["a\tb"]
    assert [str(line) for line in Table("a", "b").lines(80)] == ["a  b"]


def test_what_is_no_terminal_has_no_width() -> None:
    assert terminal_width(io.StringIO()) is None


@pytest.mark.slow
def test_a_person_is_told_where_messages_are_explained(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs get the messages alone, unless they ask for more."""
    folder = copied("nvfp4-csf-hf", "x")
    (folder / "model.safetensors.index.json").unlink()
    (folder / "y.aria2").write_bytes(b"y")
    pointers = {
        f"stats {folder}": "#no-index, #download-unfinished",
        f"verify {folder}": "#no-index, #download-unfinished",
        f"expand {folder} {folder.parent}": "#nested-folders",
    }
    for command, entries in pointers.items():
        words, line = shlex.split(command), f"See docs/troubleshooting.md{entries}\n"
        assert "troubleshooting" not in run(*words).output
        assert run(*words, "--verbose").stderr.count(line) == 1
        with monkeypatch.context() as patch:
            patch.setattr("csf_tool.report.problems.terminal_width", lambda _: 80)
            assert run(*words).stderr.endswith(line)
            assert "troubleshooting" not in run(*words, "--quiet").output
