"""Runs of neighbours, to be processed together."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def runs(items: Iterable[T], follows: Callable[[T, T], bool]) -> Iterator[list[T]]:
    """The items in runs, as long as they get: in each, every item but the first follows the one before it."""
    run: list[T] = []
    for item in items:
        if run and not follows(run[-1], item):
            yield run
            run = []
        run.append(item)
    if run:
        yield run
