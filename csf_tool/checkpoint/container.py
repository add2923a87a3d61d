"""The container layout's own files, as validated dataclasses: manifest, build contract, receipts.

Nothing in them is believed before it is checked: every field has a type here, hashes are 64 lowercase hex
digits, shard names are plain file names. What contradicts something else is a `Problem`, not an exception.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.index import INDEX_NAME
from csf_tool.checkpoint.name_maps import load_with_map
from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.codec.formats import FORMATS, CsfFormat, format_by_schema
from csf_tool.disk.headers import LENGTH_BYTES, SHARD_SUFFIX, Header, parse_header
from csf_tool.disk.json_files import load_json
from csf_tool.disk.paths import safe_relative
from csf_tool.errors import CheckpointError
from csf_tool.text import brief, count

MANIFEST = "manifest.json"
CONTRACT = "build-contract.json"
VERIFICATION = "verification.json"
RECEIPTS = "receipts"
TENSORS = "tensors"
METADATA = "metadata"

KNOWN_STATUS = "complete"
"""The status that a finished container states."""

_IDENTITY = ("schema", "codec", "family", "source_model_id", "source_revision")
_TOTALS = (
    "compressed_scale_count",
    "original_scale_bytes",
    "compressed_scale_bytes",
    "source_weight_file_bytes",
    "compressed_weight_file_bytes",
    "saved_weight_file_bytes",
)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ShardRow:
    """What the manifest says of one shard: of the stored file (target) and of the original (source)."""

    file: str
    target_file_bytes: int | None = None
    target_sha256: str | None = None
    source_file_bytes: int | None = None
    source_sha256: str | None = None


@dataclass(frozen=True)
class ScaleReceipt:
    """What a receipt says of one plane."""

    name: str
    dtype: str
    shape: tuple[int, int]
    fixed_bytes: int
    exception_bytes: int
    source_bytes: int
    source_sha256: str


@dataclass(frozen=True)
class Receipt:
    """What is known of one shard's original: its complete header, and its planes."""

    row: ShardRow
    source_header: bytes
    scales: dict[str, ScaleReceipt]

    def parse_source_header(self) -> Header:
        """The original shard's header.

        Raises:
            CheckpointError: the bytes are not a safetensors header.
        """
        where = f"{RECEIPTS}/{self.row.file}.json: source_header_base64"
        length = int.from_bytes(self.source_header[:LENGTH_BYTES], "little")
        raw = self.source_header[LENGTH_BYTES:]
        if len(self.source_header) < LENGTH_BYTES or len(raw) != length:
            raise CheckpointError(f"{where}: claims a header of {length} bytes, holds {len(raw)}")
        return parse_header(raw, where, self.row.source_file_bytes)


@dataclass
class Container:
    """The metadata of a container checkpoint, as far as it could be read."""

    root: Path
    fmt: CsfFormat
    manifest: dict[str, Any]
    rows: dict[str, ShardRow] = field(default_factory=dict)
    metadata_sha256: dict[str, str] = field(default_factory=dict)
    contract: dict[str, Any] | None = None
    source_names: dict[str, str] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def origin(self) -> str:
        """The dense model's repository and revision, as far as the manifest states them."""
        stated = (self.manifest.get(key) for key in ("source_model_id", "source_revision"))
        return "@".join(value for value in stated if isinstance(value, str) and value)

    @property
    def metadata_root(self) -> Path:
        """Where the source's config, tokenizer and index lie: metadata/, or the root of a home-made container."""
        folder = self.root / METADATA
        return folder if folder.is_dir() else self.root

    @property
    def scale_receipts(self) -> dict[str, ScaleReceipt]:
        """What the receipts say of every plane, by the scale's name."""
        return {name: scale for receipt in self.receipts.values() for name, scale in receipt.scales.items()}

    def error(self, file: str, problem: str, tensor: str = "") -> None:
        """Note that the container is at fault."""
        self.problems.append(Problem(file, tensor, problem))

    def warn(self, file: str, problem: str, tensor: str = "") -> None:
        """Note something odd."""
        self.problems.append(Problem(file, tensor, problem, Severity.WARNING))


