"""Batches of at most a number of bytes, which go to a device together."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], nbytes: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """The items in their order, in batches of at most `limit` bytes; a larger one is a batch by itself."""
    batch: list[T] = []
    total = 0
    for item in items:
        size = nbytes(item)
        if batch and total + size > limit:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch
