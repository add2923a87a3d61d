"""What `import csf_tool` gives."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import csf_tool
from tests.conftest import SAMPLES


def test_type_checkers_see_what_is_there() -> None:
    """The public names stand once for those who run it, and once for type checkers."""
    tree = ast.parse(Path(csf_tool.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (alias.asname, node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    public = set(csf_tool.__all__) - {"__version__"}
    assert {name for name, _ in seen} == public == set(dir(csf_tool)) - {"__version__"}
    for name, home in seen:
        assert getattr(csf_tool, str(name)).__module__ == home


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'csf_tool' has no attribute 'decode'"):
        csf_tool.decode  # noqa: B018


def test_importing_it_costs_next_to_nothing() -> None:
    code = "import sys; before = set(sys.modules); import csf_tool; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded} <= {"csf_tool", "importlib", "warnings"}
    assert {name for name in loaded if name.startswith("csf_tool")} == {"csf_tool", "csf_tool.version"}


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["torch", "triton"])
def test_every_name_without_torch_says_the_same(missing: str) -> None:
    """Whatever needs it, when it is touched or called; and it is an ImportError, as whoever looks for one expects."""
    folder = str(SAMPLES / "nvfp4-csf-hf")
    code = f"""
import sys
sys.modules[{missing!r}] = None
import csf_tool
from csf_tool.errors import EnvironmentFault

said = set()
def ask(call):
    try:
        call()
    except EnvironmentFault as error:
        assert error.exit_code == 3
        said.add(str(error).removeprefix("--device cuda: "))
        return error

for name in csf_tool.__all__:
    error = ask(lambda: getattr(csf_tool, name))
    assert error is None or isinstance(error, ImportError)
calls = [
    lambda: csf_tool.safe_open({folder!r}),
    lambda: csf_tool.load_file({folder!r}),
    lambda: list(csf_tool.iter_tensors({folder!r})),
]
calls = calls if {missing!r} == "torch" else []
calls += [
    lambda: csf_tool.load_stack({folder!r}, 0, "gate"),
    lambda: csf_tool.verify({folder!r}, device="cuda"),
    lambda: csf_tool.expand({folder!r}, "/nowhere/x", device="cuda"),
]
assert all(map(ask, calls))
print(*said)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == f"{missing} is not installed: pip install {missing}\n"


def test_torch_is_imported_when_it_is_needed() -> None:
    touch = "csf_tool.safe_open, csf_tool.load_file, csf_tool.iter_tensors, csf_tool.open_checkpoint"
    code = f"import sys, csf_tool; {touch}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_no_message_installs_csf_tool_from_an_index_that_does_not_have_it() -> None:
    root = Path(csf_tool.__file__).parent
    places = [*root.rglob("*.py"), root.parent / "README.md", *(root.parent / "docs").glob("*.md")]
    wrong = [path for path in places if re.search(r"pip install (-\S+ )*['\"]?csf-tool\b", path.read_text("utf-8"))]
    assert wrong == []
