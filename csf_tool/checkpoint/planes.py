"""The search for planes: pairs of tensors that are the streams of a scale, and their geometry by every source."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from csf_tool.checkpoint.container import ScaleReceipt
from csf_tool.checkpoint.names import PACKED, PREDECESSOR_STREAMS, STREAM_MARK, is_stream_suffix
from csf_tool.checkpoint.plane_tables import Plane, PlaneKind, PlaneTable
from csf_tool.checkpoint.problems import Problem
from csf_tool.checkpoint.stored import Located, Stored
from csf_tool.codec.formats import FORMATS, SLAB_ROWS, CsfFormat
from csf_tool.codec.tiles import padded_shape
from csf_tool.codes import Code, Finding
from csf_tool.dtypes import FP4_DTYPES


@dataclass(frozen=True)
class Geometry:
    """Rows and columns of a plane according to one source."""

    source: str
    rows: int
    cols: int


def find_planes(stored: Stored, receipts: Mapping[str, ScaleReceipt]) -> tuple[PlaneTable, list[Problem]]:
    """Every plane among the stored tensors, in the order of their fixed streams in storage.

    `receipts` are those of all shards by scale name; empty where there are none.
    """
    table = PlaneTable(stored)
    problems: list[Problem] = []
    streams = _streams(stored)
    for fmt in FORMATS:
        fixed, exceptions = streams.pop(fmt.fixed_suffix, {}), streams.pop(fmt.exceptions_suffix, {})
        problems += _unpaired(fmt, fixed, exceptions, stored)
        problems += _add_planes(table, fmt, fixed, exceptions, receipts)
    if len({kind.fmt.name for kind in table.kinds}) > 1:
        table.sort()
    problems += _unknown_streams(streams, stored) + _predecessor_streams(stored)
    return table, problems + _stored_twice(table)


def _streams(stored: Stored) -> dict[str, dict[str, int]]:
    """Rows of the tensors that may be streams, by the suffix of their names, then by the scale's name before it."""
    endings = [f".{last}" for last in stored.rows_by_last if STREAM_MARK in last]
    return {ending: stored.rows_of(ending) for ending in endings}


def _unknown_streams(others: dict[str, dict[str, int]], stored: Stored) -> list[Problem]:
    """Problems of tensors that look like streams but are of no known format."""
    text = "is a stream of a codec that this version of csf-tool does not know: use a newer version"
    return [
        Problem(text, Code.UNKNOWN_CODEC, stored.shards[row].name, scale + suffix)
        for suffix, rows in others.items()
        for scale, row in rows.items()
        if is_stream_suffix(suffix)
    ]


def _predecessor_streams(stored: Stored) -> list[Problem]:
    """Problems of streams of the format before CSF."""
    text = "is a stream of x4t, the predecessor of CSF, which csf-tool cannot read: use the tool that wrote it"
    return [
        Problem(text, Code.UNKNOWN_CODEC, stored.shards[row].name, stored.names[row])
        for last in sorted(PREDECESSOR_STREAMS & stored.rows_by_last.keys())
        for row in stored.rows_by_last[last]
    ]


def _unpaired(fmt: CsfFormat, fixed: dict[str, int], exceptions: dict[str, int], stored: Stored) -> list[Problem]:
    """Problems of streams of one format that have no partner."""
    if fixed.keys() == exceptions.keys():
        return []
    lonely = [(name, name + fmt.fixed_suffix, "exception list") for name in fixed.keys() - exceptions.keys()]
    lonely += [(name, name + fmt.exceptions_suffix, "fixed stream") for name in exceptions.keys() - fixed.keys()]
    return [
        Problem(
            f"has no {fmt.title} {missing} beside {stream!r}",
            Code.HALF_A_PAIR,
            stored.shards[stored.row_of[stream]].name,
            name,
        )
        for name, stream, missing in sorted(lonely)
    ]


