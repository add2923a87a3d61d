"""The JSON documents on scales that are no planes: by their kind, and one of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from csf_tool.checkpoint.other_scales import ScaleGroup

if TYPE_CHECKING:  # it reads data, with numpy: headers alone need neither
    from csf_tool.look.scale_inspection import InspectedScale


class ScaleGroupDocument(TypedDict):
    """Scales of one kind and dtype that are no planes."""

    weights: str
    """The format of their weights."""
    a_scale_for: str
    """The part of a weight that one number scales, in words; empty where that is not known."""
    group_size: int | None
    """Number of weights that share a scale; null where that is not known or not one number."""
    matrices: int
    """Number of matrices in each tensor."""
    is_fp4: bool
    """Whether the weights are FP4, or may be."""
    dtype: str
    """The dtype of the scales, as safetensors writes it."""
    shapes: list[list[int]]
    """The shapes of the tensors, each once."""
    tensors: int
    """Number of tensors."""
    bytes: int
    """Bytes of these tensors."""
    reason: str
    """Why they are no planes: a fixed word."""
    why: str
    """The same as a sentence."""
    first: str
    """The name of the first of these tensors."""


class InspectScalesDocument(TypedDict):
    """Printed by `inspect` where a checkpoint has no planes, or several scales that are none are meant."""

    schema: Literal["csf-tool.inspect-scales/1"]
    """The name and version of this document."""
    other_scales: list[ScaleGroupDocument]
    """The scales, by their kind."""


class TensorLookDocument(TypedDict):
    """A tensor's name, dtype and shape."""

    name: str
    """The name of the tensor."""
    dtype: str
    """The dtype, as safetensors writes it."""
    shape: list[int]
    """The shape."""


class ScaleValuesDocument(TypedDict):
    """The values of a scale."""

    lowest: float | None
    """The lowest number; null where there is none, or the dtype is none that csf-tool reads."""
    highest: float | None
    """The highest number; null as above."""
    zero: int
    """Number of zeros."""
    NaN: int
    """Number of values that are no numbers."""


class InspectScaleDocument(TypedDict):
    """Printed by `inspect` for one scale that is no plane."""

    schema: Literal["csf-tool.inspect-scale/1"]
    """The name and version of this document."""
    name: str
    """The name of the tensor."""
    shard: str
    """The shard that it is in."""
    dtype: str
    """The dtype, as safetensors writes it."""
    shape: list[int]
    """The shape."""
    begin: int
    """The byte of the file at which its data begin."""
    end: int
    """The byte of the file after its data."""
    weights: str
    """The format of its weights."""
    a_scale_for: str
    """The part of a weight that one number scales, in words; empty where that is not known."""
    group_size: int | None
    """Number of weights that share a scale; null where that is not known or not one number."""
    matrices: int
    """Number of matrices in the tensor."""
    reason: str
    """Why it is not a plane: a fixed word."""
    why: str
    """The same as a sentence."""
    weight: TensorLookDocument | None
    """The weight that it belongs to; null where none was found."""
    values: ScaleValuesDocument
    """The values."""
    byte_counts: list[int] | None
    """Number of scales that have each byte, 0 to 255; null where a scale is not one byte."""


def groups_document(groups: Sequence[ScaleGroup]) -> list[ScaleGroupDocument]:
    """Each kind of scale with its number, bytes and shapes, and why it is no plane."""
    return [
        {
            "weights": group.kind.weights,
            "a_scale_for": group.kind.scope,
            "group_size": group.kind.group_size,
            "matrices": group.kind.matrices,
            "is_fp4": group.kind.is_fp4,
            "dtype": group.dtype,
            "shapes": list(map(list, group.shapes)),
            "tensors": len(group.scales),
            "bytes": group.nbytes,
            "reason": group.kind.reason.value,
            "why": group.kind.why,
            "first": group.scales[0].scale.tensor.name,
        }
        for group in groups
    ]


def scales_document(groups: Sequence[ScaleGroup]) -> InspectScalesDocument:
    """The document of scales that are no planes."""
    return {"schema": "csf-tool.inspect-scales/1", "other_scales": groups_document(groups)}


def scale_document(found: "InspectedScale") -> InspectScaleDocument:
    """The document of one scale that is no plane."""
    tensor, kind, weight = found.of.scale.tensor, found.of.kind, found.of.weight
    counts = found.byte_counts
    look: TensorLookDocument | None = None
    if weight:
        look = {"name": weight.tensor.name, "dtype": weight.tensor.dtype, "shape": list(weight.tensor.shape)}
    return {
        "schema": "csf-tool.inspect-scale/1",
        "name": found.name,
        "shard": found.of.scale.shard.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "begin": tensor.begin,
        "end": tensor.end,
        "weights": kind.weights,
        "a_scale_for": kind.scope,
        "group_size": kind.group_size,
        "matrices": kind.matrices,
        "reason": kind.reason.value,
        "why": kind.why,
        "weight": look,
        "values": {"lowest": found.lowest, "highest": found.highest, "zero": found.zero, "NaN": found.nan},
        "byte_counts": None if counts is None else counts.tolist(),
    }
