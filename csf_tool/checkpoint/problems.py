"""What is wrong with a checkpoint, collected rather than raised, so that one fault never hides the rest."""

from dataclasses import dataclass
from enum import StrEnum

from csf_tool.text import escape


class Severity(StrEnum):
    """How bad a problem is."""

    ERROR = "error"
    """The checkpoint is at fault; expand refuses it."""

    WARNING = "warning"
    """Odd, but every byte that counts can still be read."""


@dataclass(frozen=True)
class Problem:
    """One problem: the file and the tensor it is in (empty where it is in none), and what it is."""

    file: str
    tensor: str
    problem: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        places = [escape(place) for place in (self.file, self.tensor) if place]
        return ": ".join([*places, escape(self.problem)])


def errors(problems: list[Problem]) -> list[Problem]:
    """The problems that make the checkpoint unfit to expand."""
    return [p for p in problems if p.severity is Severity.ERROR]


def warnings(problems: list[Problem]) -> list[Problem]:
    """The problems that are only odd."""
    return [p for p in problems if p.severity is Severity.WARNING]


def first_of(problems: list[Problem]) -> str:
    """The first of some problems, and how many more there are: what one line has room for."""
    more = f" (and {len(problems) - 1} more problems; csf-tool verify lists them)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}"
