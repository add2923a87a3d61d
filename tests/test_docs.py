"""What the documents state can be checked, and is."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import csf_tool
from csf_tool.cli import app
from csf_tool.cli import help as pages
from csf_tool.codec import reference
from csf_tool.codec.formats import NVFP4

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
REFERENCE = DOCS / "cli.md"
ARCHITECTURE = DOCS / "architecture.md"
PACKAGE = Path(csf_tool.__file__).parent


def test_the_plane_in_the_format_document_is_one() -> None:
    """Encoding its dense scales gives its streams, and these decode to its scales."""
    text = (DOCS / "format.md").read_text()
    fixed, words, head = (
        np.frombuffer(bytes.fromhex(found[1]), np.uint8)
        for name in ("fixed", "exceptions", "dense")
        if (found := re.search(rf"```text {name}\n(.*?)```", text, re.DOTALL))
    )
    dense = np.concatenate([head, np.full(26, 0x70, np.uint8)]).reshape(16, 2)
    exceptions = reference.exception_words(words.tobytes())
    got_fixed, got_words = reference.encode(NVFP4, dense)
    assert got_fixed.tobytes() == fixed.tobytes()
    assert got_words.tolist() == exceptions.tolist()
    assert reference.decode(NVFP4, fixed, exceptions, rows=16, cols=2).tolist() == dense.tolist()


def _commands() -> dict[str, Any]:
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def _reference() -> str:
    """The page of all commands, from what their help pages are made of."""
    whole = typer.main.get_command(app)
    lists = {name: pages.groups_of(command) for name, command in _commands().items()}
    text = f"# Commands\n\n{whole.help} {whole.epilog}\n\n"
    text += "".join(f"* [`{name}`](#csf-tool-{name}): {each.short_help}\n" for name, each in _commands().items())
    for name, command in _commands().items():
        summary, details, examples = pages.parts_of(command.help)
        usage = pages.usage(command, f"csf-tool {name}")
        text += f"\n## `csf-tool {name}`\n\n" + "\n\n".join(filter(None, (summary, details)))
        text += f"\n\n```text\n{usage}\n```\n\n" + "\n".join(["```console", *examples, "```"]) + "\n"
        for title, rows in lists[name].items():
            text += f"\n{title}:\n\n" + "".join(f"* `{spelled}`: {words}\n" for spelled, words in rows)
    return text


def test_the_command_reference_says_what_the_help_says() -> None:
    """CSF_TOOL_UPDATE_SNAPSHOTS=1 rewrites the page."""
    if os.environ.get("CSF_TOOL_UPDATE_SNAPSHOTS"):
        REFERENCE.write_text(_reference())
    assert REFERENCE.read_text() == _reference()


@pytest.mark.parametrize("page", [ARCHITECTURE, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_every_path_that_a_page_for_contributors_names_exists(page: Path) -> None:
    """Paths are those from the repository's root, or from the package's."""
    named = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md|sh|toml)|[\w.-]+(?:/[\w.-]+)+)`", page.read_text())
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists() and not (PACKAGE / path).exists()] == []


def test_every_name_in_the_page_on_architecture_is_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    words = set(re.findall(r"\w+", code))
    named = re.findall(r"`([A-Za-z_][\w.]*)`", re.sub(r"`[^`]*[/-][^`]*`|`\w+\.py`", "", ARCHITECTURE.read_text()))
    assert [name for name in named if not words.issuperset(name.split("."))] == []


@pytest.mark.slow
def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "format" / "index.html").exists()


PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


BLOCK = re.compile(r"^```(.*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _in_blocks(page: Path) -> list[list[str]]:
    """The words of the csf-tool commands that are lines of a page's blocks."""
    blocks = [block for language, block in BLOCK.findall(page.read_text()) if language in ("", "console", "sh")]
    whole = "".join(blocks).replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ )?csf-tool (\w.*)$", whole, re.MULTILINE)
    return [_words(re.sub(r"\$\{\w+\}", "1", line)) for line in lines]


def _in_sentences(page: Path) -> list[list[str]]:
    """The words of the csf-tool commands in a page's sentences and tables, often without their arguments."""
    found = re.findall(r"`csf-tool (\w[^`]*)`", BLOCK.sub("", page.read_text()))
    return [_words(line) for line in found if not line.startswith("decoded")]  # a line of a log


def _words(line: str) -> list[str]:
    """The words of a command up to a pipe."""
    return list(itertools.takewhile(lambda word: word != "|", shlex.split(line, comments=True)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_a_page_shows_can_be_typed(page: Path) -> None:
    """Every option is there and takes what is given."""
    for name, *words in _in_blocks(page):
        _commands()[name].make_context(name, [*words])
    for name, *words in _in_sentences(page):
        known = {"--help", *(option for parameter in _commands()[name].params for option in parameter.opts)}
        assert {word for word in words if word.startswith("-")} <= known, name


@pytest.mark.slow
def test_commands_of_the_first_page_run_in_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Path("tests", "data", "samples")
    shutil.copytree(ROOT / samples, tmp_path / samples)
    monkeypatch.chdir(tmp_path)
    shown = _in_sentences(DOCS / "index.md")
    assert [words[0] for words in shown] == ["stats", "verify", "expand", "compress"]
    assert [CliRunner().invoke(app, words).exit_code for words in shown] == [0] * 4
