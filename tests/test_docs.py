"""What the documents state can be checked, and is."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

import csf_tool
from csf_tool.cli import app
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


@pytest.fixture(scope="module")
def cli_reference() -> dict[str, str]:
    """The sections of the command reference by command. CSF_TOOL_UPDATE_SNAPSHOTS=1 rewrites it."""
    if os.environ.get("CSF_TOOL_UPDATE_SNAPSHOTS"):
        write = [sys.executable, "-m", "typer", "csf_tool.cli.application", "utils", "docs", "--name", "csf-tool"]
        text = subprocess.run(write, check=True, cwd=ROOT, capture_output=True, text=True).stdout
        examples = re.sub(r"\n\nExamples:\n((?:csf-tool .*\n)+)", r"\n\n```console\n\1```\n", html.unescape(text))
        REFERENCE.write_text(re.sub(r"\n{3,}", "\n\n", examples).strip() + "\n")
    _, *sections = re.split(r"^## `csf-tool (.*)`$", REFERENCE.read_text(), flags=re.MULTILINE)
    return dict(zip(sections[::2], sections[1::2], strict=True))


def test_the_command_reference_has_every_command_and_no_other(cli_reference: dict[str, str]) -> None:
    command = typer.main.get_command(app)
    assert list(cli_reference) == list(command.commands)  # type: ignore[attr-defined]


def test_the_command_reference_has_every_option_with_its_help(cli_reference: dict[str, str]) -> None:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        lines = {line for line in cli_reference[name].splitlines() if line.startswith("* `")}
        for param in command.params:
            option = param.param_type_name == "option"
            spelled = max(param.opts, key=len) if option else param.metavar
            mine = [line for line in lines if re.match(rf"\* `(-\w, )?\W?{re.escape(spelled)}\W", line)]
            assert len(mine) == 1, f"{name} {spelled}"
            assert param.help in mine[0]
            lines -= set(mine)
        assert lines == {"* `--help`: Show this message and exit."}, name


def test_every_command_shows_two_examples_that_it_takes(cli_reference: dict[str, str]) -> None:
    """Their options exist; what they would do is for other tests."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        examples = re.findall(rf"^csf-tool {name}\b.*$", command.help, re.MULTILINE)
        assert len(examples) == 2, name
        known = {option for param in command.params for option in param.opts + param.secondary_opts}
        assert {word for line in examples for word in line.split() if word.startswith("-")} <= known, name


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
