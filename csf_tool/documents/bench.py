"""The JSON document of `bench`. Times are microseconds of one launch."""

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:  # they load torch
    from csf_tool.bench.gemm_times import GemmResult, Pair
    from csf_tool.bench.results import BenchResult, CaseResult, Measure
    from csf_tool.bench.timing import Timing


class TimingDocument(TypedDict):
    """The time of one launch, in microseconds."""

    median_us: float
    """The median of the repeats."""
    low_us: float
    """The lower end of the range that 80% of the repeats are in."""
    high_us: float
    """The upper end of that range."""
    repeats: int
    """Number of repeats."""


class BenchSourceDocument(TypedDict):
    """The layer that streams were taken from."""

    checkpoint: str
    """The path of the checkpoint."""
    layer: str
    """The name of the layer."""
    exceptions: int
    """Number of exceptions in all stacks of the layer."""


class MeasureDocument(TypedDict):
    """One way to do the work."""

    name: str
    """The name of the way."""
    flushed: TimingDocument
    """The time with its data out of the L2 cache."""
    warm: TimingDocument | None
    """The time with its data in the L2 cache as far as they fit; null where that was not measured."""
    note: str
    """A remark, in words."""


class FloorDocument(MeasureDocument):
    """Streaming as many bytes as the work reads and writes: nothing can be faster."""

    bytes_per_s: int
    """Bytes read and written per second."""


class RatedMeasureDocument(MeasureDocument):
    """One way to do the work, beside the floor."""

    of_floor: float | None
    """The time as a multiple of the floor's; null where it does not move as many bytes."""


class CaseDocument(TypedDict):
    """Decoding one stack."""

    name: str
    """The name of the stack."""
    format: str
    """The format."""
    experts: int
    """Number of planes."""
    rows: int
    """Rows of each plane."""
    cols: int
    """Columns of each plane."""
    exceptions: int
    """Number of exceptions."""
    compressed_bytes: int
    """Bytes of the streams."""
    prepared_bytes: int
    """Bytes of the streams once they are prepared for decoding."""
    dense_bytes: int
    """Bytes of the dense scales."""
    floor: FloorDocument
    """The floor."""
    measures: list[RatedMeasureDocument]
    """The ways to decode it; the first is the whole stack, row by row."""


class EncoderDocument(TimingDocument):
    """Encoding a layer of scales, launching and allocation included."""

    dense_bytes: int
    """Bytes of the dense scales."""


class TileDocument(TypedDict):
    """The launch shape of a product."""

    rows: int
    """Rows that one program computes."""
    columns: int
    """Columns that one program computes."""
    depth: int
    """Depth of one step."""
    warps: int
    """Number of warps."""
    stages: int
    """Number of pipeline stages."""
    scaled_dot: bool
    """Whether scales are applied by the tensor cores."""


class PairDocument(TypedDict):
    """A product with dense scales, and with scales that are decoded just before it."""

    dense: TimingDocument
    """The product with scales that lie dense in memory."""
    staged: TimingDocument
    """The product with scales that are decoded just before it."""
    cost_us: float
    """Microseconds that decoding first adds."""
    cost_share: float
    """The same as a part of the time with dense scales, to four decimals."""
    is_clear: bool
    """Whether the two ranges lie apart, of enough repeats to say so."""


class ProductDocument(TypedDict):
    """One matrix product."""

    stack: str
    """The name of the stack."""
    format: str
    """The format."""
    experts: int
    """Number of experts."""
    columns: int
    """Columns of each expert's result."""
    depth: int
    """Depth of each product."""
    way: str
    """Batched, where every expert has as many tokens, or grouped."""
    active_experts: int
    """Number of experts that have tokens."""
    tokens_per_expert: int
    """Tokens of each active expert."""
    bytes_read: int
    """Bytes of weights and dense scales that the product reads."""
    bytes_per_s: int
    """The same per second, with dense scales."""
    tile: TileDocument
    """The launch shape."""
    flushed: PairDocument
    """The times with its data out of the L2 cache."""
    warm: PairDocument | None
    """The times with its data in the L2 cache as far as they fit; null where a launch reads more than it holds."""


