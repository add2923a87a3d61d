"""Comparison of two JSON files by value and type, as strict readers see them.

Python's own `==` takes 384.0 for 384, 1 for true and -0.0 for 0; and its parser keeps the last of repeated keys.
"""

import json
import math
import reprlib
from typing import Any, NamedTuple

from csf_tool.codes import Code, Finding
from csf_tool.disk.json_files import first_repeated
from csf_tool.disk.lenient_json import Repeating
from csf_tool.text import brief

_ABSENT = object()


class _Number(NamedTuple):
    """A number as a tuple of kind and value, never equal to a string or to true."""

    kind: str
    text: str

    def __repr__(self) -> str:
        return self.text


class Document(NamedTuple):
    """The value of a JSON file, its numbers as `_Number`, and the place of a repeated key."""

    value: Any
    repeated: str | None


def parse_values(raw: bytes, encoding: str = "utf-8") -> Document:
    """The document in a file. `NaN` and infinities, which other tools write, are values like any other.

    Raises:
        ValueError: it is not JSON in this encoding.
        RecursionError: it is nested too deeply.
    """
    numbers: dict[tuple[str, str], _Number] = {}  # few differ: each is kept once
    repeating: list[Repeating] = []

    def number(kind: str, text: str) -> _Number:
        return numbers.setdefault((kind, text), _Number(kind, text))

    def an_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        repeating.append(Repeating(found))
        repeating[-1].key = first_repeated(pairs)
        return repeating[-1]

    value = json.loads(
        raw.decode(encoding),
        parse_int=lambda text: number("integer", text),
        parse_float=lambda text: number("float", _shortest(text)),
        parse_constant=lambda text: number("constant", text),
        object_pairs_hook=an_object,
    )
    return Document(value, _place_of(value, repeating[-1]) if repeating else None)


def _shortest(text: str) -> str:
    """One spelling for all numbers of the same double; a number past the largest double keeps its own."""
    value = float(text)
    return repr(value) if math.isfinite(value) else text


def _place_of(value: Any, wanted: Repeating) -> str:
    """The repeated key and its object, in words.

    `wanted`, the object that was read last, is always in the document: an object that a repeated key discarded was
    read earlier.
    """
    pending: list[tuple[str, Any]] = [("", value)]
    while pending[-1][1] is not wanted:
        at, node = pending.pop()
        if isinstance(node, dict):
            pending += [(f"{at}.{key}" if at else key, child) for key, child in node.items()]
        elif isinstance(node, list):
            pending += [(f"{at}[{i}]", child) for i, child in enumerate(node)]
    at = pending[-1][0]
    return f"key {brief(wanted.key)} appears twice in one object, at {brief(at) if at else 'its top'}"


def difference(ours: Any, theirs: Any) -> Finding | None:
    """The first difference in the values of two documents; order of keys and spelling do not count."""
    at = ""
    while ours != theirs:
        if isinstance(ours, dict) and isinstance(theirs, dict):
            key = next(k for k in [*theirs, *ours] if ours.get(k, _ABSENT) != theirs.get(k, _ABSENT))
            at = f"{at}.{key}" if at else key
            ours, theirs = ours.get(key, _ABSENT), theirs.get(key, _ABSENT)
        else:
            text = f"differs from the reference at {at or 'its top'}: {_value(ours)} here, {_value(theirs)} there"
            return Finding(text, Code.SIDE_FILE_DIFFERS)
    return None


def _value(value: Any) -> str:
    return "nothing" if value is _ABSENT else reprlib.repr(value)
