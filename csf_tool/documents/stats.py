"""The JSON document of `stats`."""

from typing import TYPE_CHECKING, Literal, TypedDict

from csf_tool.documents.other_scales import ScaleGroupDocument, groups_document
from csf_tool.documents.problem import GradedProblemDocument, problem_document
from csf_tool.look.stats import Stats, Totals

if TYPE_CHECKING:  # it reads data, with numpy: headers alone need neither
    from csf_tool.look.scale_bytes import ScaleBytes


class StatsCheckpointDocument(TypedDict):
    """The checkpoint that was looked at."""

    path: str
    """The path; of one on the Hub, repository and commit."""
    layout: str
    """The layout: a fixed word."""
    kind: str
    """Layout, CSF or dense, and formats, in words."""


class ScaleSizesDocument(TypedDict):
    """Sizes of all block scales that are planes: the compressed ones, or where there are none the dense ones."""

    elements: int
    """Number of scales."""
    dense_bytes: int
    """Bytes of these scales when they are stored dense."""
    csf_bytes: int | None
    """Bytes of both streams of all planes; null for a checkpoint without CSF planes."""
    saved_bytes: int | None
    """Bytes that compression saves, negative where it costs; null as above."""
    fixed_bytes: int | None
    """Bytes of the fixed streams; null as above."""
    exception_bytes: int | None
    """Bytes of the exception lists; null as above."""
    exceptions: int | None
    """Number of exceptions; null as above."""


class PayloadDocument(TypedDict):
    """Sizes of all tensors, scales and everything else."""

    csf_bytes: int | None
    """Bytes of all tensors as they are stored; null for a checkpoint without CSF planes."""
    dense_bytes: int
    """Bytes of all tensors once every plane is dense."""


class GroupDocument(TypedDict):
    """Planes that have something in common, and their sizes."""

    planes: int
    """Number of planes."""
    dense_bytes: int
    """Bytes of their scales when these are stored dense."""
    csf_bytes: int | None
    """Bytes of their streams; null for a checkpoint without CSF planes."""
    exceptions: int | None
    """Number of exceptions; null as above."""


class FormatGroupDocument(GroupDocument):
    """The planes of one format."""

    format: str
    """The format: a fixed word, such as `nvfp4`."""


class ProjectionGroupDocument(GroupDocument):
    """The planes of one projection, format and geometry."""

    projection: str
    """The name of the projection, as the checkpoint has it."""
    format: str
    """The format."""
    rows: int
    """Rows of each plane."""
    cols: int
    """Columns of each plane: scales in a row."""


class LayerGroupDocument(GroupDocument):
    """The planes of one layer."""

    layer: str
    """The name of the layer."""


class ShardGroupDocument(GroupDocument):
    """The planes of one shard."""

    shard: str
    """The name of the file."""


class ScaleBytesDocument(TypedDict):
    """The bytes of all scales of one layer and format."""

    layer: str
    """The name of the layer."""
    format: str
    """The format."""
    scales: int
    """Number of scales."""
    nan: int
    """Number of scales that are not a number."""
    negative: int
    """Number of scales with the sign bit set, -0 among them."""
    zero: int
    """Number of bytes 0x00."""
    bytes: dict[str, int]
    """Number of scales by their byte, such as `"0x7e"`; bytes that none has are left out."""


class StatsDocument(TypedDict):
    """Given by `csf-tool stats --json` and `csf_tool.stats`."""

    schema: Literal["csf-tool.stats/1"]
    """The name and version of this document."""
    checkpoint: StatsCheckpointDocument
    """The checkpoint that was looked at."""
    shards: int
    """Number of shards."""
    tensors: int
    """Number of tensors that are stored in them."""
    planes: int
    """Number of CSF planes."""
    dense_planes: int
    """Number of FP4 block scales that are stored dense."""
    incomplete: dict[str, int]
    """Number of tensors that lack something or do not fit, by the code of the fault."""
    scales: ScaleSizesDocument
    """Sizes of the block scales."""
    tensor_payload: PayloadDocument
    """Sizes of all tensors."""
    by_format: list[FormatGroupDocument]
    """The planes by format."""
    by_projection: list[ProjectionGroupDocument]
    """The planes by projection and geometry."""
    by_layer: list[LayerGroupDocument]
    """The planes by layer."""
    by_shard: list[ShardGroupDocument]
    """The planes by shard."""
    other_scales: list[ScaleGroupDocument]
    """Scales that are not planes, by their kind."""
    scale_bytes: list[ScaleBytesDocument] | None
    """The bytes of all scales by layer; null without `--scales`."""
    problems: list[GradedProblemDocument]
    """Everything that is wrong or odd. With an `error` among them the exit code is 1."""


def stats_document(stats: Stats) -> StatsDocument:
    """The document of `stats`. What a dense checkpoint has no number for is null."""
    shown = stats.shown_total
    csf = stats.is_csf
    return {
        "schema": "csf-tool.stats/1",
        "checkpoint": {"path": stats.path, "layout": stats.layout, "kind": stats.kind},
        "shards": stats.shards,
        "tensors": stats.tensors,
        "planes": stats.total.planes,
        "dense_planes": stats.dense_total.planes,
        "incomplete": {code.value: number for code, number in sorted(stats.incomplete.items())},
        "scales": {
            "elements": shown.dense_bytes,
            "dense_bytes": shown.dense_bytes,
            "csf_bytes": shown.csf_bytes if csf else None,
            "saved_bytes": shown.dense_bytes - shown.csf_bytes if csf else None,
            "fixed_bytes": shown.fixed_bytes if csf else None,
            "exception_bytes": shown.exception_bytes if csf else None,
            "exceptions": shown.exceptions if csf else None,
        },
        "tensor_payload": {
            "csf_bytes": stats.payload_bytes if csf else None,
            "dense_bytes": stats.dense_payload_bytes,
        },
        "by_format": [{"format": name, **_group(totals, csf)} for name, totals in stats.by_format.items()],
        "by_projection": [
            {"projection": p.name, "format": p.format, "rows": p.rows, "cols": p.cols, **_group(totals, csf)}
            for p, totals in stats.by_projection.items()
        ],
        "by_layer": [{"layer": name, **_group(totals, csf)} for name, totals in stats.by_layer.items()],
        "by_shard": [{"shard": name, **_group(totals, csf)} for name, totals in stats.by_shard.items()],
        "other_scales": groups_document(stats.others),
        "scale_bytes": _scale_bytes(stats.scale_bytes) if stats.scale_bytes else None,
        "problems": [{**problem_document(problem), "severity": problem.severity.value} for problem in stats.problems],
    }


def _scale_bytes(found: "ScaleBytes") -> list[ScaleBytesDocument]:
    """Number of scales of each layer that have each byte; bytes that none has are left out."""
    return [
        {
            "layer": group.layer,
            "format": group.fmt.name,
            "scales": counts.scales,
            "nan": counts.nan,
            "negative": counts.negative,
            "zero": counts.zero,
            "bytes": {f"0x{value:02x}": n for value, n in enumerate(counts.by_value.tolist()) if n},
        }
        for group, counts in found.counts.items()
    ]


def _group(totals: Totals, csf: bool) -> GroupDocument:
    return {
        "planes": totals.planes,
        "dense_bytes": totals.dense_bytes,
        "csf_bytes": totals.csf_bytes if csf else None,
        "exceptions": totals.exceptions if csf else None,
    }