class BenchDocument(TypedDict):
    """Given by `csf-tool bench --json`."""

    schema: Literal["csf-tool.bench/1"]
    """The name and version of this document."""
    date: str
    """The day of the measurement, in UTC, as YYYY-MM-DD."""
    device: str
    """The name of the GPU."""
    versions: dict[str, str]
    """Versions of the software by its name."""
    l2_bytes: int
    """Bytes of the L2 cache."""
    source: BenchSourceDocument | None
    """The layer that the streams are of; null where they are made up."""
    copy_bytes_per_s: float
    """Bytes read plus bytes written by a large copy, per second."""
    empty_kernel: TimingDocument
    """A kernel that does nothing."""
    cases: list[CaseDocument]
    """Decoding, by stack."""
    encoder: EncoderDocument | None
    """Encoding; null where that was not measured."""
    products: list[ProductDocument]
    """Matrix products."""
    skipped: list[str]
    """Measurements that could not be made, and why, in words."""


def bench_document(result: "BenchResult") -> BenchDocument:
    """The document of `bench`."""
    source: BenchSourceDocument | None = None
    if result.source:
        source = {
            "checkpoint": result.source.checkpoint,
            "layer": result.source.layer,
            "exceptions": result.source.exceptions,
        }
    return {
        "schema": "csf-tool.bench/1",
        "date": result.date,
        "device": result.device,
        "versions": result.versions,
        "l2_bytes": result.l2_bytes,
        "source": source,
        "copy_bytes_per_s": result.copy_bytes_per_s,
        "empty_kernel": _timing(result.empty),
        "cases": [_case(case) for case in result.cases],
        "encoder": {"dense_bytes": result.encode.dense_bytes, **_timing(result.encode.timing)}
        if result.encode
        else None,
        "products": [_product(gemm) for gemm in result.gemms],
        "skipped": result.skipped,
    }


def _timing(timing: "Timing") -> TimingDocument:
    return {
        "median_us": timing.median_us,
        "low_us": timing.low_us,
        "high_us": timing.high_us,
        "repeats": timing.repeats,
    }


def _case(case: "CaseResult") -> CaseDocument:
    work = case.workload
    return {
        "name": work.name,
        "format": work.format.name,
        "experts": work.experts,
        "rows": work.rows,
        "cols": work.cols,
        "exceptions": case.exceptions,
        "compressed_bytes": case.compressed_bytes,
        "prepared_bytes": case.prepared_bytes,
        "dense_bytes": work.dense_bytes,
        "floor": {**_measure(case.floor), "bytes_per_s": round(case.floor_bytes_per_s)},
        "measures": [{**_measure(m), "of_floor": case.of_floor(m)} for m in case.measures],
    }


def _measure(measure: "Measure") -> MeasureDocument:
    return {
        "name": measure.name,
        "flushed": _timing(measure.flushed),
        "warm": _timing(measure.warm) if measure.warm else None,
        "note": measure.note,
    }


def _product(gemm: "GemmResult") -> ProductDocument:
    stack, tile = gemm.stack, gemm.tile
    return {
        "stack": stack.name,
        "format": stack.format.name,
        "experts": stack.experts,
        "columns": stack.rows,
        "depth": stack.cols * stack.format.group_size,
        "way": gemm.way,
        "active_experts": gemm.active,
        "tokens_per_expert": gemm.tokens,
        "bytes_read": gemm.bytes_read,
        "bytes_per_s": round(gemm.bytes_per_s),
        "tile": {
            "rows": tile.rows,
            "columns": tile.columns,
            "depth": tile.depth,
            "warps": tile.warps,
            "stages": tile.stages,
            "scaled_dot": tile.scaled_dot,
        },
        "flushed": _pair(gemm.flushed),
        "warm": _pair(gemm.warm) if gemm.warm else None,
    }


def _pair(pair: "Pair") -> PairDocument:
    return {
        "dense": _timing(pair.dense),
        "staged": _timing(pair.staged),
        "cost_us": round(pair.cost_us, 3),
        "cost_share": round(pair.cost_us / pair.dense.median_us, 4),
        "is_clear": pair.is_clear,
    }
