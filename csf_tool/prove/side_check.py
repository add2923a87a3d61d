"""The check of the files beside the shards, without a reference: entries that are no files, JSON, the config."""

import json
import os
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.layout import Cause
from csf_tool.checkpoint.problems import Problem, Problems
from csf_tool.codes import Code
from csf_tool.disk.reader import (
    MAX_JSON_BYTES,
    exists,
    file_size,
    is_file,
    is_folder,
    read_document,
)
from csf_tool.errors import CheckpointError
from csf_tool.prove.json_values import parse_values
from csf_tool.prove.runtime_files import all_files, folders_like_files, is_far, runtime_files

_CONFIG_OF_MISTRAL = "params.json"
"""Config of a model in Mistral's own format, which has no other."""

_ENCODINGS = {"utf-8-sig": "UTF-8 with a byte order mark"} | {
    f"utf-{bits}{order}": f"UTF-{bits}" for bits in (16, 32) for order in ("", "-le", "-be")
}


def check_side_files(checkpoint: Checkpoint) -> list[Problem]:
    """Faults of the files of a checkpoint without a reference.

    They are entries that are not files, invalid JSON, and a missing config.
    """
    found = Problems()
    known = {problem.file for problem in checkpoint.problems} | {shard.name for shard in checkpoint.shards}
    beside = set(runtime_files(checkpoint).values())
    for name in all_files(checkpoint):
        path = checkpoint.root / name
        if name in known or is_far(checkpoint, name) or is_folder(path):  # a link to a folder is not followed
            continue
        try:
            nbytes = file_size(path, name)
        except CheckpointError as error:
            found.append(Problem.of(error))
            continue
        if name in beside and name.endswith(".json") and nbytes <= MAX_JSON_BYTES:
            _check_json(found, path, name)
    for name in folders_like_files(checkpoint):
        found.warn("is a folder with the name of a file: readers will not find that file", Code.NOT_A_FILE, name)
    layout = checkpoint.layout
    for name in layout.left_out().get(Cause.UNPROVED_WEIGHTS, ()) if not is_file(checkpoint.path) else ():
        if (checkpoint.root / name).parent == layout.model_root:
            text = "is a shard without a hash: readers that load every shard of a folder would load it"
            found.error(text, Code.SHARD_NOT_IN_MANIFEST, name)
    if layout.expects_config and not os.path.lexists(checkpoint.root / CONFIG_FILES[0]):
        is_csf = bool(checkpoint.plane_table)
        if is_csf or not exists(checkpoint.root / _CONFIG_OF_MISTRAL):
            more = " and which modules have CSF streams" if is_csf else ""
            found.warn(f"missing: nothing says which model this is{more}", Code.MISSING_FILE, CONFIG_FILES[0])
    return found


def _check_json(found: Problems, path: Path, name: str) -> None:
    """Note why a file is not JSON, or what readers refuse or take differently in it."""
    try:
        raw = read_document(path, name)
        encoding = json.detect_encoding(raw)
        repeated = parse_values(raw, encoding).repeated
    except (ValueError, RecursionError) as error:
        found.error(f"not valid JSON: {error}", Code.INVALID_JSON, name)
        return
    oddities = [] if encoding == "utf-8" else [f"is {_ENCODINGS[encoding]}, but transformers reads only plain UTF-8"]
    oddities += [f"{repeated}: some readers use the first, some the last, and some refuse it"] if repeated else []
    if oddities:
        found.warn("; ".join(oddities), Code.ODD_JSON, name)
