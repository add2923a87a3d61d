"""Calls of Linux and POSIX: where a system lacks one, a general way gives the same files and verdicts.

No other system was at hand. What macOS and Windows lack is taken from the type stubs of the standard library, and taken
away from csf_tool here.
"""

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mypy
import pytest

import csf_tool
from tests.building import tree
from tests.commands import run
from tests.fixture_types import Copied

if sys.platform != "linux":
    pytest.skip("takes away what Linux has", allow_module_level=True)

pytestmark = pytest.mark.slow

PACKAGE = Path(csf_tool.__file__).parent
STUBS = Path(mypy.__file__).parent / "typeshed" / "stdlib"
SYSTEMS = ["darwin", "win32"]
MODULES = {"mmap": "mmap.pyi", "os": "os/__init__.pyi", "select": "select.pyi", "signal": "signal.pyi"}

CALLS = {
    *("os.copy_file_range", "os.fdatasync", "os.getxattr", "os.setxattr", "os.posix_fadvise", "os.preadv"),
    *("os.sched_getaffinity", "os.geteuid", "os.sysconf", "os.O_DIRECTORY"),
}
"""What macOS or Windows lacks of what csf_tool calls: each is taken away alone, too."""

WITH_OTHERS = {"os.O_DIRECT", "os.major", "os.minor", "os.pwrite", "os.POSIX_FADV_DONTNEED"}
"""Asked for on Linux alone, or behind another call: taken away together with all others only."""

FOLDERS = {
    "/proc/self/mountinfo": "csf_tool.disk.appenders._MOUNTS",
    "/proc/self/fd": "csf_tool.running.forked._DESCRIPTORS",
    "/proc/self/task": "csf_tool.running.forked._THREADS",
    "/dev/shm": "csf_tool.running.forked._SEMAPHORES",
    "/dev/nvidiactl": "csf_tool.devices._GPU_FILES",
    "/dev/dxg": "csf_tool.devices._GPU_FILES",
    "/dev/kfd": "csf_tool.devices._GPU_FILES",
}
"""Linux's own files that are looked at, and where their names are kept."""


@cache
def syntax_of_the_package() -> list[ast.AST]:
    return [node for path in sorted(PACKAGE.rglob("*.py")) for node in ast.walk(ast.parse(path.read_text()))]


@cache
def lacking(system: str) -> list[str]:
    """What csf_tool takes from the standard library and a system does not have, as `os.name`."""
    used = {
        (node.value.id, node.attr)
        for node in syntax_of_the_package()
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in MODULES
    }
    only_here = {}
    for module, stub in MODULES.items():
        body = ast.parse((STUBS / stub).read_text()).body
        only_here[module] = set(names_in(body, "linux")) - set(names_in(body, system))
    return sorted(f"{module}.{name}" for module, name in used if name in only_here[module])


def names_in(body: list[ast.stmt], system: str) -> Iterator[str]:
    """The names that a stub defines for a system."""
    for node in body:
        if isinstance(node, ast.If):
            holds = eval(
                ast.unparse(node.test), {"sys": SimpleNamespace(platform=system, version_info=sys.version_info)}
            )
            yield from names_in(node.body if holds else node.orelse, system)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


COMMANDS = [
    ["expand", "source", "expanded"],
    ["expand", "source", "dropped", "--drop-cache"],
    ["expand", "source", "kept", "--keep-cache", "--jobs", "1"],
    ["expand", "source", "dropped", "--recheck"],
    ["convert", "container", "linked", "--to", "hf", "--link"],
    ["verify", "source", "--against", "expanded", "--drop-cache"],
    ["expand", "consumed", "from-consumed", "--consume-source", "--yes"],
]


@pytest.fixture
def here(copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a checkpoint in two layouts, and one to consume."""
    copied("nvfp4-csf-hf", "source")
    copied("nvfp4-csf-hf", "consumed")
    copied("nvfp4-csf-container", "container")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The dense checkpoint, as Linux writes it."""
    out = tmp_path_factory.mktemp("right") / "out"
    assert run("expand", Path(__file__).parent / "data" / "samples" / "nvfp4-csf-hf", out).exit_code == 0
    return tree(out)


def check_files(here: Path, right: dict[str, bytes]) -> None:
    for name in ("expanded", "dropped", "kept", "from-consumed"):
        assert tree(here / name) == right, name
    assert list((here / "consumed").glob("*.safetensors")) == []
    assert not list(here.rglob("*.partial"))


@pytest.mark.parametrize("call", sorted(CALLS))
def test_without_a_call(here: Path, right: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.delattr(call)
    for command in COMMANDS:
        result = run(*command)
        assert result.exit_code == 0, result.output
    check_files(here, right)


@pytest.mark.parametrize("name", sorted(set(FOLDERS.values())))
def test_without_the_files_of_linux(
    here: Path, right: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(name, () if name.endswith("FILES") else Path("/nowhere/at/all"))
    for command in COMMANDS:
        result = run(*command)
        assert result.exit_code == 0, result.output
    check_files(here, right)


CHILD = """
import json, sys
from typer.testing import CliRunner

system, hidden, commands = json.loads(sys.argv[1])
def run(commands):
    from csf_tool.cli import app
    from csf_tool.disk import appenders
    appenders._LEAST_DIRECT_BYTES = 0
    for command in commands:
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, (command, result.output, result.exception)
run([["expand", "source", "before"], ["verify", "source"]])  # loads the libraries: they are not what is tested
for name in [name for name in sys.modules if name.partition(".")[0] == "csf_tool"]:
    del sys.modules[name]
sys.platform = system
for name in hidden:
    module, _, attribute = name.partition(".")
    delattr(sys.modules.get(module) or __import__(module), attribute)
sys.modules["torch"] = None  # it would look for libraries of that system
if system == "win32":
    sys.modules["fcntl"] = None
run(commands)
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_without_all_that_a_system_lacks(here: Path, right: dict[str, bytes], system: str) -> None:
    """In a process of its own: what is loaded depends on the system."""
    given: Any = [system, lacking(system), [[*command, "--quiet"] for command in COMMANDS]]
    child = [sys.executable, "-c", CHILD, json.dumps(given)]
    done = subprocess.run(child, capture_output=True, text=True, check=False, cwd=here)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(here / "before")
    check_files(here, right)


def test_every_call_that_a_system_lacks_is_taken_away_here() -> None:
    assert {*lacking("darwin"), *lacking("win32")} == CALLS | WITH_OTHERS


def test_every_file_of_linux_is_taken_away_here() -> None:
    looked_at = {
        node.value
        for node in syntax_of_the_package()
        if isinstance(node, ast.Constant) and str(node.value).startswith(("/proc", "/dev/", "/sys"))
    }
    assert looked_at == set(FOLDERS)
