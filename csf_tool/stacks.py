"""Stacks of a checkpoint, kept compressed: one projection of a layer over all its experts, for one rank.

In tensor parallelism, every rank has a part of each expert. Of gate and up it has some of the output features,
which are rows of the weight and of its scales (the column-parallel linear layer of Megatron's papers); of down it
has some of the input features, which are columns (row-parallel). So gate and up are cut by rows, down by columns.
"""

from collections.abc import Sequence
from os import PathLike
from typing import Literal

import torch

from csf_tool.checkpoint.model import Checkpoint, DensePlane, Plane
from csf_tool.checkpoint.names import PROJECTIONS, expert_group_of, expert_of, layer_of, projection_of
from csf_tool.checkpoint.streams import Readers
from csf_tool.csf_shards import read_scales
from csf_tool.encoder import Encoded, make_encoder
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.gpu import CsfScales
from csf_tool.gpu.slicing import RowStreams, join_rows
from csf_tool.gpu_streams import StackStreams
from csf_tool.loading import opened
from csf_tool.staging import Stager
from csf_tool.text import escape
from csf_tool.torch_loading import torch_device

Projection = Literal["gate", "up", "down", "gate_up"]

Order = tuple[Literal["gate"], Literal["up"]] | tuple[Literal["up"], Literal["gate"]]

AnyPlane = Plane | DensePlane

FUSED = "gate_up"


def load_stack(
    checkpoint: Checkpoint | str | PathLike[str],
    layer: int | str,
    projection: Projection,
    *,
    device: torch.device | str | int = "cuda",
    tp_rank: int = 0,
    tp_size: int = 1,
    order: Order = ("gate", "up"),
    interleave: bool = False,
) -> CsfScales:
    """The scales of one projection of a layer over all its experts, compressed and prepared on a device.

    Nothing is decoded: `ScaleWorkspace`, or the decompress functions, do that before each matrix product. Planes
    that are stored dense are encoded first. For several stacks, open the checkpoint once with
    `csf_tool.open_checkpoint`, and give that.

    Args:
        checkpoint: a folder or a file, or what `open_checkpoint` gave.
        layer: its number, or its name ("model.layers.3") where several modules count their layers.
        projection: "gate", "up" or "down", whichever names the checkpoint has for them; or "gate_up": both in one
            stack, with the rows of the two in each plane.
        device: where to prepare it. Decompressing needs a GPU.
        tp_rank: which of the tensor-parallel ranks it is for, from 0.
        tp_size: how many ranks there are. Each gets as many rows of gate and up, in whole slabs of 16, or as many
            columns of down, an even number for NVFP4. Before fusing, so that a rank's gate and up belong together.
        order: which comes first in "gate_up".
        interleave: let the rows of the two take turns, that of the first before that of the second, instead of all
            rows of the first before all of the second.

    Returns:
        The stack: `experts` planes of `rows` x `cols` in the order of the experts' numbers.

    Raises:
        FileNotFoundError: there is nothing at the path.
        UsageError: no such layer, projection, order, rank or device; or the planes cannot be cut so.
        CheckpointError: the checkpoint is broken, an expert of the layer is missing or unlike the others, or a plane
            breaks a rule of the format.
        EnvironmentFault: the system cannot read it, or there is no such GPU.
    """
    wanted = _wanted(projection, order)
    if not 0 <= tp_rank < tp_size:
        raise UsageError(f"tp_rank {tp_rank} of tp_size {tp_size}: ranks count from 0")
    found = opened(checkpoint)
    on = torch_device(device)
    planes = _layer_planes(found, layer)
    stacks = [_stack_planes(found, planes, layer, each) for each in wanted]
    shares = [_share(each, stack[0], tp_rank, tp_size) for each, stack in zip(wanted, stacks, strict=True)]
    with Readers() as readers, readers.unchanged(), Stager(on) as stager:
        streams = [StackStreams(_encoded(stack, readers, on), on) for stack in stacks]
        stager.run(transfer for stack in streams for transfer in stack.transfers)
    parts = [RowStreams.of(stack.checked()) for stack in streams]
    parts = [_cut(*part) for part in zip(wanted, parts, shares, strict=True)]
    try:
        return join_rows(parts, interleave=interleave).prepared()
    except ValueError as fault:
        raise CheckpointError(f"{found.path}: layer {escape(layer)}: {FUSED}: {fault}") from fault


