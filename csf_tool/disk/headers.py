"""safetensors headers, validated once at the door; later code trusts what it gets from here.

A file is 8 bytes of little-endian header length, that many bytes of JSON, then the tensors' data without
holes or overlaps (https://github.com/huggingface/safetensors, README, Format). Dtypes that nobody knows are
kept as they are: only their sizes cannot be checked.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from csf_tool.codes import Code
from csf_tool.disk.json_files import are_plain, parse_json
from csf_tool.disk.reader import Reader
from csf_tool.disk.wrong_content import HEAD_BYTES, SAFETENSORS, wrong_content
from csf_tool.dtypes import DTYPES
from csf_tool.errors import CheckpointError
from csf_tool.text import brief

SHARD_SUFFIX = ".safetensors"

LENGTH_BYTES = 8
"""Bytes before the JSON: its length, little-endian."""

MAX_HEADER_BYTES = 100_000_000
"""Longest header, as in the reference implementation (safetensors `MAX_HEADER_SIZE`)."""

MAX_NAME_LENGTH = 4096
"""Longest name of a tensor, in characters. Names are taken apart and looked up part by part."""

ALIGNMENT = 8
"""Written headers are padded with spaces to a multiple of this, as the reference implementation does."""

METADATA_KEY = "__metadata__"

_MAX_OFFSET = 1 << 63

_COMPACT: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False}
"""How json.dumps is to write: as the known writers do."""


_ENTRY = re.compile(r'":\{"dtype":"([^"]*","shape":\[[^"]*)\],"data_offsets":\[([^"]*)\]\}(?:,"|\} *\Z)')
"""What stands between two names in a header as the known writers write it, or after the last: one entry.

No part of it takes the quotes that it begins with: an entry that breaks off is looked at once, not again and
again from every place where one could have begun.
"""


class Tensor(NamedTuple):
    """One tensor of a shard: where its bytes lie, counted from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.end - self.begin


_tensor_of = partial(tuple.__new__, Tensor)
"""`Tensor._make` without a step in Python: half a million are made at once."""


@dataclass(frozen=True, slots=True)
class HeaderFault:
    """What is wrong with a header; `tensor` is empty when no single tensor is to blame.

    With `hides_data` the tensor's bytes are others' as well, or past the end of the file: they are not to be read.
    """

    problem: str
    code: Code
    tensor: str = ""
    hides_data: bool = False


@dataclass(frozen=True)
class Header:
    """A parsed header: the tensors in the order of their data, a column for each of their fields, and its faults.

    Tensors whose entry makes no sense are in `faults` and not in the columns; tensors that overlap, or end past
    the end of the file, are in both.
    """

    data_start: int
    metadata: dict[str, str]
    names: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    begins: list[int]
    ends: list[int]
    faults: list[HeaderFault]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Tensor]:
        return map(_tensor_of, zip(self.names, self.dtypes, self.shapes, self.begins, self.ends, strict=True))

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return dict(zip(self.names, self, strict=True))

    @cached_property
    def unreadable(self) -> set[str]:
        """Tensors whose bytes are not to be read. What is left are at most as many bytes as the file has."""
        return {fault.tensor for fault in self.faults if fault.hides_data}

    @property
    def data_end(self) -> int:
        """Where the file should end."""
        return max(self.ends, default=self.data_start)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(self.ends) - sum(self.begins)


def read_header(reader: Reader, file_size: int) -> Header:
    """The header of an open safetensors file of `file_size` bytes.

    Raises:
        CheckpointError: the file is not safetensors: nothing can be said of its tensors.
    """
    name = reader.name
    head = bytes(reader.read(0, min(file_size, HEAD_BYTES)))
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    # Only where this is no header: the length of a good one may well be the bytes of a space or a "<".
    is_odd = length > MAX_HEADER_BYTES or head[LENGTH_BYTES : LENGTH_BYTES + 1] != b"{"
    if is_odd and (found := wrong_content(head, SAFETENSORS)):
        raise CheckpointError(*found, name)
    if problem := _length_fault(length, file_size):
        raise CheckpointError(problem, Code.NOT_SAFETENSORS, name)
    return parse_header(reader.read(LENGTH_BYTES, LENGTH_BYTES + length), name, file_size)


def _length_fault(length: int, file_size: int) -> str | None:
    """Why a file of that size cannot have a header of that length."""
    if file_size < LENGTH_BYTES:
        return f"{file_size} bytes, too short for a safetensors file"
    if length > MAX_HEADER_BYTES:
        return f"not a safetensors file: it claims a header of {length} bytes, the limit is {MAX_HEADER_BYTES}"
    if LENGTH_BYTES + length > file_size:
        return f"cut short inside its header: {file_size} bytes, the header alone takes {LENGTH_BYTES + length}"
    return None


def parse_header(raw: bytes | bytearray, name: str, file_size: int | None) -> Header:
    """The header whose JSON is `raw`. Without a `file_size` the end of the file is not checked.

    Raises:
        CheckpointError: `raw` is not a JSON object.
    """
    header = _usual_header(raw)
    if header is None or file_size not in (None, header.data_end):
        return _any_header(bytes(raw), name, file_size)
    return header


