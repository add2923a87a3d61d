"""Faults as JSON documents have them, and the document of a command that failed."""

from typing import Literal, TypedDict

from csf_tool.checkpoint.problems import Problem
from csf_tool.errors import CsfToolError


class ProblemDocument(TypedDict):
    """A fault, or something odd."""

    code: str
    """The kind of fault: a code of [troubleshooting](troubleshooting.md)."""
    file: str
    """The file it is in, relative to the checkpoint's folder; empty where it is in none."""
    tensor: str
    """The tensor it is in; empty where it is in none."""
    problem: str
    """A sentence that says what is wrong."""


class GradedProblemDocument(ProblemDocument):
    """A fault, or something odd, with its weight."""

    severity: Literal["error", "warning"]
    """`error`: the checkpoint is at fault. `warning`: odd, but every byte that counts can be read."""


class ErrorDocument(TypedDict):
    """Printed by any command with `--json` in place of its own document when it fails."""

    schema: Literal["csf-tool.error/1"]
    """The name and version of this document."""
    error: ProblemDocument
    """The fault; on the command line the same is one line on standard error."""
    exit_code: int
    """The exit code of the command: 1 the checkpoint is at fault, 2 wrong usage, 3 it could not be done here."""


def problem_document(problem: Problem | CsfToolError) -> ProblemDocument:
    """The document of a problem, or of an error."""
    return {"code": problem.code.value, "file": problem.file, "tensor": problem.tensor, "problem": problem.problem}


def error_document(error: CsfToolError) -> ErrorDocument:
    """The document of an error that ends a command."""
    return {"schema": "csf-tool.error/1", "error": problem_document(error), "exit_code": error.exit_code}
