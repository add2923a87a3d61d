"""Faults are told apart by their codes: every one has a code, and nothing is decided by the words of a message."""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import csf_tool
from csf_tool.checkpoint.problems import Problem
from csf_tool.codes import Code
from csf_tool.errors import CheckpointError, CsfToolError, EnvironmentFault, StreamError, UsageError

PACKAGE = Path(csf_tool.__file__).parent

MAKERS = {
    "CheckpointError",
    "StreamError",
    "Broken",
    "BrokenStream",
    "Problem",
    "Finding",
    "HeaderFault",
    "StreamFault",
}
NOTES = {"error", "warn", "fail"}
"""What makes a fault of words and a code: classes, and methods of `Problems` and `Check`."""

STRING_METHODS = {"startswith", "endswith", "removeprefix", "removesuffix", "find", "index", "count", "partition"}
STRING_METHODS |= {"rpartition", "replace", "split", "rsplit"}
WORDS = {"problem", "args"}
"""Fields that hold a message."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())


def without_code(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that make a fault of words alone."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(isinstance(argument, ast.Starred) for argument in node.args):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        codes = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "code")]
        if (name in MAKERS or method in NOTES) and not any(map(is_code, codes)):
            yield node


def is_code(node: ast.expr) -> bool:
    """`Code.X`, or something that is called a code."""
    return isinstance(node, ast.Name | ast.Attribute) and bool(re.search(r"\bcode$|^Code\.", ast.unparse(node)))


def decisions_by_words(tree: ast.AST) -> Iterator[ast.AST]:
    """Comparisons, string methods and patterns that go by what a message says."""
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)}

    def holds_words(node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute) and node.attr in WORDS:
            return True
        is_str = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"str", "repr"}
        return is_str and any(isinstance(name, ast.Name) and name.id in errors | WORDS for name in node.args)  # type: ignore[attr-defined]

    for node in ast.walk(tree):
        looked_at: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            looked_at = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            looked_at = [node.subject]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_pattern = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            if node.func.attr in STRING_METHODS:
                looked_at = [node.func.value]
            elif is_pattern or node.func.attr in {"match", "fullmatch", "search", "findall"}:
                looked_at = list(node.args)
        if any(holds_words(each) for part in looked_at for each in ast.walk(part)):
            yield node


def test_no_fault_is_made_without_a_code() -> None:
    found = [f"{name}:{call.lineno}: {ast.unparse(call)}" for name, tree in modules() for call in without_code(tree)]
    assert found == []


def test_nothing_is_decided_by_the_words_of_a_message() -> None:
    found = [f"{name}: {ast.unparse(node)}" for name, tree in modules() for node in decisions_by_words(tree)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'raise CheckpointError("broken")',
        'raise CheckpointError("broken", file="x")',
        'problems.append(Problem("broken", "truncated"))',
        'self.problems.error("broken", name)',
        'check.fail(name, "", text)',
        'check.warn("odd")',
    ],
)
def test_what_makes_a_fault_without_a_code_is_noticed(line: str) -> None:
    assert list(without_code(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        'if str(error).startswith("not there"): pass',
        'x = str(error).removeprefix(f"{name}: ")',
        'x = [p for p in problems if p.problem.startswith("not there")]',
        'x = "missing" in problem.problem',
        'x = 1 if "a" in str(error) else 2',
        'x = re.search("a", str(error))',
        "x = PATTERN.match(error.problem)",
        'x = error.args[0] == "broken"',
        'x = found.problem == "broken"',
    ],
)
def test_a_decision_by_the_words_of_a_message_is_noticed(line: str) -> None:
    assert list(decisions_by_words(ast.parse(f"try:\n    pass\nexcept ValueError as error:\n    {line}")))


def test_codes_are_short_words_with_one_sentence() -> None:
    for code in Code:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code), code
        assert len(code) < 30
        assert code.name == code.replace("-", "_").upper()
        assert re.fullmatch(r"[A-Z][^.|]+\.", code.meaning), code.meaning


ERRORS = [
    CheckpointError("ends at byte 7", Code.FILE_SHRANK, "a.safetensors", "m.weight"),
    StreamError("base 9 is above 8", Code.BASE_TOO_HIGH),
    UsageError("is empty", Code.NOT_A_CHECKPOINT, "/x"),
    UsageError("--jobs 0: give a number"),
    EnvironmentFault("cannot be read: I/O error", file="a.safetensors"),
]


@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_an_error_keeps_what_it_says_wherever_it_goes(error: CsfToolError) -> None:
    """Workers hand errors over as pickles."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.fields) == (str(error), error.fields)
    assert again.code is error.code


def test_an_error_says_all_in_one_line() -> None:
    assert [str(error) for error in ERRORS] == [
        "a.safetensors: m.weight: ends at byte 7",
        "base 9 is above 8",
        "/x: is empty",
        "--jobs 0: give a number",
        "a.safetensors: cannot be read: I/O error",
    ]
    assert [error.code.value for error in ERRORS[-2:]] == ["usage", "environment"]
    assert str(ERRORS[0].within("header")) == "a.safetensors: m.weight: header: ends at byte 7"


def test_a_problem_is_an_error_and_back() -> None:
    error = CheckpointError("ends at byte 7", Code.FILE_SHRANK, "a.safetensors", "m.weight")
    problem = Problem.of(error)
    assert str(problem) == str(error)
    assert problem.as_error().fields == error.fields
    assert Problem.of(problem.as_error()) == problem


def test_an_error_of_another_place_says_so_in_the_problem() -> None:
    error = CheckpointError("ends at byte 7", Code.FILE_SHRANK, "b.safetensors")
    assert Problem.of(error, "b.safetensors", "m") == Problem("ends at byte 7", error.code, "b.safetensors", "m")
    elsewhere = Problem.of(error, "a.safetensors", "m")
    assert elsewhere == Problem("b.safetensors: ends at byte 7", error.code, "a.safetensors", "m")
