"""Documents of a container: manifest, build contract, receipts, verification record.

Each document is read and written here, by the same fields: those of a dataclass are the keys of the document. Nothing
in one is believed before it is checked: numbers of bytes are numbers, hashes are 64 lowercase hex digits, shard names
are plain file names. What is wrong is raised; `container_reading` makes problems of it.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from csf_tool.codec.formats import CsfFormat
from csf_tool.codes import Code
from csf_tool.disk.headers import LENGTH_BYTES, SHARD_SUFFIX, parse_header
from csf_tool.disk.json_files import is_count
from csf_tool.disk.paths import safe_relative
from csf_tool.disk.tensors import Header
from csf_tool.errors import CheckpointError
from csf_tool.text import brief

MANIFEST = "manifest.json"
CONTRACT = "build-contract.json"
VERIFICATION = "verification.json"
RECEIPTS = "receipts"
TENSORS = "tensors"
METADATA = "metadata"

SCHEMA = "schema"
CODEC = "codec"
STATUS = "status"
SHARDS = "shards"
METADATA_SHA256 = "metadata_sha256"
SOURCE_INDEX_SHA256 = "source_index_sha256"
SOURCE_NAMES = "source_names"
SOURCE_HEADER = "source_header_base64"
SCALES = "scales"
PLANE_COUNT = "compressed_scale_count"

KNOWN_STATUS = "complete"
"""The status that a finished container states."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_sha256(value: Any) -> bool:
    """Whether a value is a SHA-256 as documents have it."""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def receipt_name(file: str) -> str:
    """The path of the receipt of a shard, in the container."""
    return f"{RECEIPTS}/{file}.json"


def require_object(document: Any, file: str) -> dict[str, Any]:
    """A document that must be a JSON object.

    Raises:
        CheckpointError: it is no object.
    """
    if not isinstance(document, dict):
        raise CheckpointError("not a JSON object", Code.INVALID_JSON, file)
    return document


@dataclass(frozen=True)
class Origin:
    """The origin of the dense checkpoint, which manifest and contract state beside the format."""

    family: str
    source_model_id: str
    source_revision: str


IDENTITY = (SCHEMA, CODEC, *(f.name for f in fields(Origin)))
"""The keys with which manifest and contract both begin."""


def _identity(fmt: CsfFormat, origin: Origin) -> dict[str, Any]:
    return {SCHEMA: fmt.schema, CODEC: fmt.codec, **asdict(origin)}


@dataclass(frozen=True)
class ShardRow:
    """The manifest's row of one shard: facts of the stored file (target) and of the original (source)."""

    file: str
    target_file_bytes: int | None = None
    target_sha256: str | None = None
    source_file_bytes: int | None = None
    source_sha256: str | None = None

    @classmethod
    def parse(cls, entry: Any, where: str) -> "ShardRow":
        """The row that `entry` is; it stands in the document `where`.

        Raises:
            CheckpointError: a field is not what it should be.
        """
        if not isinstance(entry, dict):
            raise CheckpointError("the entry of a shard is not an object", Code.INVALID_FIELD, where)
        name = entry.get("file")
        if not isinstance(name, str) or "/" in name or not name.endswith(SHARD_SUFFIX):
            problem = f"shard name {brief(name)} is not a plain file name ending in {SHARD_SUFFIX}"
            raise CheckpointError(problem, Code.INVALID_FIELD, where)
        safe_relative(name, where)
        return cls(name, **{key: _value(entry, key, where) for key in ROW_KEYS[1:] if key in entry})

    def render(self) -> dict[str, Any]:
        """The row as it is written; what is unknown is left out, never invented."""
        return {key: value for key, value in sorted(asdict(self).items()) if value is not None}


ROW_KEYS = tuple(f.name for f in fields(ShardRow))


def _value(entry: dict[str, Any], key: str, where: str) -> Any:
    """A number of bytes or a hash, as the key tells."""
    value = entry.get(key)
    if key.endswith("_bytes") and not is_count(value):
        raise CheckpointError(f"{key} is {brief(value)}, not a number of bytes", Code.INVALID_FIELD, where)
    if key.endswith("sha256") and not is_sha256(value):
        raise CheckpointError(f"{key} is {brief(value)}, not 64 lowercase hex digits", Code.INVALID_FIELD, where)
    return value


@dataclass(frozen=True)
class ScaleReceipt:
    """A receipt's entry of one plane."""

    name: str
    dtype: str
    shape: tuple[int, int]
    fixed_bytes: int
    exception_bytes: int
    source_bytes: int
    source_sha256: str

    @classmethod
    def parse(cls, name: str, entry: Any, where: str) -> "ScaleReceipt":
        """The entry of the plane `name`; it stands in the document `where`.

        Raises:
            CheckpointError: a field is not what it should be.
        """
        try:
            if not isinstance(entry, dict):
                raise CheckpointError("not an object", Code.INVALID_FIELD, where)
            dtype, shape = entry.get("dtype"), entry.get("shape")
            if not isinstance(shape, list) or len(shape) != 2 or not all(map(_is_size, shape)):
                raise CheckpointError(f"shape is {brief(shape)}, not [rows, columns]", Code.INVALID_FIELD, where)
            if not isinstance(dtype, str):
                raise CheckpointError(f"dtype is {brief(dtype)}", Code.INVALID_FIELD, where)
            return cls(name, dtype, (shape[0], shape[1]), **{key: _value(entry, key, where) for key in _SCALE_VALUES})
        except CheckpointError as error:
            raise error.within(f"{SCALES}: {name}") from error

    def render(self) -> dict[str, Any]:
        """The entry as it is written, under the plane's name."""
        entry = {**asdict(self), "shape": list(self.shape)}
        del entry["name"]
        return entry


