"""Names of shards that say how many there are: `model-00002-of-00005.safetensors`, `model_2_of_5.fp8.safetensors`."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from csf_tool.disk.headers import SHARD_SUFFIX

MAX_NUMBERED_SHARDS = 10_000
"""Largest number of shards in a set that names are trusted with: a name can claim any number."""

OF = r"[-_. ]?of[-_. ]?"
"""Pattern of what stands between a shard's number and how many there are."""

_NUMBERED = re.compile(
    rf"(?P<before>.*?)(?<!\d)(?P<number>\d{{1,9}})(?P<of>{OF})(?P<total>\d{{1,9}})(?!\d)"
    rf"(?P<after>(?:[-_.][\w.-]*)?){re.escape(SHARD_SUFFIX)}",
    re.DOTALL | re.ASCII | re.IGNORECASE,
)
"""The name of a shard of a set. What follows the total is a variant's name; a browser's `(1)` makes it a copy."""


class NumberedSet(NamedTuple):
    """The parts that all names of a set have in common."""

    before: str
    of: str
    total: str
    after: str


class Numbered(NamedTuple):
    """A shard's set, and its number as it is written."""

    set: NumberedSet
    number: str


def numbered(name: str) -> Numbered | None:
    """The set that a shard's name speaks of, and its number; None where it speaks of none."""
    if match := _NUMBERED.fullmatch(name):
        return Numbered(NumberedSet(match["before"], match["of"], match["total"], match["after"]), match["number"])
    return None


def numbered_sets(names: Iterable[str]) -> dict[NumberedSet, list[str]]:
    """The sets that some names speak of, each with the numbers of its shards as they are written."""
    found: dict[NumberedSet, list[str]] = defaultdict(list)
    for name in names:
        if place := numbered(name):
            found[place.set].append(place.number)
    return dict(found)


def whole_sets(names: Iterable[str]) -> list[str]:
    """The names of all shards of the sets that some names speak of, numbered from 0 where one of these is 0.

    Part of a variant beside the set itself is a few copies: it claims nothing.
    """
    result: list[str] = []
    sets = numbered_sets(names)
    for (before, of, total, after), numbers in sets.items():
        is_copies = after and NumberedSet(before, of, total, "") in sets and len(numbers) < int(total)
        if not is_copies and len(result) + int(total) <= MAX_NUMBERED_SHARDS:
            first = 0 if 0 in map(int, numbers) else 1
            width = max((len(number) for number in numbers if number.startswith("0")), default=1)
            every = range(first, first + int(total))
            result += [f"{before}{i:0{width}}{of}{total}{after}{SHARD_SUFFIX}" for i in every]
    return result
