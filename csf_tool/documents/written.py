"""The JSON documents of `expand`, `compress` and `convert`; `finish` prints that of the run that it finishes."""

from collections.abc import Sequence
from typing import Literal, TypedDict

from csf_tool.write.compress import Compressed
from csf_tool.write.convert import Converted
from csf_tool.write.expand import Expanded
from csf_tool.write.run import Written
from csf_tool.write.selection import LeftDense


class NotCarriedDocument(TypedDict):
    """A file of the source that the result does not have."""

    file: str
    """The file, relative to the source's folder."""
    reason: str
    """Why, in words."""


class WrittenDocument(TypedDict):
    """The fields that the documents of `expand`, `compress` and `convert` have in common."""

    source: str
    """The path of the source; for a repository on the Hub, its name and commit."""
    destination: str
    """The folder that was written."""
    shards: list[str]
    """The shards of this run's share, including those of an earlier run."""
    resumed_shards: list[str]
    """Shards among them that an earlier run had finished."""
    adopted_files: list[str]
    """Files that were already in the destination, and are right."""
    missing_shards: list[str]
    """Shards that other shares (`--shards I/N`) must still write; the checkpoint is complete once this is empty."""
    removed_sources: list[str]
    """Shards of the source that were removed (`--consume-source`)."""
    other_files: list[str]
    """The other files that were written or carried over."""
    not_carried: list[NotCarriedDocument]
    """Files of the source that the result does not have."""
    notes: list[str]
    """Remarks on the result, in words."""
    was_complete: bool
    """Whether an earlier run had written all of it: this one has done nothing, and its lists of files are empty."""
    bytes_written: int
    """Bytes that this run has written."""
    seconds: float
    """Seconds that this run took."""


class ExpandDocument(WrittenDocument):
    """Given by `csf-tool expand --json` and `csf_tool.expand`."""

    schema: Literal["csf-tool.expand/1"]
    """The name and version of this document."""
    device: str
    """The device that decoded planes, in words."""
    planes: int
    """Number of planes that were decoded."""
    proved_shards: list[str]
    """Shards that have the SHA-256 of their original, which was known beforehand."""
    unproved_files: list[str]
    """The model's other files that no known hash covers."""
    licences: list[str]
    """Files with the terms of use that were carried over."""
    origin: str | None
    """Repository and revision of the dense model, as the source states them; null where it does not."""


class CompressedSizesDocument(TypedDict):
    """Sizes of the scales that were compressed."""

    dense_bytes: int
    """Bytes of the scales before."""
    csf_bytes: int
    """Bytes of their streams."""


class CompressedFormatDocument(CompressedSizesDocument):
    """Sizes of the scales that were compressed in one format."""

    format: str
    """The format."""
    planes: int
    """Number of planes."""


class LeftDenseDocument(TypedDict):
    """A block scale that was left dense."""

    tensor: str
    """The name of the scale."""
    dense_bytes: int
    """Bytes of the scale."""
    reason: str
    """Why, in words."""


class CompressDocument(WrittenDocument):
    """Given by `csf-tool compress --json` and `csf_tool.compress`."""

    schema: Literal["csf-tool.compress/1"]
    """The name and version of this document."""
    layout: str
    """The layout that was written: a fixed word."""
    format: str | None
    """The format of all planes; null where there are several."""
    formats: list[str]
    """The formats of the planes."""
    device: str
    """The device that encoded planes, in words."""
    planes: int
    """Number of planes that were encoded."""
    scales: CompressedSizesDocument
    """Sizes of the scales that were compressed."""
    by_format: list[CompressedFormatDocument]
    """The same by format."""
    left_dense: list[LeftDenseDocument]
    """Every block scale that was left dense."""


class ConvertDocument(WrittenDocument):
    """Given by `csf-tool convert --json` and `csf_tool.convert`."""

    schema: Literal["csf-tool.convert/1"]
    """The name and version of this document."""
    to: Literal["hf", "container", "serving"]
    """The layout that was written."""
    linked: list[str]
    """Shards that are hard links to the source's."""


def expand_document(expanded: Expanded) -> ExpandDocument:
    """The document of `expand`."""
    return {
        "schema": "csf-tool.expand/1",
        **_written(expanded),
        "device": expanded.device,
        "planes": expanded.planes,
        "proved_shards": expanded.proved_shards,
        "unproved_files": expanded.unproved_files,
        "licences": expanded.licences,
        "origin": expanded.origin or None,
    }


def compress_document(compressed: Compressed) -> CompressDocument:
    """The document of `compress`; every block scale left dense is in it, with the reason."""
    formats = [totals.format.name for totals in compressed.by_format]
    return {
        "schema": "csf-tool.compress/1",
        **_written(compressed),
        "layout": compressed.target.layout.name,
        "format": formats[0] if len(formats) == 1 else None,
        "formats": formats,
        "device": compressed.device,
        "planes": compressed.planes,
        "scales": {"dense_bytes": compressed.dense_bytes, "csf_bytes": compressed.csf_bytes},
        "by_format": [
            {
                "format": totals.format.name,
                "planes": totals.planes,
                "dense_bytes": totals.dense_bytes,
                "csf_bytes": totals.csf_bytes,
            }
            for totals in compressed.by_format
        ],
        "left_dense": left_dense_documents(compressed.left),
    }


def convert_document(converted: Converted) -> ConvertDocument:
    """The document of `convert`."""
    return {
        "schema": "csf-tool.convert/1",
        **_written(converted),
        "to": converted.target.value,
        "linked": converted.linked,
    }


def written_document(written: Expanded | Compressed | Converted) -> ExpandDocument | CompressDocument | ConvertDocument:
    """The document of whichever of the three a run was."""
    if isinstance(written, Expanded):
        return expand_document(written)
    return compress_document(written) if isinstance(written, Compressed) else convert_document(written)


def left_dense_documents(left: Sequence[LeftDense]) -> list[LeftDenseDocument]:
    """The documents of block scales that are left dense."""
    return [
        {"tensor": entry.plane.name, "dense_bytes": entry.plane.dense_bytes, "reason": entry.reason} for entry in left
    ]


def not_carried_documents(written: Written) -> list[NotCarriedDocument]:
    """The documents of files that the result does not have."""
    return [{"file": name, "reason": str(cause)} for cause, names in written.left_out.items() for name in names]


def _written(written: Written) -> WrittenDocument:
    """The fields that all three have."""
    return {
        "source": written.source,
        "destination": written.destination,
        "shards": written.shards,
        "resumed_shards": written.resumed_shards,
        "adopted_files": written.adopted_files,
        "missing_shards": written.missing,
        "removed_sources": written.removed_sources,
        "other_files": written.other_files,
        "not_carried": not_carried_documents(written),
        "notes": written.notes,
        "was_complete": written.was_complete,
        "bytes_written": written.bytes_written,
        "seconds": round(written.seconds, 3),
    }
