"""Reading a container's documents from its folder, and comparing them with one another."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from csf_tool.checkpoint.container import (
    CODEC,
    CONTRACT,
    IDENTITY,
    KNOWN_STATUS,
    MANIFEST,
    METADATA_SHA256,
    PLANE_COUNT,
    RECEIPTS,
    ROW_KEYS,
    SCHEMA,
    SHARDS,
    SOURCE_INDEX_SHA256,
    SOURCE_NAMES,
    STATUS,
    TOTALS,
    Receipt,
    ShardRow,
    is_sha256,
    receipt_name,
    require_object,
)
from csf_tool.checkpoint.index import INDEX_NAME
from csf_tool.checkpoint.problems import Problem, Problems
from csf_tool.codec.formats import FORMATS, CsfFormat, format_by_schema
from csf_tool.codes import Code
from csf_tool.disk.json_files import load_json
from csf_tool.disk.paths import names_in, safe_relative
from csf_tool.disk.reader import exists, is_folder
from csf_tool.errors import CheckpointError
from csf_tool.text import brief

if TYPE_CHECKING:
    from csf_tool.checkpoint.container_layout import Container


def read_manifest(root: Path) -> tuple[CsfFormat, dict[str, Any]]:
    """The format and the manifest of the container at `root`.

    Raises:
        CheckpointError: the manifest cannot be read, or is not a CSF container's.
    """
    manifest = require_object(load_json(root / MANIFEST, MANIFEST), MANIFEST)
    return _format(manifest), manifest


def read_documents(container: "Container", problems: Problems) -> None:
    """Read a container's documents beside the manifest; what is wrong with any is added to `problems`."""
    _read_rows(container, problems)
    _read_metadata_hashes(container, problems)
    _read_contract(container, problems)
    _read_receipts(container, problems)
    _compare_identity(container, problems)
    _check_spelling(container, problems)


def _format(manifest: dict[str, Any]) -> CsfFormat:
    schema = manifest.get(SCHEMA)
    fmt = format_by_schema(schema) if isinstance(schema, str) else None
    if fmt is None:
        known = ", ".join(f.schema for f in FORMATS)
        what = "the manifest of another tool"
        if isinstance(schema, str) and "x4t" in schema.lower():
            what = "the schema of x4t, the predecessor of CSF; use the tool that wrote it"
        if isinstance(schema, str) and "csf" in schema.lower():
            what = "an older or newer container, which needs another version of csf-tool"
        problem = f"has schema {brief(schema)}, which csf-tool cannot read (it reads {known}): {what}"
        raise CheckpointError(problem, Code.UNKNOWN_SCHEMA, MANIFEST)
    return fmt


def _read_rows(container: "Container", problems: Problems) -> None:
    shards = container.manifest.get(SHARDS)
    if not isinstance(shards, list):
        problems.error(f"{SHARDS} is not a list", Code.INVALID_FIELD, MANIFEST)
        return
    for entry in shards:
        try:
            row = ShardRow.parse(entry, MANIFEST)
        except CheckpointError as error:
            problems.append(Problem.of(error))
            continue
        if row.file in container.rows:
            problems.error(f"lists shard {row.file} twice", Code.DOCUMENTS_CONTRADICT, MANIFEST)
        container.rows[row.file] = row
    if not container.rows:
        problems.error("lists no shard with a valid entry", Code.INVALID_FIELD, MANIFEST)
    for key in ROW_KEYS:
        for row in container.rows.values():
            if getattr(row, key) is None:
                problems.warn(f"does not give {key} of {row.file}", Code.INVALID_FIELD, MANIFEST)


def _read_metadata_hashes(container: "Container", problems: Problems) -> None:
    hashes = container.manifest.get(METADATA_SHA256, {})
    if not isinstance(hashes, dict):
        problems.error(f"{METADATA_SHA256} is not an object", Code.INVALID_FIELD, MANIFEST)
        return
    for name, digest in hashes.items():
        try:
            safe_relative(name, MANIFEST)
        except CheckpointError as error:
            problems.append(Problem.of(error.within(METADATA_SHA256)))
            continue
        if is_sha256(digest):
            container.metadata_sha256[name] = digest
        else:
            problem = f"{METADATA_SHA256}: {name} is {brief(digest)}, not 64 lowercase hex digits"
            problems.error(problem, Code.INVALID_FIELD, MANIFEST)


def _read_contract(container: "Container", problems: Problems) -> None:
    if not exists(container.root / CONTRACT):
        problem = "missing: it is unknown which shard of the original held which tensor"
        problems.warn(problem, Code.NO_RECEIPTS, CONTRACT)
        return
    try:
        contract = require_object(load_json(container.root / CONTRACT, CONTRACT), CONTRACT)
    except CheckpointError as error:
        problems.append(Problem.of(error))
        return
    container.contract = contract
    names = contract.get(SOURCE_NAMES)
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        problems.error(f"{SOURCE_NAMES} is not a map of tensor name to shard file", Code.INVALID_FIELD, CONTRACT)
        return
    container.source_names = names
    for file in sorted(set(names.values()) - set(container.rows)):
        problem = f"{SOURCE_NAMES} names shard {brief(file)}, which the manifest does not list"
        problems.error(problem, Code.DOCUMENTS_CONTRADICT, CONTRACT)
    for file in sorted(set(container.rows) - set(names.values())):
        problem = f"{SOURCE_NAMES} has no tensor of shard {brief(file)}, which the manifest lists"
        problems.error(problem, Code.DOCUMENTS_CONTRADICT, CONTRACT)


