"""Every error kind of csf-tool, each with the exit code that the command line gives it.

A message is one line: what is wrong, in which file and tensor, expected and got, what to do.
"""


class CsfToolError(Exception):
    """Base of all errors that csf-tool raises on purpose."""

    exit_code = 1


class CheckpointError(CsfToolError):
    """Raised when the checkpoint is at fault: broken, incomplete, or contradicting itself."""

    exit_code = 1


class StreamError(CheckpointError, ValueError):
    """Raised when a plane's streams do not fit it, or break a rule of the format."""


class UsageError(CsfToolError):
    """Raised when the request cannot be right: wrong arguments, or a folder that is not a checkpoint at all."""

    exit_code = 2


class EnvironmentFault(CsfToolError):
    """Raised when the work cannot be done here: disk, network, permission, or a missing extra."""

    exit_code = 3