def read_container(root: Path, manifest: Any = None) -> Container:
    """The container at `root`; `manifest` stands for a manifest file that is not written yet.

    Raises:
        CheckpointError: the manifest cannot be read, or is not a CSF container's.
    """
    if manifest is None:
        manifest = load_json(root / MANIFEST, MANIFEST)
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{MANIFEST}: not a JSON object")
    container = Container(root, _format(manifest), manifest)
    _read_rows(container)
    _read_metadata_hashes(container)
    _read_contract(container)
    _read_receipts(container)
    _compare_identity(container)
    _check_spelling(container)
    return container


def _format(manifest: dict[str, Any]) -> CsfFormat:
    schema = manifest.get("schema")
    fmt = format_by_schema(schema) if isinstance(schema, str) else None
    if fmt is None:
        known = ", ".join(f.schema for f in FORMATS)
        what = "another tool's manifest"
        if isinstance(schema, str) and "csf" in schema.lower():
            what = "an older or newer container, for which another version of csf-tool is needed"
        raise CheckpointError(f"{MANIFEST}: schema {brief(schema)} is not one that csf-tool reads ({known}): {what}")
    return fmt


def _read_rows(container: Container) -> None:
    shards = container.manifest.get("shards")
    if not isinstance(shards, list):
        container.error(MANIFEST, "shards is not a list")
        return
    for entry in shards:
        try:
            row = read_row(entry, MANIFEST)
        except CheckpointError as error:
            container.error(MANIFEST, str(error))
            continue
        if row.file in container.rows:
            container.error(MANIFEST, f"lists shard {row.file} twice")
        container.rows[row.file] = row
    if not container.rows:
        container.error(MANIFEST, "lists no shard that could be read")
    for key in (f.name for f in fields(ShardRow)):
        if lacking := sum(getattr(row, key) is None for row in container.rows.values()):
            container.warn(MANIFEST, f"does not give {key} of {count(lacking, 'shard')}")


def read_row(entry: Any, where: str) -> ShardRow:
    """The row of a shard, from a manifest or a receipt.

    Raises:
        CheckpointError: a field is not what it should be.
    """
    if not isinstance(entry, dict):
        raise CheckpointError("a shard's row is not an object")
    name = entry.get("file")
    if not isinstance(name, str) or "/" in name or not name.endswith(SHARD_SUFFIX):
        raise CheckpointError(f"shard name {brief(name)} is not a plain file name ending in {SHARD_SUFFIX}")
    safe_relative(name, where)
    return ShardRow(
        file=name,
        target_file_bytes=_optional_count(entry, "target_file_bytes"),
        target_sha256=_optional_sha256(entry, "target_sha256"),
        source_file_bytes=_optional_count(entry, "source_file_bytes"),
        source_sha256=_optional_sha256(entry, "source_sha256"),
    )


def _optional_count(entry: dict[str, Any], key: str) -> int | None:
    return None if key not in entry else _count(entry, key)


def _count(entry: dict[str, Any], key: str) -> int:
    value = entry.get(key)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise CheckpointError(f"{key} is {brief(value)}, not a number of bytes")
    return value


def _optional_sha256(entry: dict[str, Any], key: str) -> str | None:
    return None if key not in entry else _sha256(entry, key)


