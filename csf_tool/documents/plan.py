"""The JSON document of `plan`."""

from typing import Literal, TypedDict

from csf_tool.look.plan import Plan


class PlanCheckpointDocument(TypedDict):
    """The checkpoint that was looked at."""

    path: str
    """The path; of one on the Hub, repository and commit."""
    kind: str
    """Layout, CSF or dense, and formats, in words."""


class StrategiesDocument(TypedDict):
    """A number of bytes for each of the two strategies."""

    expanded: int
    """Bytes with scales that are decoded when loading."""
    compressed: int
    """Bytes with scales that are kept compressed, and decoded before each product."""


class StackDocument(TypedDict):
    """A stack: one projection of a layer over all its experts, gate and up as one."""

    layer: str
    """The name of the layer."""
    projection: str
    """The name of the projection."""
    format: str
    """The format."""
    experts: int
    """Number of experts: planes of the stack."""
    rows: int
    """Rows of each plane on one GPU."""
    cols: int
    """Columns of each plane on one GPU."""
    divided: bool
    """Whether it is divided among the GPUs; if not, each holds all of it."""
    expanded_bytes: int
    """Bytes of its dense scales."""
    compressed_bytes: int
    """Bytes of its streams, prepared for decoding."""
    weight_bytes: int
    """Bytes of its FP4 weights."""


class GrowthDocument(TypedDict):
    """Bytes that some number of resident stacks takes."""

    stacks: int
    """Number of resident stacks."""
    expanded_bytes: int
    """Bytes of their dense scales."""
    compressed_bytes: int
    """Bytes of their streams, and of the workspace."""


class PlanDocument(TypedDict):
    """Given by `csf-tool plan --json` and `csf_tool.plan`. All sizes are bytes on one GPU."""

    schema: Literal["csf-tool.plan/1"]
    """The name and version of this document."""
    checkpoint: PlanCheckpointDocument
    """The checkpoint that was looked at."""
    tp: int
    """Number of GPUs that the stacks are divided among."""
    resident_stacks: int
    """Number of stacks that stay in GPU memory."""
    expanded_bytes: int
    """Bytes of the resident stacks' dense scales."""
    compressed_bytes: int
    """Bytes of the resident stacks' streams, without the workspace."""
    workspace_bytes: int
    """Bytes of the workspace: the dense scales of the largest resident layer, of all its stacks."""
    together_bytes: StrategiesDocument
    """Bytes that each strategy takes, the workspace included."""
    saved_bytes: int
    """Bytes that keeping the scales compressed saves; negative where it costs."""
    saved_share: float
    """The same as a part of `expanded_bytes`, to four decimals."""
    compressed_wins_from_stacks: int | None
    """Number of resident stacks from which on keeping them compressed takes less; null if it never does."""
    other_tensor_bytes: int
    """Bytes of all other tensors: the resident stacks' weights, and what is no stack."""
    gpu_memory_bytes: int | None
    """Memory of one GPU as given; null without `--gpu-memory`."""
    left_bytes: StrategiesDocument | None
    """Bytes of that memory that each strategy leaves, negative where it does not fit; null as above."""
    undivided: list[str]
    """Kinds of stacks that cannot be divided among the GPUs, and why, in words."""
    stacks: list[StackDocument]
    """All stacks, resident or not."""
    growth: list[GrowthDocument]
    """Bytes that 1, 2, 3, ... resident stacks take."""


def plan_document(plan: Plan) -> PlanDocument:
    """The document of `plan`."""
    used: StrategiesDocument = {"expanded": plan.dense_bytes, "compressed": plan.kept_bytes}
    left: StrategiesDocument | None = None
    if plan.gpu_memory:
        left = {"expanded": plan.left_after(plan.dense_bytes), "compressed": plan.left_after(plan.kept_bytes)}
    return {
        "schema": "csf-tool.plan/1",
        "checkpoint": {"path": plan.path, "kind": plan.kind},
        "tp": plan.tp,
        "resident_stacks": plan.resident,
        "expanded_bytes": plan.dense_bytes,
        "compressed_bytes": plan.compressed_bytes,
        "workspace_bytes": plan.workspace_bytes,
        "together_bytes": used,
        "saved_bytes": plan.saved_bytes,
        "saved_share": round(plan.saved_bytes / plan.dense_bytes, 4),
        "compressed_wins_from_stacks": plan.wins_from,
        "other_tensor_bytes": plan.tensor_bytes,
        "gpu_memory_bytes": plan.gpu_memory,
        "left_bytes": left,
        "undivided": plan.undivided,
        "stacks": [
            {
                "layer": stack.layer,
                "projection": stack.projection,
                "format": stack.format.name,
                "experts": stack.experts,
                "rows": stack.rows,
                "cols": stack.cols,
                "divided": stack.divided,
                "expanded_bytes": stack.dense_bytes,
                "compressed_bytes": stack.compressed_bytes,
                "weight_bytes": stack.weight_bytes,
            }
            for stack in plan.stacks
        ],
        "growth": [
            {"stacks": n, "expanded_bytes": dense, "compressed_bytes": kept} for n, dense, kept in plan.growth()
        ],
    }
