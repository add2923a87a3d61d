"""Members of the objects in a JSON text that is valid: where they begin and end."""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple, cast

_BLANKS = re.compile(r"[ \t\n\r]*+")
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

_KEY = re.compile(rf"{_BLANKS.pattern}({_STRING.pattern}){_BLANKS.pattern}:{_BLANKS.pattern}", re.DOTALL)
"""A member's key, up to its value."""

_PLAIN = re.compile(rf"{_STRING.pattern}|[^][{{}},\" \t\n\r]++", re.DOTALL)
"""A value that is no object and no list."""

_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""Finder of the ends of values; what they are is known from elsewhere."""


class Span(NamedTuple):
    """A range of the text."""

    begin: int
    end: int


class Member(NamedTuple):
    """A member of an object: its key, and where key and value begin and the value ends."""

    key: str
    begin: int
    key_end: int
    value: int
    end: int


def after_blanks(text: str, at: int) -> int:
    """The place after the blanks at `at`, if any."""
    match = _BLANKS.match(text, at)
    assert match  # blanks may be none
    return match.end()


def members_in(text: str, begin: int) -> Iterator[Member]:
    """The members of the object that begins at `begin`."""
    at = begin + 1
    while key := _KEY.match(text, at):
        value = key.end()
        plain = _PLAIN.match(text, value)
        end = plain.end() if plain else _DECODER.raw_decode(text, value)[1]
        yield Member(_read(key[1]), key.start(1), key.end(1), value, end)
        at = after_blanks(text, end) + 1  # past the comma, or the end of the object
        if text[at - 1] == "}":
            return


def members_with(text: str, key: str, value: str) -> Iterator[Span]:
    """The members with this key and this string as their value, wherever they stand."""
    wanted = f'"{key}"'
    for match in _STRING.finditer(text):
        if match[0] != wanted and ("\\" not in match[0] or _read(match[0]) != key):
            continue
        colon = after_blanks(text, match.end())
        if text[colon : colon + 1] == ":":
            found = _STRING.match(text, after_blanks(text, colon + 1))
            if found and _read(found[0]) == value:
                yield Span(match.start(), found.end())


def _read(spelt: str) -> str:
    """The string that is spelt so."""
    return cast(str, json.loads(spelt)) if "\\" in spelt else spelt[1:-1]