def _sha256(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise CheckpointError(f"{key} is {brief(value)}, not 64 lowercase hex digits")
    return value


def _read_metadata_hashes(container: Container) -> None:
    hashes = container.manifest.get("metadata_sha256", {})
    if not isinstance(hashes, dict):
        container.error(MANIFEST, "metadata_sha256 is not an object")
        return
    for name in hashes:
        try:
            safe_relative(name, MANIFEST)
            container.metadata_sha256[name] = _sha256(hashes, name)
        except CheckpointError as error:
            container.error(MANIFEST, f"metadata_sha256: {error}")


def _read_contract(container: Container) -> None:
    if not (container.root / CONTRACT).exists():
        container.warn(CONTRACT, "not there: which shard held which source tensor is unknown")
        return
    try:
        contract = load_with_map(container.root / CONTRACT, CONTRACT, "source_names")
    except CheckpointError as error:
        container.error(CONTRACT, str(error).removeprefix(f"{CONTRACT}: "))
        return
    if not isinstance(contract, dict):
        container.error(CONTRACT, "not a JSON object")
        return
    container.contract = contract
    names = contract.get("source_names")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        container.error(CONTRACT, "source_names is not a map of tensor name to shard file")
        return
    container.source_names = names
    for file in sorted(set(names.values()) - set(container.rows)):
        container.error(CONTRACT, f"source_names names shard {brief(file)}, which the manifest does not list")
    for file in sorted(set(container.rows) - set(names.values())):
        container.error(CONTRACT, f"source_names has no tensor of shard {brief(file)}, which the manifest lists")


def _read_receipts(container: Container) -> None:
    folder = container.root / RECEIPTS
    if not folder.is_dir():
        container.warn(RECEIPTS, "not there: the source's bytes cannot be proved, nor its shards rebuilt bit for bit")
        return
    for row in container.rows.values():
        where = f"{RECEIPTS}/{row.file}.json"
        try:
            container.receipts[row.file] = _receipt(load_json(container.root / where, where), row)
        except CheckpointError as error:
            container.error(where, str(error).removeprefix(f"{where}: "))
    expected = {f"{file}.json" for file in container.rows}
    for stray in sorted(p.name for p in folder.iterdir() if p.name not in expected):
        container.warn(f"{RECEIPTS}/{stray}", "is the receipt of no shard that the manifest lists")


def _receipt(document: Any, row: ShardRow) -> Receipt:
    if not isinstance(document, dict):
        raise CheckpointError("not a JSON object")
    own = read_row(document, RECEIPTS)
    for f in fields(own):
        mine, theirs = getattr(own, f.name), getattr(row, f.name)
        if mine != theirs:
            raise CheckpointError(f"{f.name} is {brief(mine)}, the manifest says {brief(theirs)}")
    scales = document.get("scales")
    if not isinstance(scales, dict):
        raise CheckpointError("scales is not an object")
    return Receipt(own, _source_header(document), {name: _scale(name, e) for name, e in scales.items()})


def _source_header(document: dict[str, Any]) -> bytes:
    text = document.get("source_header_base64")
    if not isinstance(text, str):
        raise CheckpointError("source_header_base64 is missing")
    try:
        header = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CheckpointError(f"source_header_base64 is not base64: {error}") from error
    # Unused bits of the last digit do not reach the bytes: only writing it again shows whether they are intact.
    if base64.b64encode(header).decode() != text:
        raise CheckpointError("source_header_base64 is not what base64 of its own bytes gives: it is damaged")
    return header


def _scale(name: str, entry: Any) -> ScaleReceipt:
    if not isinstance(entry, dict):
        raise CheckpointError(f"scales: {name}: not an object")
    shape = entry.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and 0 < n < 1 << 32 for n in shape):
        raise CheckpointError(f"scales: {name}: shape is {brief(shape)}, not [rows, columns]")
    if not isinstance(entry.get("dtype"), str):
        raise CheckpointError(f"scales: {name}: dtype is {brief(entry.get('dtype'))}")
    try:
        return ScaleReceipt(
            name=name,
            dtype=entry["dtype"],
            shape=(shape[0], shape[1]),
            fixed_bytes=_count(entry, "fixed_bytes"),
            exception_bytes=_count(entry, "exception_bytes"),
            source_bytes=_count(entry, "source_bytes"),
            source_sha256=_sha256(entry, "source_sha256"),
        )
    except CheckpointError as error:
        raise CheckpointError(f"scales: {name}: {error}") from error


