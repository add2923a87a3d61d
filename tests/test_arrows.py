"""Imports point one way, as docs/architecture.md draws it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import csf_tool

PACKAGE = Path(csf_tool.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"

LAYERS = [
    {"codes"},
    {"cancel", "choices", "closing", "dtypes", "errors", "garbage"}
    | {"nearest", "neighbours", "process", "progress", "text", "version"},
    {"arguments", "codec", "devices", "disk"},
    {"checkpoint", "gpu"},
    {"coders", "hub"},
    {"running"},
    {"loading", "prove", "write"},
    {"look"},
    {"bench", "engines"},
    {"documents"},
    {"api"},
    {"report"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
"""Modules and packages from the bottom up: each may import those of lower layers."""

HEIGHTS = {part: height for height, layer in enumerate(LAYERS) for part in layer}


def imported(path: Path) -> Iterator[str]:
    """The parts of csf_tool that a file imports, wherever in it: `checkpoint` of `csf_tool.checkpoint.stored`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "csf_tool":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("csf_tool."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("csf_tool."))


def test_every_part_has_its_layer() -> None:
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert parts - {"__init__"} == HEIGHTS.keys()


@pytest.mark.parametrize("part", sorted(HEIGHTS))
def test_nothing_is_imported_from_above(part: str) -> None:
    files = list((PACKAGE / part).rglob("*.py")) or [PACKAGE / f"{part}.py"]
    found = {(path.relative_to(PACKAGE).as_posix(), name) for path in files for name in imported(path) if name != part}
    assert {(path, name) for path, name in found if HEIGHTS[name] >= HEIGHTS[part]} == set()


def test_the_page_draws_all_rooms_and_none_above_one_that_imports_it() -> None:
    drawn = re.findall(r"^(\w+)/ ", PAGE.read_text(), re.MULTILINE)
    assert set(drawn) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    heights = [HEIGHTS[room] for room in drawn]
    assert heights == sorted(heights, reverse=True)
