"""Checking the files beside the shards: JSON must be JSON, and what a runtime reads must be what a reference has.

Model cards, licences and pictures may differ: no runtime reads them.
"""

import json
import reprlib
from pathlib import Path, PurePosixPath
from typing import Any

from csf_tool.checkpoint.config import CONFIG_FILES, strip_encoding
from csf_tool.checkpoint.index import INDEX_NAME, find_index, read_index
from csf_tool.checkpoint.model import Checkpoint
from csf_tool.checkpoint.names import parse_stream_name
from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.checkpoint.side_files import config_files, plain_files
from csf_tool.codes import Code, Finding
from csf_tool.disk.json_files import parse_json
from csf_tool.disk.reader import MAX_JSON_BYTES, exists, is_file, read_document
from csf_tool.errors import CheckpointError

MODEL_SUFFIXES = {".json", ".jinja", ".model", ".tiktoken", ".txt"}
"""Endings of what runtimes read: configs, chat templates, tokenizers."""

_ABSENT = object()
_MISSING = Finding("missing; the reference has it", Code.REFERENCE_NAMES)


def check_side_files(checkpoint: Checkpoint) -> list[Problem]:
    """What is wrong with the files beside the shards by themselves: JSON that is none, and a config that is missing."""
    found = []
    known = {problem.file for problem in checkpoint.problems}
    for path in _paths(checkpoint).values():
        name = path.relative_to(checkpoint.root).as_posix()
        if path.suffix == ".json" and name not in known and (fault := _json_fault(path)):
            found.append(Problem(fault, Code.INVALID_JSON, name))
    if checkpoint.layout.expects_config and not exists(checkpoint.root / CONFIG_FILES[0]):
        text = "not there: nothing says what model this is, nor which modules have CSF streams"
        found.append(Problem(text, Code.MISSING_FILE, CONFIG_FILES[0], severity=Severity.WARNING))
    return found


def _paths(checkpoint: Checkpoint) -> dict[str, Path]:
    """The files beside the shards, but for the index, by the names that the dense checkpoint gives them."""
    return {file.name: file.path for file in config_files(checkpoint) + plain_files(checkpoint)}


def _json_fault(path: Path) -> str | None:
    """Why a file is no JSON. Others write NaN and the like: what is not used here is read less strictly."""
    if not is_file(path) or path.stat().st_size > MAX_JSON_BYTES:
        return None
    try:
        json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"
    return None


def compare_side_files(checkpoint: Checkpoint, reference: Checkpoint) -> tuple[int, list[Problem]]:
    """How many files of the reference were looked for, and which of them are missing or say something else.

    The marks of CSF in configs do not count, nor does the way in which JSON is written.
    """
    if is_file(checkpoint.path) or is_file(reference.path):
        return 0, []
    folder = checkpoint.layout.model_root.relative_to(checkpoint.root)
    ours, theirs = _paths(checkpoint), _model_files(reference)
    problems = []
    for name, path in theirs.items():
        if difference := _difference(name, ours.get(name), path):
            problems.append(Problem(*difference, (folder / name).as_posix()))
    return len(theirs), problems + _index_problems(checkpoint, reference)


def _model_files(reference: Checkpoint) -> dict[str, Path]:
    """The files at the top of the reference that a runtime reads."""
    return {
        name: path
        for name, path in _paths(reference).items()
        if "/" not in name and PurePosixPath(name).suffix in MODEL_SUFFIXES
    }


def _difference(name: str, ours: Path | None, theirs: Path) -> Finding | None:
    if ours is None or not is_file(ours):  # or a link to nothing
        return _MISSING
    mine, other = read_document(ours, name), read_document(theirs, name)
    if mine == other:
        return None
    try:
        return _json_difference(_document(mine, name), _document(other, name))
    except (ValueError, RecursionError, CheckpointError):
        text = f"differs from the reference's: {len(mine)} bytes, {len(other)} there"
        return Finding(text, Code.SIDE_FILE_DIFFERS)


def _document(raw: bytes, name: str) -> Any:
    """What a JSON file says, the marks of CSF left out."""
    return parse_json(strip_encoding(raw, name), name) if name in CONFIG_FILES else json.loads(raw)


def _json_difference(ours: Any, theirs: Any) -> Finding | None:
    """Where two documents differ first."""
    at = ""
    while ours != theirs:
        if isinstance(ours, dict) and isinstance(theirs, dict):
            key = next(k for k in [*theirs, *ours] if ours.get(k, _ABSENT) != theirs.get(k, _ABSENT))
            at = f"{at}.{key}" if at else key
            ours, theirs = ours.get(key, _ABSENT), theirs.get(key, _ABSENT)
        else:
            text = f"differs from the reference's at {at or 'its top'}: {_value(ours)}, {_value(theirs)} there"
            return Finding(text, Code.SIDE_FILE_DIFFERS)
    return None


def _value(value: Any) -> str:
    return "nothing" if value is _ABSENT else reprlib.repr(value)


def _index_problems(checkpoint: Checkpoint, reference: Checkpoint) -> list[Problem]:
    """The index against the reference's, where both are those of the same dense shards."""
    root, there = checkpoint.layout.model_root, reference.layout.model_root
    theirs = find_index(there)
    if theirs is None:
        return []
    name = find_index(root)
    where = (root / (name or INDEX_NAME)).relative_to(checkpoint.root).as_posix()
    if name is None:
        return [Problem(*_MISSING, where)] if len(checkpoint.shards) > 1 else []
    try:
        mine, other = read_index(root, name), read_index(there, theirs)
    except CheckpointError as error:
        return [Problem(f"cannot be compared with the reference's: {error}", error.code, where)]
    if any(map(parse_stream_name, [*mine.weight_map, *other.weight_map])):
        return []  # the shards themselves say where a tensor is, and they have been compared
    same_shards = {shard.file for shard in checkpoint.shards} == {shard.file for shard in reference.shards}
    difference = _json_difference(mine.document, other.document) if same_shards else None
    return [Problem(*difference, where)] if difference else []


def compare_formats(checkpoint: Checkpoint, reference: Checkpoint) -> list[Problem]:
    """Shards whose headers state another framework than the reference's do: readers refuse unknown ones."""
    theirs = {shard.header.metadata.get("format", "") for shard in reference.shards} - {""}
    others = "/".join(sorted(theirs))
    return [
        Problem(f"its header states format {stated!r}, the reference's {others!r}", Code.REFERENCE_DIFFERS, shard.name)
        for shard in checkpoint.shards
        if theirs and (stated := shard.header.metadata.get("format")) and stated not in theirs
    ]
