"""Docstrings begin with a noun or a verb, and what csf-tool prints is plain English."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import csf_tool

PACKAGE = Path(csf_tool.__file__).parent

RIDDLES = {"As", "Asked", "By", "How", "In", "It", "Its", "Itself", "Never", "None", "Of", "That", "These", "Those"}
RIDDLES |= {"Told", "Up", "What", "When", "Where", "Which", "Who", "Whom", "With"}
"""First words that leave open what is spoken of. `Whether` and `Why` stay: they say what a function answers."""


ODD = {
    r", as \{\}": "for example",
    r"\bstands? (in|at|twice|for nothing)\b": "is, appears",
    r"\bspeaks? of\b": "names",
    r"\b(says|claims) \{\}": "has, states",
    r"\bwants?\b": "needs",
    r"\blies? (in|inside|beside|under)\b": "is",
    r"\broom\b": "disk space",
    r"cannot be known|\bnot there\b": "is unknown, is missing",
    r"(?<![Tt]here )\b(is|are) no (?!longer\b|other\b)[A-Za-z]|\{\}, no [a-z]": "is not a",
    r"\bany more\b|\bnot whole\b": "no longer, not complete",
    r"\b(was|were|is|are|,) made of\b": "made from",
    r"\bfor (it|they|he) (has|have|is|are|gives?)\b": "because",
    r"\b(one|once|\d|\{\}) an? (core|row|rank|tensor|scale|shard|launch|program|matrix)\b": "per",
    r"\bleft aside\b|\banew\b|\bnot one of\b|\bin place of\b": "left out, again, none of, instead of",
}
"""Phrases that readers whose language is another one stumble over, each with what is plain."""


def printed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string with a blank in it that is no docstring, with its line; `{}` stands for what is filled in."""
    unseen = {id(text) for text in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            unseen.update(map(id, node.values))
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in unseen and " " in str(node.value):
            yield node.lineno, str(node.value)


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


def test_what_is_printed_has_no_odd_phrase() -> None:
    found = [
        (path.relative_to(PACKAGE).as_posix(), line, text, plain)
        for path in PACKAGE.rglob("*.py")
        for line, text in printed(ast.parse(path.read_text()))
        for odd, plain in ODD.items()
        if re.search(odd, text)
    ]
    assert found == []


def test_a_verb_fits_one_thing_as_well_as_several() -> None:
    found = [
        (path.relative_to(PACKAGE).as_posix(), line, text)
        for path in PACKAGE.rglob("*.py")
        for line, text in counting(ast.parse(path.read_text()))
        if re.search(PLURAL, text)
    ]
    assert found == []


SEVERAL = r"(<count>|\{\} of (\w+ )?\{\} [a-z]+) (that )?(are|were|have|do|differ|equal|fit|hold|need|stay)\b"
PLURAL = rf"{SEVERAL}|\{{\}} more [a-z]+s\b"
"""A verb right after several things, or their noun, which is wrong after one of them."""


def counting(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string with values in it, with its line; `<count>` stands for a number of things and their name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else filled(v) for v in node.values)


def filled(value: ast.expr) -> str:
    called = ast.unparse(value).strip("f\"'{}").partition("(")[0]
    return "<count>" if called in ("count", "counted") else "{}"
