"""Every error of csf-tool, each class with the exit code that the command line gives it.

A message is one line: what is wrong, in which file and tensor, expected and got, what to do.
"""

from typing import Any, Self

from csf_tool.codes import Code


class CsfToolError(Exception):
    """Base of all errors that csf-tool raises on purpose: what is wrong, of which kind, in which file and tensor.

    `str` of it is all of that in one line but for the kind.
    """

    exit_code = 1

    def __init__(self, problem: str, code: Code, file: str = "", tensor: str = "") -> None:
        super().__init__(": ".join([*filter(None, (file, tensor)), problem]))
        self.problem = problem
        self.code = code
        self.file = file
        self.tensor = tensor

    @property
    def fields(self) -> tuple[str, Code, str, str]:
        """The arguments that make an error of another class say the same."""
        return self.problem, self.code, self.file, self.tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.fields

    def within(self, part: str) -> Self:
        """The same error, said to be in a part of its file."""
        return type(self)(f"{part}: {self.problem}", self.code, self.file, self.tensor)


class CheckpointError(CsfToolError):
    """Raised when the checkpoint is at fault: broken, incomplete, or contradicting itself."""

    exit_code = 1


class StreamError(CheckpointError, ValueError):
    """Raised when a plane's streams do not fit it, or break a rule of the format."""


class UsageError(CsfToolError):
    """Raised when the request cannot be right: wrong arguments, or a folder that is not a checkpoint at all."""

    exit_code = 2

    def __init__(self, problem: str, code: Code = Code.USAGE, file: str = "", tensor: str = "") -> None:
        super().__init__(problem, code, file, tensor)


class EnvironmentFault(CsfToolError):
    """Raised when the work cannot be done here: disk, network, permission, or a missing extra."""

    exit_code = 3

    def __init__(self, problem: str, code: Code = Code.ENVIRONMENT, file: str = "", tensor: str = "") -> None:
        super().__init__(problem, code, file, tensor)


class NotInstalled(EnvironmentFault, ImportError):
    """Raised when a package that the work needs is not installed; an ImportError for code that looks for one."""


def not_installed(package: str, brought_by: str = "") -> NotInstalled:
    """The error of a package that is not installed; `brought_by` is what to install where that has another name."""
    return NotInstalled(f"{package} is not installed: pip install {brought_by or package}")


def system_fault(error: OSError) -> EnvironmentFault:
    """The refusal of the system, as an error of csf-tool's."""
    reason = error.strerror or str(error)
    if not error.filename:
        return EnvironmentFault(f"input/output: {reason}")
    return EnvironmentFault(reason, file=str(error.filename))