def _usual_header(raw: bytes | bytearray) -> Header | None:
    """The header whose JSON is `raw` if it is spelled as all known writers do and no tensor has a fault.

    It is what `_any_header` would give, in a third of the time: the text is cut at the entries, and what lies
    between them are names. Nothing is taken on trust: every distinct dtype and shape is parsed, and the offsets
    must be, to the letter, those that follow from the sizes.
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
    metadata = _usual_metadata(opening)
    known = {kind: _usual_kind(kind) for kind in set(kinds)}
    if metadata is None or None in known.values() or not _are_usual_names(names):
        return None
    found = [known[kind] for kind in kinds]
    dtypes, shapes, sizes = map(list, zip(*found, strict=True))
    expected = list(map(",".join, pairwise(map(str, accumulate(sizes, initial=0)))))
    if offsets != expected or sum(sizes) >= _MAX_OFFSET:
        return None
    start = LENGTH_BYTES + len(raw)
    bounds = list(accumulate(sizes, initial=start))
    return Header(start, metadata, names, dtypes, shapes, bounds[:-1], bounds[1:], [])


def _usual_metadata(opening: str) -> dict[str, str] | None:
    """The metadata in what stands before the first tensor: nothing but the brace, or metadata and a comma."""
    if opening == "{":
        return {}
    if not opening.startswith("{") or not opening.endswith(","):
        return None
    try:
        document = parse_json((opening[:-1] + "}").encode(), "")
    except CheckpointError:
        return None
    faults: list[HeaderFault] = []
    metadata = _metadata(document.get(METADATA_KEY), faults)
    return metadata if document.keys() == {METADATA_KEY} and not faults else None


def _usual_kind(text: str) -> tuple[str, tuple[int, ...], int] | None:
    """Dtype, shape and bytes of tensors from what `_ENTRY` calls the kind: `BF16","shape":[2,3`."""
    dtype, _, sizes = text.partition('","shape":[')
    try:
        shape = json.loads(f"[{sizes}]")
    except (ValueError, RecursionError):
        return None
    if dtype not in DTYPES or not all(map(_is_count, shape)):
        return None
    bits = _bits(dtype, shape)
    return None if bits is None or bits % 8 else (dtype, tuple(shape), bits // 8)


def _are_usual_names(names: list[str]) -> bool:
    are_usual = are_plain(names) and METADATA_KEY not in names and len(set(names)) == len(names)
    return are_usual and max(map(len, names)) <= MAX_NAME_LENGTH


def _any_header(raw: bytes, name: str, file_size: int | None) -> Header:
    """The header whose JSON is `raw`, however it is written and whatever is wrong with it."""
    document = _header_json(raw, name)
    faults: list[HeaderFault] = []
    metadata = _metadata(document.pop(METADATA_KEY, None), faults)
    start = LENGTH_BYTES + len(raw)
    tensors = [t for key, entry in document.items() if (t := _tensor(key, entry, start, faults)) is not None]
    tensors.sort(key=lambda t: (t.begin, t.end))
    faults += _coverage_faults(tensors, start, complete=len(tensors) == len(document))
    if file_size is not None:
        faults += _size_faults(tensors, start, file_size)
    names, dtypes, shapes, begins, ends = map(list, zip(*tensors, strict=True)) if tensors else ([], [], [], [], [])
    return Header(start, metadata, names, dtypes, shapes, begins, ends, faults)


def _header_json(raw: bytes, name: str) -> dict[str, Any]:
    """The header's JSON object.

    Finding a duplicate key or half a character costs a second, slower parse. It is done only where there are
    more colons than keys, or escapes: never in a header as the known writers write it.
    """
    if not raw.startswith(b"{"):
        raise CheckpointError("the header does not start with '{': not a safetensors file", Code.NOT_SAFETENSORS, name)
    try:
        document = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return _strict_object(raw, name)  # says what is wrong
    assert isinstance(document, dict)  # by its first byte
    keys = len(document) + sum(len(value) for value in document.values() if isinstance(value, dict))
    if raw.count(b":") != keys or b"\\u" in raw or b"NaN" in raw or b"Infinity" in raw:
        return _strict_object(raw, name)
    return document


def _strict_object(raw: bytes, name: str) -> dict[str, Any]:
    """The JSON object of a header, read strictly."""
    try:
        document = parse_json(raw, name)
    except CheckpointError as error:
        raise error.within("header") from error
    assert isinstance(document, dict)  # by its first byte
    return document


def _metadata(entry: Any, faults: list[HeaderFault]) -> dict[str, str]:
    if entry is None:  # absent, or null: the reference implementation takes both
        return {}
    if isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values()):
        return entry
    faults.append(HeaderFault(f"{METADATA_KEY} is not a map of strings", Code.INVALID_HEADER))
    return {}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_OFFSET


def _tensor(name: str, entry: Any, start: int, faults: list[HeaderFault]) -> Tensor | None:
    """The tensor that a header's entry describes; what is wrong with the entry is added to `faults`."""
    if len(name) > MAX_NAME_LENGTH:
        text = f"the name {brief(name)} has {len(name)} characters, more than the {MAX_NAME_LENGTH} that are read"
        faults.append(HeaderFault(text, Code.INVALID_HEADER))
    elif problem := _entry_fault(entry):
        faults.append(HeaderFault(problem, Code.INVALID_HEADER, name))
    else:
        begin, end = entry["data_offsets"]
        return Tensor(name, entry["dtype"], tuple(entry["shape"]), start + begin, start + end)
    return None


