"""Imports point one way, as docs/architecture.md draws it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import csf_tool

PACKAGE = Path(csf_tool.__file__).parent

OPERATIONS = {
    "adopt", "bench", "compress", "consume", "convert", "csf_shards", "expand", "fetch", "identity",
    "inspection", "loading", "plan", "shard_check", "shard_writer", "side_check", "stacks", "stats", "verify",
}  # fmt: skip
TOP = {"cli", "report", "demo"}

FORBIDDEN = {
    "codec": {"checkpoint", "gpu", "decoder", "encoder"} | OPERATIONS | TOP,
    "gpu": {"checkpoint", "decoder", "encoder"} | OPERATIONS | TOP,
    "checkpoint": {"decoder", "encoder", "gpu"} | OPERATIONS | TOP,
    "report": {"cli", "demo"},
} | {operation: {"cli", "report"} for operation in sorted(OPERATIONS)}


def imported(path: Path) -> Iterator[str]:
    """The parts of csf_tool that a file imports, wherever in it: `checkpoint` of `csf_tool.checkpoint.model`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "csf_tool":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("csf_tool."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("csf_tool."))


@pytest.mark.parametrize("part", FORBIDDEN)
def test_nothing_is_imported_from_above(part: str) -> None:
    files = list((PACKAGE / part).rglob("*.py")) or [PACKAGE / f"{part}.py"]
    found = {(path.relative_to(PACKAGE).as_posix(), name) for path in files for name in imported(path)}
    assert {(path, name) for path, name in found if name in FORBIDDEN[part]} == set()
