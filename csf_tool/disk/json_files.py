"""JSON files: read strictly, and written as the Hugging Face libraries write them.

Strictness is for documents that decide about bytes: headers, indexes, manifests, receipts, and csf-tool's own.
Configs are read by `csf_tool.disk.lenient_json`.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from csf_tool.codes import Code
from csf_tool.disk.reader import MAX_JSON_BYTES, read_document
from csf_tool.disk.wrong_content import HEAD_BYTES, JSON, wrong_content
from csf_tool.dtypes import MAX_BYTES
from csf_tool.errors import CheckpointError
from csf_tool.text import brief

T = TypeVar("T")

MAX_JSON_DEPTH = 40
"""Deepest nesting that is read: later code calls itself, and JSON is indented, once a level."""


def load_json(path: Path, name: str, limit: int = MAX_JSON_BYTES) -> Any:
    """The JSON document of a file, read strictly: no duplicate keys, no NaN, UTF-8 only, nesting of bounded depth.

    Raises:
        CheckpointError: it is missing, too large, or not such a document.
        EnvironmentFault: the operating system cannot read it.
    """
    return read_as(parse_json, path, name, limit)


def read_as(parse: Callable[[bytes, str], T], path: Path, name: str, limit: int) -> T:
    """A file as `parse` reads it; of a file that is no JSON at all, the error says what it is."""
    raw = read_document(path, name, limit)
    try:
        return parse(raw, name)
    except CheckpointError as error:
        if finding := wrong_content(raw[:HEAD_BYTES], JSON):
            raise CheckpointError(*finding, name) from error
        raise


def parse_json(raw: bytes, name: str) -> Any:
    """`raw` as strict JSON; see `load_json`."""
    with faults_of(name):
        text = raw.decode("utf-8")
        document = json.loads(
            text, object_pairs_hook=_object_without_duplicates, parse_constant=_no_constant, parse_float=_finite
        )
        refuse_deep(document, text, MAX_JSON_DEPTH)
        if "\\u" in text and has_half_characters(document):
            raise ValueError("an escape writes half a character (a lone surrogate)")
        return document


@contextmanager
def faults_of(name: str) -> Iterator[None]:
    """A block that parses the file `name`: what stops it is the checkpoint's fault.

    Raises:
        CheckpointError: the file is no UTF-8, nested too deeply, or not valid JSON.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise CheckpointError(f"not UTF-8 at byte {error.start}", Code.INVALID_JSON, name) from error
    except RecursionError as error:
        raise CheckpointError("JSON nested too deeply", Code.INVALID_JSON, name) from error
    except ValueError as error:
        raise CheckpointError(f"not valid JSON: {error}", Code.INVALID_JSON, name) from error


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"key {brief(first_repeated(pairs))} appears twice in one object")
    return result


def first_repeated(pairs: list[tuple[str, Any]]) -> str:
    """The first key that stands twice among the members of an object."""
    seen: set[str] = set()
    return next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]


def refuse_deep(document: Any, text: str, limit: int) -> None:
    """Refuse a document that is nested deeper than `limit`; `text` is what it was read from.

    Raises:
        RecursionError: it is.
    """
    if text.count("[") + text.count("{") <= limit:
        return
    level = [document]
    for _ in range(limit):
        children = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for some in children for child in some if isinstance(child, dict | list)]
        if not level:
            return
    raise RecursionError


def has_half_characters(document: Any) -> bool:
    """Whether escapes write one half of a surrogate pair, which no file name and no UTF-8 file can hold."""
    try:
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{brief(text)} is a number that no reader can store and no writer writes")
    return number


def _no_constant(value: str) -> Any:
    raise ValueError(f"{value} is not JSON")


def render_json(document: Any) -> bytes:
    """A JSON file as the Hugging Face libraries write it.

    Raises:
        CheckpointError: a string in it, which can only be a file's name, is no UTF-8.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = text[text.rfind("\n", 0, error.start) + 1 : text.find("\n", error.start)].strip(" ,")
        problem = f"JSON cannot hold a file name that is not UTF-8, such as {line}: rename the file"
        raise CheckpointError(problem, Code.UNUSABLE_NAME) from error


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value can be a size, an offset or a number of bytes in a file."""
    return type(value) is int and 0 <= value < MAX_BYTES
