"""What `import csf_tool` gives."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import csf_tool


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


def test_torch_is_imported_when_it_is_needed() -> None:
    touch = "csf_tool.safe_open, csf_tool.load_file, csf_tool.iter_tensors, csf_tool.open_checkpoint"
    code = f"import sys, csf_tool; {touch}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
