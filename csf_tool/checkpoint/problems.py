"""Problems of a checkpoint, collected rather than raised, so that one fault never hides the rest."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from csf_tool.codes import INCOMPLETE, Code
from csf_tool.errors import CheckpointError
from csf_tool.text import escape


class Severity(StrEnum):
    """The severity of a problem."""

    ERROR = "error"
    """The checkpoint is at fault; expand refuses it."""

    WARNING = "warning"
    """Odd, but every byte that counts can still be read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: what it is, of which kind, and the file and the tensor it is in (empty where it is in none).

    A `summary` is what people are told once, in place of every problem of the file that has the same.
    """

    problem: str
    code: Code
    file: str = ""
    tensor: str = ""
    severity: Severity = Severity.ERROR
    summary: str = ""

    @classmethod
    def of(cls, error: CheckpointError, file: str = "", tensor: str = "") -> "Problem":
        """The problem that an error stands for: in `file` and `tensor`, or where the error says that it is.

        Where the error names another place than these, its words keep that.
        """
        file, tensor = file or error.file, tensor or error.tensor
        places = (error.file, file), (error.tensor, tensor)
        elsewhere = [place for place, known in places if place not in ("", known)]
        return cls(": ".join([*elsewhere, error.problem]), error.code, file, tensor)

    def as_error(self) -> CheckpointError:
        """The error that says the same."""
        return CheckpointError(self.problem, self.code, self.file, self.tensor)

    def __str__(self) -> str:
        places = [escape(place) for place in (self.file, self.tensor) if place]
        return ": ".join([*places, escape(self.problem)])


class Problems(list[Problem]):
    """The problems of one checkpoint. The checkpoint owns them; code that reads a part of it adds its own."""

    def error(self, problem: str, code: Code, file: str = "", tensor: str = "") -> None:
        """Note that the checkpoint is at fault."""
        self.append(Problem(problem, code, file, tensor))

    def warn(self, problem: str, code: Code, file: str = "", tensor: str = "") -> None:
        """Note something odd."""
        self.append(Problem(problem, code, file, tensor, Severity.WARNING))


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """The problems that the checkpoint is at fault for."""
    return [p for p in problems if p.severity is Severity.ERROR]


def obstacles(problems: Iterable[Problem]) -> list[Problem]:
    """The errors for which nothing can be made of the checkpoint: all but those of tensors that were never there."""
    return [p for p in errors(problems) if p.code not in INCOMPLETE]


def excused(problems: Iterable[Problem]) -> list[Problem]:
    """The errors that are no `obstacles`, as warnings."""
    return [replace(p, severity=Severity.WARNING) for p in errors(problems) if p.code in INCOMPLETE]


def warnings(problems: Iterable[Problem]) -> list[Problem]:
    """The problems that are only odd."""
    return [p for p in problems if p.severity is Severity.WARNING]
