"""Warnings of block scales that belong to stacked experts, or are padded and perhaps in tile order."""

from collections.abc import Iterable

from csf_tool.checkpoint.other_scales import OtherScale
from csf_tool.checkpoint.plane_tables import DenseTable
from csf_tool.checkpoint.problems import Problems
from csf_tool.checkpoint.scale_kinds import Reason
from csf_tool.checkpoint.stored import Shard
from csf_tool.codes import Code

_QUANTIZATION_METADATA = "_quantization_metadata"
"""Metadata of a shard whose scales another tool (ComfyUI's) may have stored in tile order."""


def warn_of_stacked(problems: Problems, scales: Iterable[OtherScale]) -> None:
    """Warn of FP4 scales that have three dimensions or more, because experts are stacked into one tensor."""
    for shard, tensor in (other.scale for other in scales if other.kind.reason is Reason.STACKED):
        text = f"is {list(tensor.shape)}: scales of stacked experts. A CSF plane holds one matrix, so it stays as it is"
        problems.warn(text, Code.STACKED_SCALES, shard.name, tensor.name)


def doubtful_scales(table: DenseTable, shards: Iterable[Shard]) -> dict[str, str]:
    """Dense scales whose bytes may not be in row order, each with the reason for the doubt.

    The order does not follow from a shape. Padding and a shard's metadata are signs of tile order.
    """
    marked = {shard.name for shard in shards if _QUANTIZATION_METADATA in shard.header.metadata}
    if not marked:
        return table.padded
    places = zip(table.names, table.scales, strict=True)
    of_marked = [name for name, row in places if table.stored.shards[row].name in marked]
    return dict.fromkeys(of_marked, f"its shard has {_QUANTIZATION_METADATA}") | table.padded


def warn_of_doubtful(problems: Problems, doubtful: dict[str, str]) -> None:
    """Warn of scales whose bytes may not be in row order."""
    rule = "csf-tool keeps its bytes in order, and compresses it only with --allow-padded"
    for name, why in doubtful.items():
        text = f"its layout is unknown, because {why}: it may be padded or in tiles. {rule}"
        problems.warn(text, Code.SCALE_LAYOUT, tensor=name)