def _add_planes(
    table: PlaneTable,
    fmt: CsfFormat,
    fixed_rows: dict[str, int],
    exception_rows: dict[str, int],
    receipts: Mapping[str, ScaleReceipt],
) -> list[Problem]:
    """Add the planes of one format, and return the problems of pairs that are no planes.

    There are many planes of few kinds, and each kind is checked once; only the length of the exception list differs
    between planes of a kind. Besides names, the kind follows from dtypes, shapes and the receipt. The sizes of the
    streams in bytes are not needed: their dtypes are known, and a header's reader checks such sizes.
    """
    stored = table.stored
    dtypes, shapes = stored.dtypes, stored.shapes
    problems: list[Problem] = []
    known: dict[Hashable, int] = {}
    for name, fixed in fixed_rows.items():
        exceptions = exception_rows.get(name)
        if exceptions is None:
            continue  # `_unpaired` reports it
        weight, receipt = stored.weight_of(name), receipts.get(name)
        looks = (
            dtypes[fixed],
            shapes[fixed],
            dtypes[exceptions],
            len(shapes[exceptions]),
            weight is not None and (dtypes[weight], shapes[weight], stored.names[weight].endswith(PACKED)),
            receipt and _stated(receipt, stored.nbytes(exceptions)),
        )
        kind = known.get(looks)
        if kind is None:
            faults: list[Finding] = []
            beside = None if weight is None else stored[weight]
            found = _kind(fmt, stored[fixed], stored[exceptions], beside, receipt, faults)
            if found is None:
                problems += [Problem(*fault, stored.shards[fixed].name, name) for fault in faults]
                continue
            kind = known[looks] = table.place_of(found)
        words, scales = shapes[exceptions][0], table.kinds[kind].dense_bytes
        if words > scales:
            text = f"exception list has {words} words, but the plane has only {scales} scales"
            problems.append(Problem(text, Code.STREAM_SIZE, stored.shards[fixed].name, name))
            continue
        table.names.append(name)
        table.kind_of.append(kind)
        table.fixed.append(fixed)
        table.exceptions.append(exceptions)
    return problems


def _stated(receipt: ScaleReceipt, exception_bytes: int) -> Hashable:
    """The kind of a plane according to its receipt, and whether the receipt states its exceptions rightly."""
    agrees = receipt.exception_bytes == exception_bytes
    return receipt.dtype, receipt.shape, receipt.fixed_bytes, receipt.source_bytes, agrees


def _stored_twice(table: PlaneTable) -> list[Problem]:
    stored = table.stored
    lasts = {name.rpartition(".")[2] for name in table.names}
    if len({kind.fmt.name for kind in table.kinds}) < 2 and lasts.isdisjoint(stored.rows_by_last):
        return []  # the usual case, without looking up half a million names
    problems = []
    seen: dict[str, Plane] = {}
    for plane in table:
        if plane.name in stored.row_of:
            text = "is stored both dense and in CSF streams, and nothing tells which of them is right"
            shard = stored.shards[stored.row_of[plane.name]]
            problems.append(Problem(text, Code.PLANE_STORED_TWICE, shard.name, plane.name))
        if plane.name in seen:
            text = f"has streams of two formats, {seen[plane.name].fmt.title} and {plane.fmt.title}"
            problems.append(Problem(text, Code.PLANE_STORED_TWICE, plane.fixed.shard.name, plane.name))
        seen[plane.name] = plane
    return problems


def _kind(
    fmt: CsfFormat,
    fixed: Located,
    exceptions: Located,
    weight: Located | None,
    receipt: ScaleReceipt | None,
    faults: list[Finding],
) -> PlaneKind | None:
    """The kind of the plane that a pair of streams forms; reasons why it forms none are added to `faults`."""
    faults += _stream_faults(fixed, exceptions)
    sources = _geometries(fmt, fixed, weight, receipt, faults)
    if not sources:
        text = "its rows and columns are unknown: the fixed stream is 1-D, and there is no weight and no receipt"
        faults.append(Finding(text, Code.GEOMETRY_UNKNOWN))
    if faults:
        return None
    rows, cols = sources[0].rows, sources[0].cols
    if not all(_fits(source, rows, cols) for source in sources):
        said = "; ".join(f"{s.source}: {s.rows}x{s.cols}" for s in sources)
        text = f"its rows and columns are contradictory: {said}"
        faults.append(Finding(text, Code.GEOMETRY_CONTRADICTS))
    elif fault := fmt.geometry_fault(rows, cols):
        faults.append(Finding(f"{fmt.title} CSF cannot store it: {fault}", Code.GEOMETRY_IMPOSSIBLE))
    else:
        faults += _shape_faults(fmt, rows, cols, fixed, exceptions, receipt)
    dtype = receipt.dtype if receipt else usual_dtype(fmt, weight.tensor.name if weight else None)
    return None if faults else PlaneKind(fmt, rows, cols, dtype)