_SCALE_VALUES = tuple(f.name for f in fields(ScaleReceipt)[3:])


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 32


@dataclass(frozen=True)
class Receipt:
    """Record of one shard's original: its complete header, and its planes."""

    row: ShardRow
    source_header: bytes
    scales: dict[str, ScaleReceipt]

    @classmethod
    def parse(cls, document: Any, where: str) -> "Receipt":
        """The receipt that a document is.

        Raises:
            CheckpointError: a field is not what it should be.
        """
        row = ShardRow.parse(require_object(document, where), where)
        scales = document.get(SCALES)
        if not isinstance(scales, dict):
            raise CheckpointError(f"{SCALES} is not an object", Code.INVALID_FIELD, where)
        header = _decode_header(document, where)
        return cls(row, header, {name: ScaleReceipt.parse(name, entry, where) for name, entry in scales.items()})

    def render(self) -> dict[str, Any]:
        """The document."""
        return {
            **self.row.render(),
            SOURCE_HEADER: base64.b64encode(self.source_header).decode(),
            SCALES: {name: scale.render() for name, scale in self.scales.items()},
        }

    def parse_source_header(self) -> Header:
        """The original shard's header.

        Raises:
            CheckpointError: the bytes are not a safetensors header.
        """
        where = receipt_name(self.row.file)
        length = int.from_bytes(self.source_header[:LENGTH_BYTES], "little")
        raw = self.source_header[LENGTH_BYTES:]
        try:
            if len(self.source_header) < LENGTH_BYTES or len(raw) != length:
                problem = f"states a header of {length} bytes, but has {len(raw)}"
                raise CheckpointError(problem, Code.INVALID_FIELD, where)
            return parse_header(raw, where, self.row.source_file_bytes)
        except CheckpointError as error:
            raise error.within(SOURCE_HEADER) from error


def _decode_header(document: dict[str, Any], where: str) -> bytes:
    text = document.get(SOURCE_HEADER)
    if not isinstance(text, str):
        raise CheckpointError(f"{SOURCE_HEADER} is missing", Code.INVALID_FIELD, where)
    try:
        header = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CheckpointError(f"{SOURCE_HEADER} is not base64: {error}", Code.INVALID_FIELD, where) from error
    # Unused bits of the last digit do not reach the bytes: only writing it again shows whether they are intact.
    if base64.b64encode(header).decode() != text:
        problem = f"{SOURCE_HEADER} is damaged: encoding its bytes in base64 gives another text"
        raise CheckpointError(problem, Code.DAMAGED_FIELD, where)
    return header


@dataclass(frozen=True)
class Totals:
    """Totals that the manifest states of all shards; None where a row does not say."""

    compressed_scale_count: int
    original_scale_bytes: int
    compressed_scale_bytes: int
    source_weight_file_bytes: int | None
    compressed_weight_file_bytes: int | None
    saved_weight_file_bytes: int | None

    @classmethod
    def of(cls, rows: Iterable[ShardRow], planes: int, dense_bytes: int, stored_bytes: int) -> "Totals":
        """The totals of these shards, with so many planes, and so many bytes of their scales, dense and stored."""
        rows = list(rows)
        before, after = _sum(row.source_file_bytes for row in rows), _sum(row.target_file_bytes for row in rows)
        saved = None if before is None or after is None else before - after
        return cls(planes, dense_bytes, stored_bytes, before, after, saved)

    def known(self) -> dict[str, int]:
        """The totals that are known, by the manifest's keys."""
        return {key: value for key, value in asdict(self).items() if value is not None}


TOTALS = tuple(f.name for f in fields(Totals))


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(filter(None, known))


def render_manifest(
    fmt: CsfFormat,
    origin: Origin,
    rows: list[ShardRow],
    metadata_sha256: dict[str, str],
    source_index_sha256: str | None,
    scales: list[tuple[int, int]],
    note: str | None = None,
) -> dict[str, Any]:
    """The manifest. `scales` has (dense bytes, stored bytes) of every plane; `note` says what is not known."""
    totals = Totals.of(rows, len(scales), sum(dense for dense, _ in scales), sum(stored for _, stored in scales))
    return {
        **_identity(fmt, origin),
        STATUS: KNOWN_STATUS,
        **({"source_headers": note} if note else {}),
        SHARDS: [row.render() for row in rows],
        METADATA_SHA256: dict(sorted(metadata_sha256.items())),
        **totals.known(),
        **({SOURCE_INDEX_SHA256: source_index_sha256} if source_index_sha256 else {}),
    }


def render_contract(
    fmt: CsfFormat, origin: Origin, planes: int, source_index_sha256: str | None, source_names: dict[str, str]
) -> dict[str, Any]:
    """The build contract: which shard held which tensor of the source."""
    return {
        **_identity(fmt, origin),
        PLANE_COUNT: planes,
        **({SOURCE_INDEX_SHA256: source_index_sha256} if source_index_sha256 else {}),
        SOURCE_NAMES: dict(sorted(source_names.items())),
    }


def verification(fmt: CsfFormat, shards: int, planes: int) -> dict[str, Any]:
    """The record of a check that has been made: every shard rebuilt, its hash compared."""
    return {SCHEMA: fmt.schema, "passed": True, SHARDS: shards, "scale_matrices": planes}
