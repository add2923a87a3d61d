"""Making the container layout's own files: manifest, build contract, receipts, verification record."""

import base64
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from csf_tool.checkpoint.container import KNOWN_STATUS, ScaleReceipt, ShardRow
from csf_tool.checkpoint.model import Checkpoint
from csf_tool.checkpoint.published import known_origin
from csf_tool.codec.formats import CsfFormat

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Origin:
    """Where the dense checkpoint came from: what manifest and contract state beside the format."""

    family: str
    source_model_id: str
    source_revision: str


@dataclass(frozen=True)
class StatedOrigin:
    """What the user says of the origin; None where it is to be guessed."""

    family: str | None = None
    source_model_id: str | None = None
    source_revision: str | None = None


def find_origin(checkpoint: Checkpoint, fmt: CsfFormat, model_type: str | None, stated: StatedOrigin) -> Origin:
    """The origin: what is stated, and the rest as the folder tells it.

    It may tell by a Hub cache's path, by what `hf download` noted, and by the model's type.
    """
    repository, revision = known_origin(checkpoint)
    return Origin(
        stated.family or f"{model_type or UNKNOWN}_{fmt.name}",
        stated.source_model_id or repository or checkpoint.root.resolve().name,
        stated.source_revision or revision or UNKNOWN,
    )


def identity(fmt: CsfFormat, origin: Origin) -> dict[str, Any]:
    """The fields with which manifest and contract both begin."""
    return {"schema": fmt.schema, "codec": fmt.codec, **asdict(origin)}


def shard_row(row: ShardRow) -> dict[str, Any]:
    """A shard's row; what is unknown is left out, never invented."""
    order = ("file", "source_file_bytes", "source_sha256", "target_file_bytes", "target_sha256")
    return {key: getattr(row, key) for key in order if getattr(row, key) is not None}


def receipt(row: ShardRow, source_header: bytes, scales: Iterable[ScaleReceipt]) -> dict[str, Any]:
    """A shard's receipt."""
    entries = {}
    for scale in scales:
        entry = asdict(scale)
        name = entry.pop("name")
        entries[name] = {**entry, "shape": list(scale.shape)}
    return {
        **shard_row(row),
        "source_header_base64": base64.b64encode(source_header).decode(),
        "scales": entries,
    }


def manifest(
    fmt: CsfFormat,
    origin: Origin,
    rows: list[ShardRow],
    metadata_sha256: dict[str, str],
    source_index_sha256: str | None,
    scales: list[tuple[int, int]],
    note: str | None = None,
) -> dict[str, Any]:
    """The manifest. `scales` has (dense bytes, stored bytes) of every plane; `note` says what is not known."""
    source = sum(row.source_file_bytes or 0 for row in rows)
    target = sum(row.target_file_bytes or 0 for row in rows)
    known = all(row.source_file_bytes is not None for row in rows)
    totals = {
        "compressed_scale_count": len(scales),
        "original_scale_bytes": sum(dense for dense, _ in scales),
        "compressed_scale_bytes": sum(stored for _, stored in scales),
        **({"source_weight_file_bytes": source} if known else {}),
        "compressed_weight_file_bytes": target,
        **({"saved_weight_file_bytes": source - target} if known else {}),
    }
    return {
        **identity(fmt, origin),
        "status": KNOWN_STATUS,
        **({"source_headers": note} if note else {}),
        "shards": [shard_row(row) for row in rows],
        "metadata_sha256": dict(sorted(metadata_sha256.items())),
        **totals,
        **({"source_index_sha256": source_index_sha256} if source_index_sha256 else {}),
    }


def contract(
    fmt: CsfFormat, origin: Origin, planes: int, source_index_sha256: str | None, source_names: dict[str, str]
) -> dict[str, Any]:
    """The build contract: which shard held which tensor of the source."""
    return {
        **identity(fmt, origin),
        "compressed_scale_count": planes,
        **({"source_index_sha256": source_index_sha256} if source_index_sha256 else {}),
        "source_names": dict(sorted(source_names.items())),
    }


def verification(fmt: CsfFormat, shards: int, planes: int) -> dict[str, Any]:
    """The record of a check that has been made: every shard rebuilt, its hash compared."""
    return {"schema": fmt.schema, "passed": True, "shards": shards, "scale_matrices": planes}
