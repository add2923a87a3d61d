"""Errors of the Python API that are safetensors' own as well, for code that catches what safetensors raises."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from safetensors import SafetensorError

from csf_tool import errors
from csf_tool.errors import CheckpointError, CsfToolError, StreamError, UsageError


class _Shown(CsfToolError):
    """Shown in tracebacks under the name that callers catch: that of the public class among its bases."""

    def __init_subclass__(cls) -> None:
        public = next(base for base in cls.__mro__ if base.__module__ == errors.__name__)
        cls.__module__, cls.__qualname__, cls.__name__ = public.__module__, public.__qualname__, public.__name__

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (_KINDS.index(type(self)), self.fields)


class Missing(_Shown, UsageError, FileNotFoundError):
    """Raised when there is nothing at a path."""


class Misused(_Shown, UsageError, SafetensorError):
    """Raised when the request cannot be right."""


class Broken(_Shown, CheckpointError, SafetensorError):
    """Raised when the checkpoint is at fault."""


class BrokenStream(_Shown, StreamError, SafetensorError):
    """Raised when a plane's streams break a rule."""


_KINDS: list[type[CsfToolError]] = [Missing, Misused, Broken, BrokenStream]


def _again(kind: int, fields: tuple[Any, ...]) -> CsfToolError:
    return _KINDS[kind](*fields)


@contextmanager
def as_safetensors() -> Iterator[None]:
    """Errors of the block as ones that are safetensors' own as well."""
    try:
        yield
    except (Missing, Misused, Broken, BrokenStream):
        raise
    except StreamError as error:
        raise BrokenStream(*error.fields) from error
    except CheckpointError as error:
        raise Broken(*error.fields) from error
    except UsageError as error:
        raise Misused(*error.fields) from error
