"""Finding planes: which tensors are the streams of a scale, and what geometry every source gives it."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from csf_tool.checkpoint.container import ScaleReceipt
from csf_tool.checkpoint.model import DensePlane, Located, Plane
from csf_tool.checkpoint.names import SCALE_SUFFIXES, STREAM_MARK, weight_names
from csf_tool.checkpoint.problems import Problem
from csf_tool.codec.formats import EXCEPTION_BYTES, FORMATS, SLAB_ROWS, CsfFormat

PACKED_DTYPES = ("U8", "I8")
"""Dtypes of weights that hold two FP4 codes a byte; an F4 weight states its logical shape instead."""


@dataclass(frozen=True)
class Geometry:
    """Rows and columns of a plane according to one source."""

    source: str
    rows: int
    cols: int


def find_planes(
    stored: Mapping[str, Located], receipts: Mapping[str, ScaleReceipt]
) -> tuple[list[Plane], list[Problem]]:
    """Every plane among the stored tensors, in the order in which its fixed stream is stored.

    `receipts` are those of all shards by scale name; empty where there are none.
    """
    streams = [(name, located) for name, located in stored.items() if STREAM_MARK in name]
    planes: list[Plane] = []
    problems: list[Problem] = []
    for fmt in FORMATS:
        found, faults = _planes_of_format(fmt, streams, stored, receipts)
        planes += found
        problems += faults
    if len({plane.fmt.name for plane in planes}) > 1:
        order = {name: i for i, (name, _) in enumerate(streams)}
        planes.sort(key=lambda plane: order[plane.fixed.tensor.name])
    return planes, problems + _stored_twice(planes, stored)


def _planes_of_format(
    fmt: CsfFormat,
    streams: list[tuple[str, Located]],
    stored: Mapping[str, Located],
    receipts: Mapping[str, ScaleReceipt],
) -> tuple[list[Plane], list[Problem]]:
    """The planes of one format. There are many, of few kinds, and each kind is checked once."""
    fixed, exceptions = _by_scale(streams, fmt.fixed_suffix), _by_scale(streams, fmt.exceptions_suffix)
    names = [name for name in fixed if name in exceptions]
    parts = zip(
        map(fixed.__getitem__, names),
        map(exceptions.__getitem__, names),
        _weights(names, stored),
        map(receipts.get, names),
        strict=True,
    )
    planes, problems = [], _unpaired(fmt, fixed, exceptions)
    alike: dict[Hashable, Plane] = {}
    for name, own in zip(names, parts, strict=True):
        kind = _kind(*own)
        twin = alike.get(kind) or _plane(name, fmt, *own)
        if isinstance(twin, Plane):
            alike[kind] = twin
            planes.append(Plane(name, fmt, twin.rows, twin.cols, twin.dtype, own[0], own[1]))
        else:
            problems += [Problem(own[0].shard.name, name, text) for text in twin]
    return planes, problems


def _kind(fixed: Located, exceptions: Located, weight: Located | None, receipt: ScaleReceipt | None) -> Hashable:
    """All that decides on a plane besides names: what is equal in it has the same geometry.

    The bytes of streams need no place in it. Their dtypes are known, and a header's reader checks such sizes.
    """
    return (
        fixed.tensor[1:3],  # dtype and shape
        exceptions.tensor[1:3],
        weight and weight.tensor[1:3],
        receipt and (receipt.dtype, receipt.shape, receipt.fixed_bytes, receipt.exception_bytes, receipt.source_bytes),
    )


def _by_scale(streams: list[tuple[str, Located]], suffix: str) -> dict[str, Located]:
    """The streams whose names end with `suffix`, by what stands before it: the name of their scale."""
    return {name.removesuffix(suffix): located for name, located in streams if name.endswith(suffix)}


def _unpaired(fmt: CsfFormat, fixed: dict[str, Located], exceptions: dict[str, Located]) -> list[Problem]:
    lonely = [(name, fixed[name], "exception list") for name in fixed.keys() - exceptions.keys()]
    lonely += [(name, exceptions[name], "fixed stream") for name in exceptions.keys() - fixed.keys()]
    return [
        Problem(located.shard.name, name, f"has no {fmt.title} {missing} beside {located.tensor.name!r}")
        for name, located, missing in sorted(lonely, key=lambda entry: entry[0])
    ]


def _weights(scales: Iterable[str], stored: Mapping[str, Located]) -> list[Located | None]:
    """The weight beside each scale."""
    return [next(filter(None, map(stored.get, names)), None) for names in map(weight_names, scales)]


def _stored_twice(planes: list[Plane], stored: Mapping[str, Located]) -> list[Problem]:
    names = {plane.name for plane in planes}
    if len(names) == len(planes) and stored.keys().isdisjoint(names):
        return []
    problems = []
    seen: dict[str, Plane] = {}
    for plane in planes:
        if plane.name in stored:
            text = "is stored dense as well as in CSF streams: which of them counts cannot be known"
            problems.append(Problem(stored[plane.name].shard.name, plane.name, text))
        if plane.name in seen:
            text = f"has streams of two formats, {seen[plane.name].fmt.title} and {plane.fmt.title}"
            problems.append(Problem(plane.fixed.shard.name, plane.name, text))
        seen[plane.name] = plane
    return problems


def _plane(
    name: str,
    fmt: CsfFormat,
    fixed: Located,
    exceptions: Located,
    weight: Located | None,
    receipt: ScaleReceipt | None,
) -> Plane | list[str]:
    """The plane of a pair of streams, or every reason why it is none."""
    faults = _stream_faults(fixed, exceptions)
    sources, source_faults = _geometries(fmt, fixed, weight, receipt)
    faults += source_faults
    if not sources:
        faults.append("its geometry is unknown: a 1-D fixed stream, no weight beside it and no receipt")
    if faults:
        return faults
    rows, cols = sources[0].rows, sources[0].cols
    if len({(s.rows, s.cols) for s in sources}) > 1:
        said = "; ".join(f"{s.source}: {s.rows}x{s.cols}" for s in sources)
        return [f"the sources of its geometry contradict each other: {said}"]
    if fault := fmt.geometry_fault(rows, cols):
        return [f"{fmt.title} CSF cannot hold it: {fault}"]
    faults = _shape_faults(fmt, rows, cols, fixed, exceptions, receipt)
    if faults:
        return faults
    return Plane(name, fmt, rows, cols, receipt.dtype if receipt else fmt.dense_dtype, fixed, exceptions)


def _stream_faults(fixed: Located, exceptions: Located) -> list[str]:
    faults = []
    if fixed.tensor.dtype != "U8" or len(fixed.tensor.shape) not in (1, 2):
        faults.append(f"fixed stream is {_describe(fixed)}, not U8 in one or two dimensions")
    if exceptions.tensor.dtype != "U32" or len(exceptions.tensor.shape) != 1:
        faults.append(f"exception list is {_describe(exceptions)}, not U32 in one dimension")
    elif exceptions.tensor.nbytes % EXCEPTION_BYTES:
        faults.append(f"exception list has {exceptions.tensor.nbytes} bytes, not whole words")
    return faults


def _describe(located: Located) -> str:
    return f"{located.tensor.dtype} {list(located.tensor.shape)}"


def _geometries(
    fmt: CsfFormat, fixed: Located, weight: Located | None, receipt: ScaleReceipt | None
) -> tuple[list[Geometry], list[str]]:
    """What each source says of the geometry, in order of trust: receipt, stream shape, weight."""
    sources, faults = [], []
    if receipt:
        sources.append(Geometry("receipt", *receipt.shape))
    shape = fixed.tensor.shape
    if len(shape) == 2 and (cols := fmt.cols_of_slab(shape[1])) is not None:
        sources.append(Geometry("fixed stream", shape[0] * SLAB_ROWS, cols))
    if weight:
        found = weight_geometry(weight, fmt)
        if isinstance(found, Geometry):
            sources.append(found)
        else:
            faults.append(found)
    return sources, faults


def weight_geometry(weight: Located, fmt: CsfFormat) -> Geometry | str:
    """The geometry of the scales of an FP4 weight, or why the tensor is no such weight."""
    dtype, shape = weight.tensor.dtype, weight.tensor.shape
    if len(shape) != 2 or dtype not in (*PACKED_DTYPES, "F4"):
        return f"the weight beside it, {weight.tensor.name!r}, is {_describe(weight)}: not FP4 codes"
    k = shape[1] if dtype == "F4" else 2 * shape[1]
    if k % fmt.group_size:
        return f"the weight beside it has {k} columns, not a multiple of the group size {fmt.group_size}"
    return Geometry("weight", shape[0], k // fmt.group_size)


def _shape_faults(
    fmt: CsfFormat, rows: int, cols: int, fixed: Located, exceptions: Located, receipt: ScaleReceipt | None
) -> list[str]:
    faults = []
    shape, expected = fixed.tensor.shape, fmt.fixed_bytes(rows, cols)
    if fixed.tensor.nbytes != expected:
        faults.append(f"fixed stream has {fixed.tensor.nbytes} bytes, a {rows}x{cols} plane takes {expected}")
    elif len(shape) == 2 and shape != (rows // SLAB_ROWS, fmt.slab_bytes(cols)):
        faults.append(f"fixed stream is {list(shape)}, not [slabs, slab bytes] of a {rows}x{cols} plane")
    if exceptions.tensor.nbytes > rows * cols * EXCEPTION_BYTES:
        words = exceptions.tensor.nbytes // EXCEPTION_BYTES
        faults.append(f"exception list has {words} words, the plane has only {rows * cols} scales")
    if receipt:
        stated = {
            "fixed_bytes": (receipt.fixed_bytes, fixed.tensor.nbytes),
            "exception_bytes": (receipt.exception_bytes, exceptions.tensor.nbytes),
            "source_bytes": (receipt.source_bytes, rows * cols),
        }
        faults += [f"receipt says {key} {said}, found {got}" for key, (said, got) in stated.items() if said != got]
        if receipt.dtype not in fmt.dense_dtypes:
            faults.append(f"receipt says dtype {receipt.dtype}, {fmt.title} scales are {'/'.join(fmt.dense_dtypes)}")
    return faults


def find_dense_planes(stored: Mapping[str, Located]) -> list[DensePlane]:
    """Every block scale that is stored dense beside an FP4 weight, whose shapes fit one of the formats."""
    found = []
    formats: dict[Hashable, CsfFormat | None] = {}  # few combinations, many scales
    names = [name for name in stored if name.endswith(SCALE_SUFFIXES)]
    for name, weight in zip(names, _weights(names, stored), strict=True):
        if weight is None:
            continue
        scale = stored[name]
        kind = scale.tensor.dtype, scale.tensor.shape, weight.tensor.dtype, weight.tensor.shape
        if kind not in formats:
            formats[kind] = _dense_format(scale, weight)
        if fmt := formats[kind]:
            rows, cols = scale.tensor.shape
            found.append(DensePlane(name, fmt, rows, cols, scale))
    return found


def _dense_format(scale: Located, weight: Located) -> CsfFormat | None:
    for fmt in FORMATS:
        geometry = weight_geometry(weight, fmt)
        if scale.tensor.dtype not in fmt.dense_dtypes or not isinstance(geometry, Geometry):
            continue
        if scale.tensor.shape == (geometry.rows, geometry.cols):
            return fmt
    return None


def stream_names(planes: Iterable[Plane]) -> set[str]:
    """The names of the tensors that `planes` replace."""
    return {located.tensor.name for plane in planes for located in (plane.fixed, plane.exceptions)}
