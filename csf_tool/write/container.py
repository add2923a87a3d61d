"""The documents of a container that has just been written: contract, verification record, manifest."""

from collections.abc import Sequence
from pathlib import Path

from csf_tool.checkpoint.container import (
    CONTRACT,
    MANIFEST,
    VERIFICATION,
    Origin,
    ShardRow,
    render_contract,
    render_manifest,
    verification,
)
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.codec.formats import CsfFormat
from csf_tool.disk.hashing import sha256_of
from csf_tool.disk.json_files import render_json

DOCUMENTS = frozenset({CONTRACT, VERIFICATION, MANIFEST})

RECORD_BYTES = 1024
"""Room that a plane takes in receipt and contract, for the check of space: names and hashes, generously."""


def container_documents(
    folder: Path,
    fmt: CsfFormat,
    origin: Origin,
    rows: list[ShardRow],
    source_names: dict[str, str],
    scales: list[tuple[int, int]],
    side_files: Sequence[SideFile],
    *,
    source_index: str | None = None,
    is_proved: bool = False,
    note: str | None = None,
) -> list[SideFile]:
    """The documents of the container in `folder`, in the order of writing: a manifest says that all is there.

    `scales` has the dense and the stored bytes of every plane. `source_index` is the side file that is the source's
    own index. `is_proved` says that every original shard was rebuilt; `note`, what is not known.
    """
    hashes = {file.name: sha256_of(folder / file.target, file.target) for file in side_files}
    index_sha256 = hashes[source_index] if source_index else None
    contract = render_contract(fmt, origin, len(scales), index_sha256, source_names)
    record = verification(fmt, len(rows), len(scales))
    manifest = render_manifest(fmt, origin, rows, hashes, index_sha256, scales, note)
    named = [(CONTRACT, contract), *([(VERIFICATION, record)] if is_proved else []), (MANIFEST, manifest)]
    return [SideFile.new(name, render_json(document)) for name, document in named]