def usual_dtype(fmt: CsfFormat, weight: str | None) -> str:
    """The dtype of dense scales where no receipt says it, by the name of the weight beside them.

    compressed-tensors has plain bytes; engines would take their values for numbers if they were labelled UE8M0.
    """
    return "U8" if weight and weight.endswith(PACKED) and "U8" in fmt.dense_dtypes else fmt.dense_dtype


def _fits(source: Geometry, rows: int, cols: int) -> bool:
    """Whether a source agrees with a plane's geometry. A plane may be padded to tiles beyond its weight's scales."""
    if source.source == "weight" and (rows, cols) == padded_shape(source.rows, source.cols):
        return True
    return (source.rows, source.cols) == (rows, cols)


def _stream_faults(fixed: Located, exceptions: Located) -> list[Finding]:
    faults = []
    if fixed.tensor.dtype != "U8" or len(fixed.tensor.shape) not in (1, 2):
        faults.append(f"fixed stream is {described(fixed)}, not U8 in one or two dimensions")
    if exceptions.tensor.dtype != "U32" or len(exceptions.tensor.shape) != 1:
        faults.append(f"exception list is {described(exceptions)}, not U32 in one dimension")
    return [Finding(fault, Code.STREAM_SIZE) for fault in faults]


def described(located: Located) -> str:
    """Dtype and shape of a tensor, in words."""
    return f"{located.tensor.dtype} {list(located.tensor.shape)}"


def _geometries(
    fmt: CsfFormat, fixed: Located, weight: Located | None, receipt: ScaleReceipt | None, faults: list[Finding]
) -> list[Geometry]:
    """The geometry by each source, in order of trust: receipt, stream shape, weight."""
    sources = []
    if receipt:
        sources.append(Geometry("receipt", *receipt.shape))
    shape = fixed.tensor.shape
    if len(shape) == 2 and (cols := fmt.cols_of_slab(shape[1])) is not None:
        sources.append(Geometry("fixed stream", shape[0] * SLAB_ROWS, cols))
    if weight and (found := weight_geometry(weight, fmt, faults)):
        sources.append(found)
    return sources


def weight_geometry(weight: Located, fmt: CsfFormat, faults: list[Finding]) -> Geometry | None:
    """The geometry of the scales of an FP4 weight; reasons why a tensor is no FP4 weight are added to `faults`."""
    dtype, shape = weight.tensor.dtype, weight.tensor.shape
    if len(shape) != 2 or dtype not in FP4_DTYPES:
        text = f"the weight beside it, {weight.tensor.name!r}, is {described(weight)}, not FP4 codes"
        faults.append(Finding(text, Code.NOT_FP4_WEIGHT))
        return None
    k = shape[1] if dtype == "F4" else 2 * shape[1]
    if k % fmt.group_size:
        text = f"the weight beside it has {k} columns, not a multiple of the group size {fmt.group_size}"
        faults.append(Finding(text, Code.NOT_FP4_WEIGHT))
        return None
    return Geometry("weight", shape[0], k // fmt.group_size)


def _shape_faults(
    fmt: CsfFormat, rows: int, cols: int, fixed: Located, exceptions: Located, receipt: ScaleReceipt | None
) -> list[Finding]:
    faults = []
    shape, expected = fixed.tensor.shape, fmt.fixed_bytes(rows, cols)
    if fixed.tensor.nbytes != expected:
        text = f"fixed stream has {fixed.tensor.nbytes} bytes, but a {rows}x{cols} plane needs {expected}"
        faults.append(Finding(text, Code.STREAM_SIZE))
    elif len(shape) == 2 and shape != (rows // SLAB_ROWS, fmt.slab_bytes(cols)):
        text = f"fixed stream is {list(shape)}, not [slabs, slab bytes] of a {rows}x{cols} plane"
        faults.append(Finding(text, Code.STREAM_SIZE))
    if receipt:
        stated = {
            "fixed_bytes": (receipt.fixed_bytes, fixed.tensor.nbytes),
            "exception_bytes": (receipt.exception_bytes, exceptions.tensor.nbytes),
            "source_bytes": (receipt.source_bytes, rows * cols),
        }
        said = [f"{key} {n}, but the plane has {got}" for key, (n, got) in stated.items() if n != got]
        if receipt.dtype not in fmt.dense_dtypes:
            said.append(f"dtype {receipt.dtype}, but {fmt.title} scales are {'/'.join(fmt.dense_dtypes)}")
        faults += [Finding(f"the receipt has {text}", Code.RECEIPT_DIFFERS) for text in said]
    return faults