def _entry_fault(entry: Any) -> str | None:
    """Why an entry describes no tensor."""
    if not isinstance(entry, dict):
        return "its header entry is not an object"
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        return f"dtype is {brief(dtype)}, not a string"
    if not isinstance(shape, list) or not all(_is_count(n) for n in shape):
        return f"shape is {brief(shape)}, not a list of sizes"
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(n) for n in offsets):
        return f"data_offsets are {brief(offsets)}, not two offsets"
    begin, end = offsets
    if end < begin:
        return f"data_offsets end before they begin: {begin}, {end}"
    return _shape_fault(dtype, shape, end - begin)


def _bits(dtype: str, shape: list[int]) -> int | None:
    """Bits that a tensor of a known dtype takes, or None where that is more than any file holds."""
    total = DTYPES[dtype].bits
    for n in shape:
        total *= n
        if total > 8 * _MAX_OFFSET:  # as the reference implementation: even when a later size is 0
            return None
    return total


def _shape_fault(dtype: str, shape: list[int], nbytes: int) -> str | None:
    if dtype not in DTYPES:
        return None
    bits = _bits(dtype, shape)
    if bits is None:
        return f"{dtype} {brief(shape)} is larger than any file"
    if bits == 8 * nbytes:
        return None
    if bits % 8:
        return f"{dtype} {brief(shape)} does not fill whole bytes"
    return f"{dtype} {brief(shape)} takes {bits // 8} bytes, its offsets span {nbytes}"


def _coverage_faults(tensors: list[Tensor], start: int, complete: bool) -> list[HeaderFault]:
    """Overlaps and holes. Where an entry was unreadable (not `complete`), a hole may be its place."""
    faults = []
    at, before = start, ""
    for tensor in tensors:
        if tensor.begin < at:
            problem = f"its data overlap those of {brief(before)} by {at - tensor.begin} bytes"
            faults.append(HeaderFault(problem, Code.DATA_OVERLAP, tensor.name, hides_data=True))
        elif tensor.begin > at and complete:
            problem = f"a hole of {tensor.begin - at} bytes lies before its data"
            faults.append(HeaderFault(problem, Code.DATA_HOLE, tensor.name))
        if tensor.end > at:
            at, before = tensor.end, tensor.name
    return faults


def _size_faults(tensors: list[Tensor], start: int, file_size: int) -> list[HeaderFault]:
    end = max((t.end for t in tensors), default=start)
    if end < file_size:
        problem = f"{file_size - end} bytes follow the last tensor: the file is {file_size}, not {end} bytes"
        return [HeaderFault(problem, Code.TRAILING_BYTES)]
    if end == file_size:
        return []
    first = f"the file is {file_size} bytes, its header needs {end}: {end - file_size} bytes are missing"
    past = f"past the end of the file ({file_size} bytes)"
    return [HeaderFault(first, Code.TRUNCATED)] + [
        HeaderFault(f"ends at byte {t.end}, {past}", Code.TRUNCATED, t.name, hides_data=True)
        for t in tensors
        if t.end > file_size
    ]


def render_header(metadata: dict[str, str], entries: list[tuple[str, str, tuple[int, ...], int]]) -> bytes:
    """A complete header, length bytes and padding included, for tensors laid out one after another.

    `entries` are (name, dtype, shape, bytes) in the order of their data.
    """
    # In a third of the time that it takes to make an object of every entry for json.dumps: most are of few kinds.
    kinds = {kind: _render_kind(*kind) for kind in {(dtype, shape) for _, dtype, shape, _ in entries}}
    ends = accumulate(nbytes for *_, nbytes in entries)
    written = [f"{encode_basestring(METADATA_KEY)}:{json.dumps(metadata, **_COMPACT)}"] if metadata else []
    written += [
        f"{encode_basestring(name)}:{kinds[dtype, shape]}{end - nbytes},{end}]}}"
        for (name, dtype, shape, nbytes), end in zip(entries, ends, strict=True)
    ]
    raw = f"{{{','.join(written)}}}".encode()
    raw += b" " * (-len(raw) % ALIGNMENT)
    return len(raw).to_bytes(LENGTH_BYTES, "little") + raw


def _render_kind(dtype: str, shape: tuple[int, ...]) -> str:
    """A tensor's entry up to its offsets."""
    entry = json.dumps({"dtype": dtype, "shape": list(shape), "data_offsets": []}, **_COMPACT)
    return entry.removesuffix("]}")