def _compare_identity(container: Container) -> None:
    """Schema, codec, family and source must be the same in manifest, contract and verification record."""
    manifest = container.manifest
    if manifest.get("codec") != container.fmt.codec:
        container.error(
            MANIFEST, f"codec is {brief(manifest.get('codec'))}, its schema goes with {container.fmt.codec!r}"
        )
    if not isinstance(manifest.get("family"), str):
        container.error(MANIFEST, f"family is {brief(manifest.get('family'))}, not a string")
    for key in (*_IDENTITY, "compressed_scale_count", "source_index_sha256"):
        if container.contract is None or (key not in container.contract and key not in manifest):
            continue
        mine, theirs = container.contract.get(key), manifest.get(key)
        if mine != theirs:
            container.error(CONTRACT, f"{key} is {brief(mine)}, the manifest says {brief(theirs)}")
    index_hash = container.metadata_sha256.get(INDEX_NAME)
    stated = manifest.get("source_index_sha256")
    if stated is not None and index_hash is not None and stated != index_hash:
        container.error(MANIFEST, f"source_index_sha256 is {brief(stated)}, metadata_sha256 says {index_hash!r}")


def check_totals(container: Container, planes: int, dense_bytes: int, stored_bytes: int) -> None:
    """Compare what manifest and verification record state of the whole with the shards.

    These have so many planes, and so many bytes of their scales, dense and stored. What differs becomes a problem of
    the container.
    """
    source = [row.source_file_bytes for row in container.rows.values()]
    target = [row.target_file_bytes for row in container.rows.values()]
    found: dict[str, int | None] = {
        "compressed_scale_count": planes,
        "original_scale_bytes": dense_bytes,
        "compressed_scale_bytes": stored_bytes,
        "source_weight_file_bytes": _sum(source),
        "compressed_weight_file_bytes": _sum(target),
    }
    before, after = found["source_weight_file_bytes"], found["compressed_weight_file_bytes"]
    found["saved_weight_file_bytes"] = None if before is None or after is None else before - after
    for key in _TOTALS:
        stated = container.manifest.get(key)
        if stated is not None and found[key] is not None and stated != found[key]:
            container.error(MANIFEST, f"{key} is {brief(stated)}, the shards and rows give {found[key]}")
    _check_verification(container, planes)


def _sum(values: list[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def _check_verification(container: Container, planes: int) -> None:
    """What the publisher says to have verified must at least be about this container."""
    if not (container.root / VERIFICATION).exists():
        return
    try:
        record = load_json(container.root / VERIFICATION, VERIFICATION)
    except CheckpointError as error:
        container.error(VERIFICATION, str(error).removeprefix(f"{VERIFICATION}: "))
        return
    if not isinstance(record, dict):
        container.error(VERIFICATION, "not a JSON object")
        return
    expected = {
        "schema": container.fmt.schema,
        "passed": True,
        "shards": len(container.rows),
        "scale_matrices": planes,
    }
    for key, value in expected.items():
        if key in record and record[key] != value:
            container.error(VERIFICATION, f"{key} is {brief(record[key])}, this container gives {value!r}")
    for problem in _misspelt(record, expected):
        container.error(VERIFICATION, problem)


def _check_spelling(container: Container) -> None:
    """A known key or status with one wrong character is damage; anything else unknown is somebody's addition."""
    manifest_keys = (*_IDENTITY, *_TOTALS, "status", "shards", "metadata_sha256", "source_index_sha256")
    for problem in _misspelt(container.manifest, manifest_keys):
        container.error(MANIFEST, problem)
    rows = container.manifest.get("shards")
    for row in rows if isinstance(rows, list) else ():
        for problem in _misspelt(row if isinstance(row, dict) else (), [f.name for f in fields(ShardRow)]):
            container.error(MANIFEST, f"shards: {problem}")
    contract_keys = (*_IDENTITY, "compressed_scale_count", "source_index_sha256", "source_names")
    for problem in _misspelt(container.contract or {}, contract_keys):
        container.error(CONTRACT, problem)
    status = container.manifest.get("status", KNOWN_STATUS)
    if status != KNOWN_STATUS:
        note = container.error if _one_character_apart(str(status), KNOWN_STATUS) else container.warn
        note(MANIFEST, f"status is {brief(status)}, not {KNOWN_STATUS!r}")


def _misspelt(found: Iterable[str], known: Iterable[str]) -> list[str]:
    keys = set(found)
    return [
        f"key {brief(key)} is probably a damaged {wanted!r}"
        for wanted in known
        if wanted not in keys
        for key in keys
        if _one_character_apart(key, wanted)
    ]


def _one_character_apart(a: str, b: str) -> bool:
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1
