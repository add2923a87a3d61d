"""JSON files as other software writes and reads them: configs, which are marked and carried, and decide about no byte.

One contract: the value is the one that transformers has of the file, Python's `json.load` of UTF-8. So `NaN` and
infinities are values like any other, a number past the largest double is infinite, of repeated keys the last counts,
and an escape may write half a character. Beyond that, a byte order mark and integers of any length are read. What other
readers refuse or take differently is no fault, and listed. Documents that decide about bytes are read by
`csf_tool.disk.json_files`.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from csf_tool.disk.json_files import faults_of, first_repeated, has_half_characters, read_as, refuse_deep
from csf_tool.disk.reader import MAX_JSON_BYTES
from csf_tool.text import brief

BYTE_ORDER_MARK = "\ufeff"

MAX_DEPTH = 400
"""Deepest nesting that is read: Python's own reader stops at about twice that, and code here calls itself a level."""

_MAX_DIGITS = 4300
"""Longest integer that Python reads."""

_CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Each is one object, by which Python takes documents with the same `NaN` for equal."""


class Lenient(NamedTuple):
    """The value of a JSON file, and what readers refuse or take differently in it, in words: one phrase a kind."""

    value: Any
    oddities: list[str]


class Repeating(dict[str, Any]):
    """An object in which `key` stands twice."""

    key: str


def load_lenient(path: Path, name: str) -> Lenient:
    """The document of a file, read leniently.

    Raises:
        CheckpointError: it is missing, too large, or not JSON by any reader.
        EnvironmentFault: the operating system cannot read it.
    """
    return read_as(parse_lenient, path, name, MAX_JSON_BYTES)


def parse_lenient(raw: bytes, name: str) -> Lenient:
    """`raw` as lenient JSON; see `load_lenient`."""
    found: dict[str, str] = {}

    def an_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) == len(pairs):
            return result
        repeating = Repeating(result)
        repeating.key = first_repeated(pairs)
        key = brief(repeating.key)
        found["key"] = (
            f"key {key} appears twice in one object: some readers use the first, some the last, and some refuse it"
        )
        return repeating

    def whole(text: str) -> float:
        if len(text) <= _MAX_DIGITS:
            return int(text)
        found["number"] = f"has a number with {len(text):,} digits, which Python refuses to read"
        return float(text)

    with faults_of(name):
        text = raw.decode("utf-8")
        if text.startswith(BYTE_ORDER_MARK):
            found["mark"] = "begins with a byte order mark, which transformers refuses"
            text = text[1:]
        value = json.loads(text, object_pairs_hook=an_object, parse_constant=_CONSTANTS.get, parse_int=whole)
        refuse_deep(value, text, MAX_DEPTH)
        if "\\u" in text and has_half_characters(value):
            found["half"] = "an escape writes half a character (a lone surrogate), which some readers refuse"
    return Lenient(value, list(found.values()))