def _encoded(planes: Sequence[AnyPlane], readers: Readers, device: torch.device) -> list[Plane | Encoded]:
    """The planes, with those that are stored dense as streams in memory."""
    encoder = make_encoder(str(device) if device.type == "cuda" else "cpu")
    encoded = encoder.encode(read_scales(readers, [plane for plane in planes if isinstance(plane, DensePlane)]))
    return [plane if isinstance(plane, Plane) else next(encoded) for plane in planes]


def _wanted(projection: str, order: Sequence[str]) -> list[str]:
    """The projections to join."""
    if projection != FUSED:
        if projection not in PROJECTIONS:
            raise UsageError(f"projection {projection!r}: give {', '.join(PROJECTIONS)} or {FUSED}")
        return [projection]
    if sorted(order) != ["gate", "up"]:
        raise UsageError(f"order {order!r}: give ('gate', 'up') or ('up', 'gate')")
    return list(order)


def _layer_planes(checkpoint: Checkpoint, layer: int | str) -> list[AnyPlane]:
    """The planes of the routed experts of a layer."""
    groups: dict[str, list[AnyPlane]] = {}
    mark = f"{layer}."
    every: list[AnyPlane] = [*checkpoint.planes, *checkpoint.dense_planes]
    for plane in every:
        if mark not in plane.name:  # a quick look before the thorough one
            continue
        group = expert_group_of(plane.name)
        if group is None:
            continue
        name = layer_of(plane.name)
        if layer in (name, group) if isinstance(layer, str) else name.rpartition(".")[2] == str(layer):
            groups.setdefault(group, []).append(plane)
    if not groups:
        raise UsageError(f"{checkpoint.path}: has no block scales of experts in layer {escape(layer)}")
    if len(groups) > 1:
        names = ", ".join(sorted(map(escape, groups)))
        raise UsageError(f"{checkpoint.path}: {escape(layer)} may be {names}: give one of these names as the layer")
    return next(iter(groups.values()))


def _stack_planes(
    checkpoint: Checkpoint, planes: Sequence[AnyPlane], layer: int | str, projection: str
) -> list[AnyPlane]:
    """The planes of a projection in the order of the experts, all there and alike."""
    what = f"{checkpoint.path}: layer {escape(layer)}, {projection}"
    by_expert = {expert_of(p.name): p for p in planes if projection_of(p.name) in PROJECTIONS[projection]}
    total = max((expert for p in planes if (expert := expert_of(p.name)) is not None), default=-1) + 1
    if missing := [expert for expert in range(total) if expert not in by_expert]:
        raise CheckpointError(f"{what}: {len(missing)} of {total} experts have no block scales, {missing[0]} the first")
    stack = [by_expert[expert] for expert in range(total)]
    for plane in stack:
        if _kind(plane) != _kind(stack[0]):
            names = f"{escape(plane.name)} is {_kind(plane)}, {escape(stack[0].name)} {_kind(stack[0])}"
            raise CheckpointError(f"{what}: {names}: no stack")
    return stack


def _kind(plane: AnyPlane) -> str:
    return f"{plane.fmt.title} {plane.rows}x{plane.cols}"


def _share(projection: str, plane: AnyPlane, rank: int, size: int) -> range:
    """The rows, or for down the columns, of a rank."""
    by_rows = projection != "down"
    total, kind = (plane.rows, "rows") if by_rows else (plane.cols, "columns")
    share, rest = divmod(total, size)
    fault = (
        f"{total} {kind} do not divide by {size}"
        if rest
        else plane.fmt.geometry_fault(*((share, plane.cols) if by_rows else (plane.rows, share)))
    )
    if fault:
        raise UsageError(
            f"tp_size {size}: {projection} planes of {plane.rows}x{plane.cols} cannot be cut so, {fault} "
            f"({plane.fmt.title} CSF is cut in whole slabs of 16 rows, and {plane.fmt.column_multiple} columns)"
        )
    return range(rank * share, (rank + 1) * share)


def _cut(projection: str, streams: RowStreams, share: range) -> RowStreams:
    if projection == "down":
        return streams.take_columns(share.start, share.stop)
    return streams.take_rows(share.start, share.stop)
