"""Short ways for JSON of half a million names, as the known writers spell it.

One contract: what a function here gives is what the general way gives; None or False says that this one must be asked.
`tests/disk/test_quick.py` holds them to it. What they save, in processor time, of 368,736 tensors in 39 shards whose
`stats` takes 1.3 s: `header` 1.4 s, `spells_out` 0.5 s.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO

from csf_tool.disk.json_files import is_count, parse_json
from csf_tool.disk.paths import safe_relative
from csf_tool.disk.reader import file_size
from csf_tool.disk.tensors import MAX_NAME_LENGTH, METADATA_KEY, Header
from csf_tool.dtypes import DTYPES, bits_of
from csf_tool.errors import CheckpointError, CsfToolError

_ENTRY = re.compile(r'":\{"dtype":"([^"]*","shape":\[[^"]*)\],"data_offsets":\[([^"]*)\]\}(?:,"|\} *\Z)')
"""An entry of a header, with all that stands between its name and the next: its dtype and shape, and its offsets.

Only the quotes written out here match, so that an entry that breaks off is tried once, not from every quote on.
"""

_ESCAPED = bytes(range(32)) + b'"\\'
"""Bytes that strings in JSON hold as escapes only."""

_PIECE_BYTES = 1 << 20
_PIECE_LINES = 1 << 13


def header(raw: bytes | bytearray, start: int, whole: int | None) -> Header | None:
    """The header that `headers.any_header` gives, if it has no fault; `whole` is the size of the file, where it counts.

    The text is cut at the entries, and what lies between them are names. Every distinct dtype and shape is parsed,
    and the offsets must be, to the letter, those that follow from the sizes.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    pieces = _ENTRY.split(text)
    names, kinds, offsets = pieces[:-1:3], pieces[1::3], pieces[2::3]
    if not names or pieces[-1] or text.endswith('"'):
        return None
    opening, _, names[0] = names[0].rpartition('"')
    metadata = _metadata(opening)
    known = {kind: _kind(kind) for kind in set(kinds)}
    if metadata is None or None in known.values() or not _are_usual_names(names):
        return None
    dtypes, shapes, sizes = map(list, zip(*map(known.__getitem__, kinds), strict=True))
    expected = list(map(",".join, pairwise(map(str, accumulate(sizes, initial=0)))))
    bounds = list(accumulate(sizes, initial=start))
    if offsets != expected or not is_count(bounds[-1] - start) or whole not in (None, bounds[-1]):
        return None
    return Header(start, metadata, names, dtypes, shapes, bounds[:-1], bounds[1:], [])


def _metadata(opening: str) -> dict[str, str] | None:
    """The metadata in what stands before the first tensor: the brace alone, or metadata and a comma."""
    if opening == "{":
        return {}
    if not opening.startswith("{") or not opening.endswith(","):
        return None
    try:
        document = parse_json((opening[:-1] + "}").encode(), "")
    except CheckpointError:
        return None
    metadata = document.pop(METADATA_KEY, None)
    is_map = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    return metadata if is_map and not document else None


def _kind(text: str) -> tuple[str, tuple[int, ...], int] | None:
    """Dtype, shape and bytes of tensors whose entries have this first group of `_ENTRY`: `BF16","shape":[2,3`."""
    dtype, _, sizes = text.partition('","shape":[')
    try:
        shape = json.loads(f"[{sizes}]")
    except (ValueError, RecursionError):
        return None
    if dtype not in DTYPES or not all(map(is_count, shape)):
        return None
    bits = bits_of(dtype, shape)
    return None if bits is None or bits % 8 else (dtype, tuple(shape), bits // 8)


def _are_usual_names(names: list[str]) -> bool:
    raw = "".join(names).encode("utf-8")
    if len(raw.translate(None, _ESCAPED)) != len(raw):
        return False
    unique = set(names)
    return METADATA_KEY not in unique and len(unique) == len(names) and max(map(len, names)) <= MAX_NAME_LENGTH


def spells_out(path: Path, key: str, placed: Mapping[str, Sequence[str]]) -> bool:
    """Whether a JSON file has a map of exactly these names to their files at `key`, sorted and as `json.dumps` has it.

    `placed` are names by file, each file a safe path with a name or more. Text is compared with text, piece by piece:
    memory that is touched but once costs more than the comparison.
    """
    lines = sorted([f'"{name}": "{file}"' for file, names in placed.items() for name in names])
    if not lines or not all(placed.values()) or len(set().union(*placed.values())) != len(lines):
        return False
    quoted_key = f'"{key}"'.encode()
    try:
        file_size(path, "")
        with open(path, "rb") as file:
            rest = _without_lines(file, quoted_key, lines)
        document = parse_json(rest, "")
        for name in placed:
            safe_relative(name, "")
    except (OSError, UnicodeEncodeError, CsfToolError):
        return False
    if b"\\" in rest or rest.count(quoted_key) != 1:  # the key may have another spelling, or another place
        return False
    return isinstance(document, dict) and document.get(key) == {}


def _without_lines(file: BinaryIO, quoted_key: bytes, lines: list[str]) -> bytes:
    """The bytes of a file before and after its map's `lines`; none where it has other lines, or escapes in them."""
    head = file.read(_PIECE_BYTES)
    opening = re.search(re.escape(quoted_key) + rb': {([ \n]*)(?=")', head)
    if not opening:
        return b""
    file.seek(opening.end())
    between = f",{opening[1].decode() or ' '}"
    for at in range(0, len(lines), _PIECE_LINES):
        piece = lines[at : at + _PIECE_LINES]
        is_last = at + len(piece) == len(lines)
        expected = between.join(piece if is_last else [*piece, ""]).encode("utf-8")
        # Plain names and files leave four quotes a line and the breaks between lines: anything more needs an escape.
        marks = 4 * len(piece) + between.count("\n") * (len(piece) - is_last)
        if len(expected.translate(None, _ESCAPED)) + marks != len(expected) or file.read(len(expected)) != expected:
            return b""
    return head[: opening.end()] + file.read(_PIECE_BYTES)
