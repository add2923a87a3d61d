"""Fault: one of a tensor, which headers alone show."""

from typing import NamedTuple

from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.checkpoint.stored import Stored
from csf_tool.codes import Code


class Fault(NamedTuple):
    """A fault of one tensor: its kind, and its text; where it `lacks` nothing, its form alone is odd."""

    code: Code
    text: str
    row: int
    severity: Severity = Severity.ERROR
    lacks: bool = True

    def problem(self, stored: Stored) -> Problem:
        """The problem of a checkpoint that it is."""
        return Problem(self.text, self.code, stored.shards[self.row].name, stored.names[self.row], self.severity)
