"""JSON files that are, nearly all of them, one long map of tensor names to files: an index, a build contract."""

import re
from pathlib import Path
from typing import Any

from csf_tool.disk.json_files import are_plain, load_json, parse_json
from csf_tool.disk.reader import read_document
from csf_tool.errors import CheckpointError, CsfToolError

_BETWEEN = re.compile(r'"[ \n\r\t]*:[ \n\r\t]*"([^"]*)"[ \n\r\t]*,[ \n\r\t]*"')
"""What stands between two names of a map, with the file that it gives."""

_LAYOUT = " \n\r\t"
"""Characters that JSON allows between its parts."""


def load_with_map(path: Path, name: str, key: str) -> Any:
    """The JSON document of a file, as `load_json` gives it; in half the time where `key` is a plain map of strings.

    Raises:
        CheckpointError: it is missing, too large, or not such a document.
        EnvironmentFault: the operating system cannot read it.
    """
    return _usual_document(path, key) or load_json(path, name)


def _usual_document(path: Path, key: str) -> dict[str, Any] | None:
    """The document of a file, if nothing in it is spelled in an unusual way.

    The text is cut between the names of the map. The rest, with an empty map in its place, is parsed as ever.
    """
    try:
        raw = read_document(path, "")
        text = raw.decode("utf-8")
    except (CsfToolError, UnicodeDecodeError):
        return None
    opening = re.search(rf'"{key}"[{_LAYOUT}]*:[{_LAYOUT}]*{{[{_LAYOUT}]*"', text)
    if not opening or text.count(f'"{key}"') > 1 or b"\\" in raw:
        return None
    close = text.find("}", opening.end())
    pieces = _BETWEEN.split(text[opening.end() : close].rstrip(_LAYOUT) + ',"')
    names, files = pieces[:-1:2], pieces[1::2]
    found = dict(zip(names, files, strict=True))
    if pieces[-1] or len(found) != len(names) or not are_plain([*names, *set(files)]):
        return None
    try:
        document = parse_json(f'{text[: opening.start()]}"{key}":{{}}{text[close + 1 :]}'.encode(), "")
    except CheckpointError:
        return None
    return {**document, key: found} if isinstance(document, dict) and document.get(key) == {} else None
