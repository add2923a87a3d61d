"""JSON files as other software writes and reads them: configs, which are marked and carried, and decide about no byte.

One contract: the value is the one that transformers has of the file, Python's `json.load` of UTF-8. So `NaN`,
infinities, numbers past a double (infinite), repeated keys (the last counts) and escaped halves of characters are
read. Beyond that, a byte order mark and integers of any length are. Whatever of this other readers may refuse or take
differently is listed, and never a fault. Documents that decide about bytes are read by `csf_tool.disk.json_files`.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from csf_tool.codes import Code
from csf_tool.disk.json_files import first_repeated, has_half_characters, refuse_deep
from csf_tool.disk.reader import MAX_JSON_BYTES, read_document
from csf_tool.disk.wrong_content import HEAD_BYTES, JSON, wrong_content
from csf_tool.errors import CheckpointError
from csf_tool.text import brief, count

BYTE_ORDER_MARK = "\ufeff"

MAX_DEPTH = 400
"""Deepest nesting that is read: Python's own reader stops at about twice that, and code here calls itself a level."""

_MAX_DIGITS = 4300
"""Longest integer that Python reads."""

_SHOWN = 3
"""Most oddities that are named."""


class Lenient(NamedTuple):
    """The value of a JSON file, and what in it not every reader takes, in words."""

    value: Any
    oddities: list[str]

    @property
    def oddity(self) -> str:
        """All oddities in one sentence; empty where there are none."""
        if not self.oddities:
            return ""
        more = f", and {count(len(self.oddities) - _SHOWN, 'thing')} more" if len(self.oddities) > _SHOWN else ""
        return f"holds what not every JSON reader takes, or takes alike: {', '.join(self.oddities[:_SHOWN])}{more}"


def load_lenient(path: Path, name: str, limit: int = MAX_JSON_BYTES) -> Lenient:
    """The document of a file, read leniently.

    Raises:
        CheckpointError: it is missing, too large, or not JSON by any reader.
        EnvironmentFault: the operating system cannot read it.
    """
    raw = read_document(path, name, limit)
    try:
        return parse_lenient(raw, name)
    except CheckpointError as error:
        if finding := wrong_content(raw[:HEAD_BYTES], JSON):
            raise CheckpointError(*finding, name) from error
        raise


def parse_lenient(raw: bytes, name: str) -> Lenient:
    """`raw` as lenient JSON; see `load_lenient`."""
    found: dict[str, None] = {}  # as a set that keeps the order

    def constant(text: str) -> float:
        found[text] = None
        return float(text)

    def an_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            found[f"key {brief(first_repeated(pairs))} twice in one object"] = None
        return result

    def fraction(text: str) -> float:
        number = float(text)
        if math.isinf(number):
            found[f"the number {brief(text)}"] = None
        return number

    def whole(text: str) -> float:
        if len(text) <= _MAX_DIGITS:
            return int(text)
        found[f"a number of {len(text):,} digits"] = None
        return float(text)

    try:
        text = raw.decode("utf-8")
        if text.startswith(BYTE_ORDER_MARK):
            found["a byte order mark (transformers refuses it)"] = None
            text = text[1:]
        value = json.loads(
            text, object_pairs_hook=an_object, parse_constant=constant, parse_float=fraction, parse_int=whole
        )
        refuse_deep(value, text, MAX_DEPTH)
        if "\\u" in text and has_half_characters(value):
            found["half a character (a lone surrogate)"] = None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"not UTF-8 at byte {error.start}", Code.INVALID_JSON, name) from error
    except RecursionError as error:
        raise CheckpointError("JSON nested too deeply", Code.INVALID_JSON, name) from error
    except ValueError as error:
        raise CheckpointError(f"not valid JSON: {error}", Code.INVALID_JSON, name) from error
    return Lenient(value, list(found))
