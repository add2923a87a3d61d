"""The JSON document of `--dry-run`, of whichever command that writes."""

from typing import Literal, TypedDict

from csf_tool.documents.written import (
    LeftDenseDocument,
    NotCarriedDocument,
    left_dense_documents,
    not_carried_documents,
)
from csf_tool.write.compress import Compressed
from csf_tool.write.convert import Converted
from csf_tool.write.dry_run import DryRun
from csf_tool.write.expand import Expanded


class PlannedFileDocument(TypedDict):
    """A file of the result."""

    file: str
    """The file, relative to the destination."""
    bytes: int
    """The size that it will have."""
    is_shard: bool
    """Whether it is a shard."""
    action: Literal["write", "link", "keep", "compare", "later"]
    """`link`: as a hard link. `keep`: an earlier run has finished it. `compare`: it lies there, and is kept if it is
    right. `later`: it is left to other parts of the work (`--shards I/N`)."""


class DryRunDocument(TypedDict):
    """Given by `csf-tool expand`, `compress` and `convert` with `--dry-run --json`. Nothing was written."""

    schema: Literal["csf-tool.dry-run/1"]
    """The name and version of this document."""
    operation: Literal["expand", "compress", "convert"]
    """The command."""
    source: str
    """The path of the source; for a repository on the Hub, its name and commit."""
    destination: str
    """The folder that would be written."""
    was_complete: bool
    """Whether an earlier run had written all of it: there is nothing to write, and `files` is empty."""
    files: list[PlannedFileDocument]
    """The files of the whole result: shards first."""
    bytes_to_read: int
    """Bytes of the source that go into what would be written. Reading for hashes and for proofs is not counted."""
    bytes_to_fetch: int
    """Bytes of shards that would be fetched from the Hub."""
    bytes_to_write: int
    """Bytes that would be written."""
    room_needed: int
    """Bytes that are asked for on the destination's disk, generously; 0 with `--consume-source`, where room comes free
    meanwhile."""
    room_free: int | None
    """Bytes that are free there, leftovers of killed runs included; null where that is unknown."""
    removes: list[str]
    """Shards of the source that would be removed (`--consume-source`)."""
    left_dense: list[LeftDenseDocument]
    """Block scales that would be left dense (`compress`)."""
    not_carried: list[NotCarriedDocument]
    """Files of the source that the result would not have."""
    notes: list[str]
    """Remarks on the result, in words."""


def dry_run_document(done: Expanded | Compressed | Converted) -> DryRunDocument:
    """The document of a run that was only to say what it would do."""
    plan = done.dry_run or DryRun()
    return {
        "schema": "csf-tool.dry-run/1",
        "operation": _operation(done),
        "source": done.source,
        "destination": done.destination,
        "was_complete": done.was_complete,
        "files": [
            {"file": file.name, "bytes": file.size, "is_shard": file.is_shard, "action": file.action.value}
            for file in plan.files
        ],
        "bytes_to_read": plan.bytes_to_read,
        "bytes_to_fetch": plan.bytes_to_fetch,
        "bytes_to_write": plan.bytes_to_write,
        "room_needed": plan.room_needed,
        "room_free": plan.room_free,
        "removes": plan.removes,
        "left_dense": left_dense_documents(done.left) if isinstance(done, Compressed) else [],
        "not_carried": not_carried_documents(done),
        "notes": done.notes,
    }


def _operation(done: Expanded | Compressed | Converted) -> Literal["expand", "compress", "convert"]:
    if isinstance(done, Expanded):
        return "expand"
    return "compress" if isinstance(done, Compressed) else "convert"
