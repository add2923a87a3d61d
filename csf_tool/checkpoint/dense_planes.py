"""The search for block scales that are stored dense beside FP4 weights."""

from collections.abc import Hashable

from csf_tool.checkpoint.names import SCALE_SUFFIXES
from csf_tool.checkpoint.plane_tables import DenseTable, PlaneKind
from csf_tool.checkpoint.planes import described, weight_geometry
from csf_tool.checkpoint.stored import Located, Stored
from csf_tool.codec.formats import FORMATS
from csf_tool.codec.tiles import padded_shape


def find_dense_planes(stored: Stored) -> DenseTable:
    """Every block scale that is stored dense beside an FP4 weight, whose shapes fit one of the formats."""
    table = DenseTable(stored)
    dtypes, shapes = stored.dtypes, stored.shapes
    known: dict[Hashable, int | None] = {}  # few combinations, many scales
    padding: dict[Hashable, str] = {}
    for scale in sorted(row for ending in SCALE_SUFFIXES for row in stored.rows_of(ending).values()):
        name = stored.names[scale]
        weight = stored.weight_of(name)
        if weight is None:
            continue
        looks = dtypes[scale], shapes[scale], dtypes[weight], shapes[weight]
        if looks not in known:
            found = _dense_kind(stored[scale], stored[weight])
            known[looks] = None if found is None else table.place_of(found)
            padding[looks] = _padding(stored[weight], found) if found else ""
        if (kind := known[looks]) is not None:
            table.names.append(name)
            table.kind_of.append(kind)
            table.scales.append(scale)
            if padding[looks]:
                table.padded[name] = padding[looks]
    return table


def _dense_kind(scale: Located, weight: Located) -> PlaneKind | None:
    dtype, shape = scale.tensor.dtype, scale.tensor.shape
    for fmt in FORMATS:
        geometry = weight_geometry(weight, fmt, [])
        if dtype not in fmt.dense_dtypes or geometry is None:
            continue
        plain = geometry.rows, geometry.cols
        if shape in (plain, padded_shape(*plain)):
            return PlaneKind(fmt, *shape, dtype)
    return None


def _padding(weight: Located, kind: PlaneKind) -> str:
    """Both shapes in words, where the scales are larger than their weight needs."""
    geometry = weight_geometry(weight, kind.fmt, [])
    if geometry and (geometry.rows, geometry.cols) == (kind.rows, kind.cols):
        return ""
    return f"it is {[kind.rows, kind.cols]} beside a weight of {described(weight)}"
