"""Dividing the planes of experts among tensor-parallel ranks.

Every rank has a part of each expert. Of the projections into it, gate and up, a rank has some of the output
features: rows of the weight and of its scales ("column-parallel" where weights are written transposed). Of the
one out of it, down, it has some of the input features: columns ("row-parallel"). So down alone is cut by columns.
"""

from typing import NamedTuple

from csf_tool.checkpoint.names import Role
from csf_tool.checkpoint.plane_tables import AnyPlane


def is_cut_by_columns(role: Role | None) -> bool:
    """Whether ranks have columns of the planes of this role, not rows."""
    return role is Role.DOWN


class Share(NamedTuple):
    """Rows and columns of a plane on each rank; those of the whole plane where a `fault` forbids to divide it."""

    rows: int
    cols: int
    fault: str | None = None


def share(plane: AnyPlane, role: Role | None, tp: int) -> Share:
    """The share of a plane of this role that each of `tp` ranks has."""
    by_columns = is_cut_by_columns(role)
    whole, noun = (plane.cols, "columns") if by_columns else (plane.rows, "rows")
    rows, cols = (plane.rows, whole // tp) if by_columns else (whole // tp, plane.cols)
    fault = f"{whole} {noun} are not a multiple of {tp}" if whole % tp else plane.fmt.geometry_fault(rows, cols)
    return Share(plane.rows, plane.cols, fault) if fault else Share(rows, cols)
