"""Docstrings say of a thing what it is or does: they begin with a noun or a verb, not with a riddle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import csf_tool

PACKAGE = Path(csf_tool.__file__).parent

RIDDLES = {"As", "Asked", "By", "How", "In", "It", "Its", "Itself", "Never", "None", "Of", "That", "These", "Those"}
RIDDLES |= {"Told", "Up", "What", "When", "Where", "Which", "Who", "Whom", "With"}
"""First words that leave open what is spoken of. `Whether` and `Why` stay: they say what a function answers."""


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Every string that stands by itself: of modules, classes, functions and names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = [
        (path.relative_to(PACKAGE).as_posix(), text.lineno, text.value)
        for path in PACKAGE.rglob("*.py")
        for text in docstrings(ast.parse(path.read_text()))
        if str(text.value).split(maxsplit=1)[0].strip(".,:;") in RIDDLES
    ]
    assert found == []
