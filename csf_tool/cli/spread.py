"""Options that several commands share, declared once: as the fields of a dataclass."""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any, TypeVar

R = TypeVar("R")


def spread(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command the fields of its dataclass parameters as options; it is called with one object of each class."""
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: param.annotation for name, param in own.items() if is_dataclass(param.annotation)}
    fields = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}
    flat = {each.name: each for name, param in own.items() for each in fields.get(name, {name: param}).values()}

    @functools.wraps(command)
    def run(**given: Any) -> R:
        for name, group in groups.items():
            given[name] = group(**{field: given.pop(field) for field in fields[name] if field in given})
        return command(**given)

    declare(run, flat.values())
    return run


def declare(command: Callable[..., object], parameters: Iterable[inspect.Parameter]) -> None:
    """Declare the parameters that a command has for typer, whatever its code says."""
    shown = [param.replace(kind=param.KEYWORD_ONLY) for param in parameters]
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    command.__annotations__ = {param.name: param.annotation for param in shown}
