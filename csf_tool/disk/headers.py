"""safetensors headers, validated once, here; later code trusts them.

A file is 8 bytes of little-endian header length, that many bytes of JSON, then the tensors' data without
holes or overlaps (https://github.com/huggingface/safetensors, README, Format). Dtypes that nobody knows are
kept as they are: only their sizes cannot be checked.
"""

import json
from typing import Any

from csf_tool.codes import Code
from csf_tool.disk import quick
from csf_tool.disk.json_files import is_count, parse_json
from csf_tool.disk.reader import Reader
from csf_tool.disk.tensors import MAX_NAME_LENGTH, METADATA_KEY, Header, HeaderFault, Tensor
from csf_tool.disk.wrong_content import HEAD_BYTES, SAFETENSORS, wrong_content
from csf_tool.dtypes import DTYPES, bits_of
from csf_tool.errors import CheckpointError
from csf_tool.text import brief

SHARD_SUFFIX = ".safetensors"

LENGTH_BYTES = 8
"""Bytes before the JSON: its length, little-endian."""

MAX_HEADER_BYTES = 100_000_000
"""Longest header, as in the reference implementation (safetensors `MAX_HEADER_SIZE`)."""

ALIGNMENT = 8
"""Written headers are padded with spaces to a multiple of this, as the reference implementation does."""


def read_header(reader: Reader, file_size: int) -> Header:
    """The header of an open safetensors file of `file_size` bytes.

    Raises:
        CheckpointError: the file is not safetensors: nothing can be said of its tensors.
    """
    name = reader.name
    head = bytes(reader.read(0, min(file_size, HEAD_BYTES)))
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    # Asked only where this is no header: the first bytes of a good one, its length, can look like anything.
    is_odd = length > MAX_HEADER_BYTES or head[LENGTH_BYTES : LENGTH_BYTES + 1] != b"{"
    if is_odd and (finding := wrong_content(head, SAFETENSORS)):
        raise CheckpointError(*finding, name)
    if problem := _length_fault(length, file_size):
        raise CheckpointError(problem, Code.NOT_SAFETENSORS, name)
    return parse_header(reader.read(LENGTH_BYTES, LENGTH_BYTES + length), name, file_size)


def _length_fault(length: int, file_size: int) -> str | None:
    """Why a file of that size cannot have a header of that length."""
    if file_size < LENGTH_BYTES:
        return f"has {file_size} bytes, too few for a safetensors file"
    if length > MAX_HEADER_BYTES:
        return f"not a safetensors file: it states a header of {length} bytes, but the limit is {MAX_HEADER_BYTES}"
    if LENGTH_BYTES + length > file_size:
        return (
            f"cut short inside its header: it has {file_size} bytes, but the header alone needs {LENGTH_BYTES + length}"
        )
    return None


def parse_header(raw: bytes | bytearray, name: str, file_size: int | None) -> Header:
    """The header whose JSON is `raw`. Without a `file_size` the end of the file is not checked.

    Raises:
        CheckpointError: `raw` is not a JSON object.
    """
    start = LENGTH_BYTES + len(raw)
    return quick.header(raw, start, file_size) or any_header(bytes(raw), start, name, file_size)


def any_header(raw: bytes, start: int, name: str, file_size: int | None) -> Header:
    """The header whose JSON is `raw`, however it is spelt and whatever its faults; data begin at `start`.

    Raises:
        CheckpointError: `raw` is not a JSON object.
    """
    document = _header_json(raw, name)
    faults: list[HeaderFault] = []
    metadata = _metadata(document.pop(METADATA_KEY, None), faults)
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


def _tensor(name: str, entry: Any, start: int, faults: list[HeaderFault]) -> Tensor | None:
    """The tensor that a header's entry describes; what is wrong with the entry is added to `faults`."""
    if len(name) > MAX_NAME_LENGTH:
        text = f"the name {brief(name)} has {len(name)} characters, but csf-tool reads at most {MAX_NAME_LENGTH}"
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
    if not isinstance(shape, list) or not all(is_count(n) for n in shape):
        return f"shape is {brief(shape)}, not a list of sizes"
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(is_count(n) for n in offsets):
        return f"data_offsets are {brief(offsets)}, not two offsets"
    begin, end = offsets
    if end < begin:
        return f"data_offsets end before they start: {begin}, {end}"
    return _shape_fault(dtype, shape, end - begin)


def _shape_fault(dtype: str, shape: list[int], nbytes: int) -> str | None:
    if dtype not in DTYPES:
        return None
    bits = bits_of(dtype, shape)
    if bits is None:
        return f"{dtype} {brief(shape)} is larger than any file"
    if bits == 8 * nbytes:
        return None
    if bits % 8:
        return f"{dtype} {brief(shape)} does not fill whole bytes"
    return f"{dtype} {brief(shape)} takes {bits // 8} bytes, but its offsets span {nbytes}"


def _coverage_faults(tensors: list[Tensor], start: int, complete: bool) -> list[HeaderFault]:
    """Overlaps and holes. Where an entry was unreadable (not `complete`), a hole may be its place."""
    faults = []
    at, before = start, ""
    for tensor in tensors:
        if tensor.begin < at:
            problem = f"its data overlaps the data of {brief(before)} by {at - tensor.begin} bytes"
            faults.append(HeaderFault(problem, Code.DATA_OVERLAP, tensor.name, hides_data=True))
        elif tensor.begin > at and complete:
            problem = f"there is a gap of {tensor.begin - at} bytes before its data"
            faults.append(HeaderFault(problem, Code.DATA_HOLE, tensor.name))
        if tensor.end > at:
            at, before = tensor.end, tensor.name
    return faults


def _size_faults(tensors: list[Tensor], start: int, file_size: int) -> list[HeaderFault]:
    end = max((t.end for t in tensors), default=start)
    if end < file_size:
        problem = f"{file_size - end} bytes follow the last tensor: the file has {file_size} bytes, not {end}"
        return [HeaderFault(problem, Code.TRAILING_BYTES)]
    if end == file_size:
        return []
    first = f"the file has {file_size} bytes, but its header needs {end}: {end - file_size} bytes are missing"
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
    document: dict[str, Any] = {METADATA_KEY: metadata} if metadata else {}
    end = 0
    for name, dtype, shape, nbytes in entries:
        begin, end = end, end + nbytes
        document[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
    raw = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % ALIGNMENT)
    return len(raw).to_bytes(LENGTH_BYTES, "little") + raw
