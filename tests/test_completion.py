"""Completion in bash, zsh and fish: the script of each, and what a shell then gets for a word begun."""

import os
import shutil
import subprocess
import sys

import pytest

# As the installed script does; `python -m` would make the variable's name another.
COMMAND = [sys.executable, "-c", "import sys; sys.argv[0] = 'csf-tool'; from csf_tool.cli import main; main()"]


def csf_tool(*arguments: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    return subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    script = csf_tool(_CSF_TOOL_COMPLETE=f"source_{shell}")
    assert f"_CSF_TOOL_COMPLETE=complete_{shell}" in script
    # The shell is guessed from the parent process unless this variable lets it be named.
    printed = csf_tool("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert printed.strip() == script.strip()
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("bash", {"COMP_WORDS": "csf-tool st", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "csf-tool st"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "csf-tool st", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_a_command_is_completed(shell: str, variables: dict[str, str]) -> None:
    answer = csf_tool(_CSF_TOOL_COMPLETE=f"complete_{shell}", **variables)
    assert "stats" in answer
    assert "verify" not in answer
