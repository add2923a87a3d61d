"""Comparing a container's documents with its shards."""

from typing import TYPE_CHECKING

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.container import (
    MANIFEST,
    TENSORS,
    VERIFICATION,
    Totals,
    receipt_name,
    require_object,
    verification,
)
from csf_tool.checkpoint.container_reading import note_misspelt
from csf_tool.checkpoint.problems import Problem, Problems
from csf_tool.checkpoint.stored import Stored
from csf_tool.codec.formats import titles
from csf_tool.codes import Code
from csf_tool.disk.json_files import load_json
from csf_tool.disk.reader import exists
from csf_tool.errors import CheckpointError
from csf_tool.text import brief

if TYPE_CHECKING:
    from csf_tool.checkpoint.container_layout import Container


def compare_with_shards(container: "Container", checkpoint: Checkpoint, stored: Stored) -> None:
    """Compare manifest, contract and receipts with the shards."""
    table, problems = checkpoint.plane_table, checkpoint.problems
    fixed_row = dict(zip(table.names, table.fixed, strict=True))
    for shard in checkpoint.shards:
        row = container.rows[shard.file]
        if row.target_file_bytes not in (None, shard.size):
            text = f"is {shard.size} bytes long, but the manifest has {row.target_file_bytes}"
            problems.error(text, Code.SIZE_DIFFERS, shard.name)
        if shard.header.metadata.get("codec", container.fmt.codec) != container.fmt.codec:
            text = f"its metadata names another codec, {brief(shard.header.metadata['codec'])}"
            problems.error(text, Code.DOCUMENTS_CONTRADICT, shard.name)
    if others := [fmt for fmt in checkpoint.formats if fmt is not container.fmt] if table else []:
        text = f"names {container.fmt.title} only: readers that go by it will not find the {titles(others)} planes"
        problems.warn(text, Code.DOCUMENTS_CONTRADICT, MANIFEST)
    _compare_contract(container, checkpoint, stored)
    for file, receipt in container.receipts.items():
        for name in sorted(receipt.scales.keys() - fixed_row.keys()):
            text = "the receipt lists it, but there is no pair of streams for it"
            problems.error(text, Code.RECEIPT_DIFFERS, f"{TENSORS}/{file}", name)
        for name in receipt.scales:
            if (place := container.source_names.get(name, file)) != file:
                text = f"lists it, but the contract places it in {place}"
                problems.error(text, Code.DOCUMENTS_CONTRADICT, receipt_name(file), name)
    if container.receipts:
        for name in sorted(fixed_row.keys() - container.scale_receipts.keys()):
            text = "no receipt lists it: its original bytes are unknown"
            problems.error(text, Code.RECEIPT_DIFFERS, stored.shards[fixed_row[name]].name, name)
    kinds = [table.kinds[kind] for kind in table.kind_of]
    dense_bytes, fixed_bytes = sum(kind.dense_bytes for kind in kinds), sum(kind.fixed_bytes for kind in kinds)
    _check_totals(container, problems, len(table), dense_bytes, fixed_bytes + sum(table.exception_bytes))


def _compare_contract(container: "Container", checkpoint: Checkpoint, stored: Stored) -> None:
    """Compare the contract with the shards."""
    listed, table, problems = container.source_names, checkpoint.plane_table, checkpoint.problems
    fixed_row = dict(zip(table.names, table.fixed, strict=True))
    dense_names = stored.row_of.keys() - table.stream_names | fixed_row.keys()
    for name in sorted(listed.keys() - dense_names):
        text = "the contract lists it, but no shard holds it"
        problems.error(text, Code.CONTRACT_DIFFERS, f"{TENSORS}/{listed[name]}", name)
    for name in sorted(dense_names - listed.keys() if listed else ()):
        home = stored.shards[fixed_row[name] if name in fixed_row else stored.row_of[name]]
        problems.error("the contract does not list it", Code.CONTRACT_DIFFERS, home.name, name)
    for name, file in listed.items():
        if (row := stored.row_of.get(name)) is not None and stored.shards[row].file != file:
            text = f"the contract places it in {file}"
            problems.error(text, Code.CONTRACT_DIFFERS, stored.shards[row].name, name)


def _check_totals(container: "Container", problems: Problems, planes: int, dense_bytes: int, stored_bytes: int) -> None:
    """Compare what manifest and verification record state of the whole with the shards.

    These have so many planes, and so many bytes of their scales, dense and stored.
    """
    for key, found in Totals.of(container.rows.values(), planes, dense_bytes, stored_bytes).known().items():
        stated = container.manifest.get(key)
        if stated is not None and stated != found:
            problem = f"{key} is {brief(stated)}, but the shards and their entries give {found}"
            problems.error(problem, Code.DOCUMENTS_CONTRADICT, MANIFEST)
    _check_verification(container, problems, planes)


def _check_verification(container: "Container", problems: Problems, planes: int) -> None:
    """Check that the publisher's verification record is about this container."""
    path = container.root / VERIFICATION
    if not exists(path):
        return
    try:
        record = require_object(load_json(path, VERIFICATION), VERIFICATION)
    except CheckpointError as error:
        problems.append(Problem.of(error))
        return
    expected = verification(container.fmt, len(container.rows), planes)
    for key, value in expected.items():
        if key in record and record[key] != value:
            problem = f"{key} is {brief(record[key])}, but this container gives {value!r}"
            problems.error(problem, Code.DOCUMENTS_CONTRADICT, VERIFICATION)
    note_misspelt(problems, VERIFICATION, record, expected)
