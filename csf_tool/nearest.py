"""The nearest of many names to one that is not among them. Files can hold any number of names, of any length."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

_NUMBER = re.compile(r"\d{1,18}")
_MOST_KINDS = 2000
_MOST_CHARACTERS = 500


def nearest(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names that `name` may be meant to be, the likeliest first: those that end with it, or look like it.

    Names that differ in numbers and case alone are of one kind, of which the one with the nearest numbers is taken.
    """
    if len(name) > _MOST_CHARACTERS:
        return []
    kinds: dict[str, list[str]] = {}
    ending: list[str] = []
    for each in names:
        if len(each) <= _MOST_CHARACTERS:
            kinds.setdefault(_NUMBER.sub("0", each).lower(), []).append(each)
            if each.endswith(f".{name}"):
                ending.append(each)
    if ending:
        return ending[:most]
    close = get_close_matches(_NUMBER.sub("0", name).lower(), list(islice(kinds, _MOST_KINDS)), most)
    return [min(kinds[kind], key=lambda each: _distance(name, each)) for kind in close]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that is not there; empty where nothing is near."""
    found = nearest(name, names)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _distance(a: str, b: str) -> tuple[int, int]:
    """Distance of the numbers of two names: in how many of them they differ, and by how much."""
    pairs = list(zip(map(int, _NUMBER.findall(a)), map(int, _NUMBER.findall(b)), strict=False))
    return sum(x != y for x, y in pairs), sum(abs(x - y) for x, y in pairs)
