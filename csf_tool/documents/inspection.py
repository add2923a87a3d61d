"""The JSON documents of `inspect` on planes: one of them, or all ranked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np

from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.documents.other_scales import TensorLookDocument

if TYPE_CHECKING:
    from csf_tool.look.inspection import Inspected


class RankedPlaneDocument(TypedDict):
    """A plane, as far as headers tell."""

    name: str
    """The name of its scale."""
    shard: str
    """The shard that its fixed stream is in."""
    format: str
    """The format."""
    rows: int
    """Rows of the plane."""
    cols: int
    """Columns of the plane: scales in a row."""
    exceptions: int
    """Number of exceptions."""
    exception_share: float
    """Exceptions as a part of the scales, to six decimals."""
    dense_bytes: int
    """Bytes of the scales when they are stored dense."""
    csf_bytes: int
    """Bytes of both streams."""
    saved_bytes: int
    """Bytes that compression saves; negative where it costs."""


class InspectPlanesDocument(TypedDict):
    """Printed by `inspect` where several planes are meant."""

    schema: Literal["csf-tool.inspect-planes/1"]
    """The name and version of this document."""
    larger_than_dense: int
    """Number of planes that are larger than dense."""
    planes: list[RankedPlaneDocument]
    """All planes, those with the highest share of exceptions first."""


class StoredTensorDocument(TensorLookDocument):
    """A tensor, and where it lies."""

    shard: str
    """The shard that it is in."""
    begin: int
    """The byte of the file at which its data begin."""
    end: int
    """The byte of the file after its data."""


class PlaneValuesDocument(TypedDict):
    """The values of a plane's scales."""

    lowest: float | None
    """The lowest number; null where there is none."""
    median: float | None
    """The median of the numbers; null as above."""
    highest: float | None
    """The highest number; null as above."""
    zero: int
    """Number of zeros."""
    negative: int
    """Number of negative numbers."""
    NaN: int
    """Number of scales that are not a number."""


class PlaneFaultDocument(TypedDict):
    """A rule of the format that the streams break."""

    code: str
    """The kind of fault: a code of [troubleshooting](troubleshooting.md)."""
    problem: str
    """A sentence that says what is wrong."""


class InspectPlaneDocument(TypedDict):
    """Printed by `inspect` for one plane. Lists have a place for each row, column, code or byte value."""

    schema: Literal["csf-tool.inspect-plane/1"]
    """The name and version of this document."""
    name: str
    """The name of its scale."""
    format: str
    """The format."""
    stored: Literal["dense", "csf"]
    """The way in which it is stored; of a dense one, the streams are those that `compress` would make."""
    rows: int
    """Rows of the plane."""
    cols: int
    """Columns of the plane: scales in a row."""
    dtype: str
    """The dtype of the dense scales, as safetensors writes it."""
    tensors: list[StoredTensorDocument]
    """The tensors that it is stored in."""
    dense_bytes: int
    """Bytes of the scales when they are stored dense."""
    csf_bytes: int
    """Bytes of both streams."""
    fixed_bytes: int
    """Bytes of the fixed stream."""
    exception_bytes: int
    """Bytes of the exception list."""
    entropy_bytes: float
    """Bytes that the entropy of single scales would take, to one decimal."""
    values: PlaneValuesDocument
    """The values of the scales."""
    corner: list[list[float | None]]
    """The values of the first 16 rows and 8 columns; null for NaN, which JSON does not know."""
    bases: list[int]
    """The base of each row."""
    code_counts: list[int]
    """Number of scales that have each code and are not exceptions."""
    byte_counts: list[int]
    """Number of scales that have each byte, 0 to 255."""
    exceptions: int
    """Number of exceptions."""
    exception_positions: list[int]
    """The positions of the exceptions: row times `cols` plus column."""
    exception_distances: list[int]
    """Number of steps that each lies outside its row's window; negative below it."""
    row_exceptions: list[int]
    """Number of exceptions in each row."""
    col_exceptions: list[int]
    """Number of exceptions in each column."""
    faults: list[PlaneFaultDocument]
    """The rules that its streams break. If there is one, the exit code is 1."""


def planes_document(planes: Sequence[Plane]) -> InspectPlanesDocument:
    """The document of all planes, those with the highest share of exceptions first."""
    return {
        "schema": "csf-tool.inspect-planes/1",
        "larger_than_dense": sum(plane.saved_bytes < 0 for plane in planes),
        "planes": [
            {
                "name": plane.name,
                "shard": plane.fixed.shard.name,
                "format": plane.fmt.name,
                "rows": plane.rows,
                "cols": plane.cols,
                "exceptions": plane.exception_count,
                "exception_share": round(plane.exception_share, 6),
                "dense_bytes": plane.dense_bytes,
                "csf_bytes": plane.csf_bytes,
                "saved_bytes": plane.saved_bytes,
            }
            for plane in sorted(planes, key=lambda plane: plane.exception_share, reverse=True)
        ],
    }


def plane_document(plane: "Inspected") -> InspectPlaneDocument:
    """The document of one plane. What is not a number is null: JSON knows no NaN."""
    finite = plane.values[np.isfinite(plane.values)]
    return {
        "schema": "csf-tool.inspect-plane/1",
        "name": plane.name,
        "format": plane.format.name,
        "stored": "dense" if plane.is_dense else "csf",
        "rows": plane.rows,
        "cols": plane.cols,
        "dtype": plane.dtype,
        "tensors": [
            {
                "name": located.tensor.name,
                "shard": located.shard.name,
                "dtype": located.tensor.dtype,
                "shape": list(located.tensor.shape),
                "begin": located.tensor.begin,
                "end": located.tensor.end,
            }
            for located in plane.stored
        ],
        "dense_bytes": plane.dense_bytes,
        "csf_bytes": plane.csf_bytes,
        "fixed_bytes": plane.fixed_bytes,
        "exception_bytes": plane.words.nbytes,
        "entropy_bytes": round(plane.entropy_bytes, 1),
        "values": {
            "lowest": float(finite.min()) if len(finite) else None,
            "median": float(np.median(finite)) if len(finite) else None,
            "highest": float(finite.max()) if len(finite) else None,
            "zero": plane.zero,
            "negative": plane.negative,
            "NaN": plane.nan,
        },
        "corner": [
            [None if np.isnan(value) else value for value in row] for row in plane.values[plane.corner].tolist()
        ],
        "bases": plane.bases.tolist(),
        "code_counts": plane.code_counts.tolist(),
        "byte_counts": plane.byte_counts.tolist(),
        "exceptions": len(plane.words),
        "exception_positions": plane.positions.tolist(),
        "exception_distances": plane.distances.tolist(),
        "row_exceptions": plane.row_exceptions.tolist(),
        "col_exceptions": plane.col_exceptions.tolist(),
        "faults": [{"code": fault.code.value, "problem": str(fault)} for fault in plane.faults],
    }