def _read_receipts(container: "Container", problems: Problems) -> None:
    folder = container.root / RECEIPTS
    if not is_folder(folder):
        problem = "missing: the original's bytes cannot be proved, and its shards cannot be rebuilt bit for bit"
        problems.warn(problem, Code.NO_RECEIPTS, RECEIPTS)
        return
    for row in container.rows.values():
        where = receipt_name(row.file)
        try:
            receipt = Receipt.parse(load_json(container.root / where, where), where)
        except CheckpointError as error:
            problems.append(Problem.of(error))
            continue
        if difference := _difference(receipt.row, row):
            problems.error(difference, Code.DOCUMENTS_CONTRADICT, where)
        else:
            container.receipts[row.file] = receipt
    expected = {f"{file}.json" for file in container.rows}
    for stray in (name for name in names_in(folder) if name not in expected):
        problem = "is a receipt of a shard that the manifest does not list"
        problems.warn(problem, Code.STRAY_RECEIPT, f"{RECEIPTS}/{stray}")


def _difference(ours: ShardRow, theirs: ShardRow) -> str | None:
    """The first field in which a receipt's row differs from the manifest's."""
    for key in ROW_KEYS:
        mine, stated = getattr(ours, key), getattr(theirs, key)
        if mine != stated:
            return f"{key} is {brief(mine)}, but the manifest has {brief(stated)}"
    return None


def _compare_identity(container: "Container", problems: Problems) -> None:
    """Check that schema, codec, family and source are the same in manifest and contract."""
    manifest, contract = container.manifest, container.contract
    if manifest.get(CODEC) != container.fmt.codec:
        problem = f"{CODEC} is {brief(manifest.get(CODEC))}, but its schema needs {container.fmt.codec!r}"
        problems.error(problem, Code.DOCUMENTS_CONTRADICT, MANIFEST)
    if not isinstance(manifest.get("family"), str):
        problem = f"family is {brief(manifest.get('family'))}, not a string"
        problems.error(problem, Code.INVALID_FIELD, MANIFEST)
    for key in (*IDENTITY, PLANE_COUNT, SOURCE_INDEX_SHA256):
        if contract is None or (key not in contract and key not in manifest):
            continue
        mine, theirs = contract.get(key), manifest.get(key)
        if mine != theirs:
            problem = f"{key} is {brief(mine)}, but the manifest has {brief(theirs)}"
            problems.error(problem, Code.DOCUMENTS_CONTRADICT, CONTRACT)
    index_hash = container.metadata_sha256.get(INDEX_NAME)
    stated = manifest.get(SOURCE_INDEX_SHA256)
    if stated is not None and index_hash is not None and stated != index_hash:
        problem = f"{SOURCE_INDEX_SHA256} is {brief(stated)}, but {METADATA_SHA256} has {index_hash!r}"
        problems.error(problem, Code.DOCUMENTS_CONTRADICT, MANIFEST)


def _check_spelling(container: "Container", problems: Problems) -> None:
    """Report known keys or a status with one wrong character as damage; other unknown ones are additions."""
    manifest = container.manifest
    keys = (*IDENTITY, *TOTALS, STATUS, SHARDS, METADATA_SHA256, SOURCE_INDEX_SHA256)
    note_misspelt(problems, MANIFEST, manifest, keys)
    rows = manifest.get(SHARDS)
    for row in rows if isinstance(rows, list) else ():
        note_misspelt(problems, MANIFEST, row if isinstance(row, dict) else (), ROW_KEYS, f"{SHARDS}: ")
    keys = (*IDENTITY, PLANE_COUNT, SOURCE_INDEX_SHA256, SOURCE_NAMES)
    note_misspelt(problems, CONTRACT, container.contract or {}, keys)
    status = manifest.get(STATUS, KNOWN_STATUS)
    if status != KNOWN_STATUS:
        problem = f"{STATUS} is {brief(status)}, not {KNOWN_STATUS!r}"
        if _one_character_apart(str(status), KNOWN_STATUS):
            problems.error(problem, Code.DAMAGED_FIELD, MANIFEST)
        else:
            problems.warn(problem, Code.INVALID_FIELD, MANIFEST)


def note_misspelt(problems: Problems, file: str, found: Iterable[str], known: Iterable[str], within: str = "") -> None:
    """Report keys of a document that are known ones but for one wrong character."""
    keys = set(found)
    for wanted in known:
        for key in keys if wanted not in keys else ():
            if _one_character_apart(key, wanted):
                problem = f"{within}key {brief(key)} is probably {wanted!r}, damaged"
                problems.error(problem, Code.DAMAGED_FIELD, file)


def _one_character_apart(a: str, b: str) -> bool:
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1
