"""Arguments of Python callers: the right types, by name, before anything is done with them."""

import os
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from csf_tool.errors import UsageError


def check_type(name: str, value: object, *allowed: type) -> None:
    """Check the type of an argument.

    Raises:
        TypeError: it has another.
    """
    if not isinstance(value, allowed):
        raise _wrong_type(name, value, " or ".join(_words(kind) for kind in allowed))


def as_path(name: str, value: object) -> Path:
    """The path that an argument names.

    Raises:
        TypeError: it is no path.
        UsageError: it is empty, which would be the working folder.
    """
    check_type(name, value, str, os.PathLike)
    path = os.fspath(value)  # type: ignore[call-overload]
    check_type(name, path, str)
    if not path.strip():
        raise UsageError(f"{name}: is empty: give a path")
    return Path(home_expanded(path))


def home_expanded(path: str) -> str:
    """A path with `~` at its beginning replaced, as on the command line: no folder of that name is ever meant."""
    return str(Path(path).expanduser()) if path == "~" or path.startswith("~/") else path


def as_names(name: str, value: Iterable[str]) -> tuple[str, ...]:
    """The names in an argument; a string is one of them, not so many letters.

    Raises:
        TypeError: they are no strings.
    """
    if isinstance(value, str):
        return (value,)
    check_type(name, value, Iterable)
    names = tuple(value)
    for each in names:
        check_type(f"{name}: each of them", each, str)
    return names


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, object]) -> None:
    """Check the arguments of a call against the annotations of the function.

    Raises:
        TypeError: one has a type that its annotation does not allow.
        UsageError: one is none of the words that its annotation allows.
    """
    for name, value in arguments.items():
        if (hint := _hints(function).get(name)) and not _fits(value, hint):
            words = [word for each in _alternatives(hint) if get_origin(each) is Literal for word in get_args(each)]
            if words and isinstance(value, str):
                raise UsageError(f"{name} {value!r}: give {' or '.join(words)}")
            raise _wrong_type(name, value, " or ".join(dict.fromkeys(map(_words, _alternatives(hint)))))


_hints = cache(get_type_hints)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: object, hint: Any) -> bool:
    for each in _alternatives(hint):
        if get_origin(each) is Literal:
            if isinstance(value, str) and value in get_args(each):
                return True
        elif isinstance(value, get_origin(each) or each) and not (isinstance(value, bool) and each is int):
            return True
    return False


def _words(kind: Any) -> str:
    """A type as a message names it."""
    if get_origin(kind) is Literal:
        return "str"
    return "None" if kind is type(None) else str((get_origin(kind) or kind).__name__)


def _wrong_type(name: str, value: object, wanted: str) -> TypeError:
    return TypeError(f"{name}: takes {wanted}, not {type(value).__name__}")
