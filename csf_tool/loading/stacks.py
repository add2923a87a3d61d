"""Stacks of a checkpoint, kept compressed: one projection of a layer over all its experts, for one rank."""

from collections.abc import Iterable, Sequence
from itertools import chain
from os import PathLike
from typing import Literal

import torch

from csf_tool.arguments import as_names, check_type
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.names import Role, natural_key, role_of
from csf_tool.checkpoint.plane_tables import AnyPlane, DensePlane, Plane
from csf_tool.checkpoint.streams import Readers
from csf_tool.coders.encoder import make_encoder, read_scales
from csf_tool.codes import Code
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.gpu.scales import CsfScales, prepared
from csf_tool.gpu.slicing import RowStreams, join_rows
from csf_tool.gpu.streams import CsfStreams
from csf_tool.loading.stack_streams import StackPlane, check, fill, room_for
from csf_tool.loading.staging import Stager
from csf_tool.loading.tensor_parallel import is_cut_by_columns, share
from csf_tool.loading.tensors import opened
from csf_tool.loading.torch_loader import torch_device
from csf_tool.text import escape, verb

Projection = Literal["gate", "up", "down", "gate_up"]

Order = tuple[Literal["gate"], Literal["up"]] | tuple[Literal["up"], Literal["gate"]]

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
        tp_size: how many ranks there are. Each gets as many rows of gate and of up, in whole slabs of 16, or as many
            columns of down, an even number for NVFP4. Cut before they are joined, a rank's gate and up belong
            together. Where the format does not allow it, every rank can take the whole stack (`tp_size=1`).
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
    streams = read_stack(
        checkpoint, layer, projection,
        device=device, tp_rank=tp_rank, tp_size=tp_size, order=order, interleave=interleave,
    )  # fmt: skip
    return prepared(streams)


def read_stack(
    checkpoint: Checkpoint | str | PathLike[str],
    layer: int | str,
    projection: Projection,
    *,
    device: torch.device | str | int,
    tp_rank: int = 0,
    tp_size: int = 1,
    order: Order = ("gate", "up"),
    interleave: bool = False,
) -> CsfStreams:
    """The checked streams of a stack on a device, not yet prepared. Arguments and errors are those of `load_stack`."""
    for argument, value in (("tp_rank", tp_rank), ("tp_size", tp_size)):
        check_type(argument, value, int)
    check_type("layer", layer, int, str)
    wanted = _wanted(projection, order)
    if not 0 <= tp_rank < tp_size:
        raise UsageError(f"tp_rank {tp_rank} of tp_size {tp_size}: give a rank from 0 to tp_size - 1")
    checkpoint, target = opened(checkpoint), torch_device(device)
    if target.type == "meta":
        raise UsageError("device meta: has no memory for a stack")
    planes = _layer_planes(checkpoint, layer)
    stacks = [_stack_planes(checkpoint, planes, layer, role) for role in wanted]
    for role, stack in zip(wanted, stacks, strict=True):
        _require_divisible(stack[0], role, checkpoint.experts.projection_of(stack[0].name), tp_size)
    with Readers() as readers, readers.unchanged(), Stager(target) as stager:
        sources = [_sources(stack, readers, target) for stack in stacks]
        streams = [room_for(source, target) for source in sources]
        stager.run(chain.from_iterable(map(fill, streams, sources)))
    for i, source in enumerate(sources):
        check(streams[i], source)
    if len(streams) == tp_size == 1:
        return streams[0]
    parts = [
        _cut(RowStreams.of(streams.pop(0)), stack[0], role, tp_rank, tp_size)  # frees each in turn
        for role, stack in zip(wanted, stacks, strict=True)
    ]
    try:
        return join_rows(parts, interleave=interleave).stack()
    except ValueError as fault:
        problem = f"layer {escape(layer)}: {FUSED}: {fault}"
        raise CheckpointError(problem, Code.NO_STACK, str(checkpoint.path)) from fault


def first_gated_layer(checkpoint: Checkpoint) -> str:
    """The first layer whose routed experts have gate, up and down projections: a name that `load_stack` takes.

    Compressed planes count; in a checkpoint without any, dense ones.

    Raises:
        UsageError: there is none.
    """
    roles: dict[str, set[Role]] = {}
    planes: Iterable[AnyPlane] = checkpoint.planes or checkpoint.dense_planes
    for plane in planes:
        expert = checkpoint.experts.of_tensor(plane.name)
        if expert and (role := role_of(expert.projection)):
            roles.setdefault(expert.group, set()).add(role)
    complete = [group for group, its_roles in roles.items() if len(its_roles) == len(Role)]
    if not complete:
        raise UsageError(
            f"{checkpoint.label}: has no layer with block scales of experts' gate, up and down projections"
        )
    return min(complete, key=natural_key)


def _sources(planes: Sequence[AnyPlane], readers: Readers, device: torch.device) -> list[StackPlane]:
    """The planes of a stack; those that are stored dense are encoded to streams in memory."""
    encoder = make_encoder(str(device) if device.type == "cuda" else "cpu")
    encoded = encoder.encode(read_scales(readers, [plane for plane in planes if isinstance(plane, DensePlane)]))
    return [plane if isinstance(plane, Plane) else next(encoded).streams for plane in planes]


def _wanted(projection: str, order: Sequence[str]) -> list[Role]:
    """The projections to join."""
    check_type("projection", projection, str)
    single = [role for role in Role if role.value == projection]
    if projection != FUSED and not single:
        raise UsageError(f"projection {projection!r}: give {', '.join(Role)} or {FUSED}")
    if sorted(as_names("order", order)) != [Role.GATE, Role.UP]:
        raise UsageError(f"order {order!r}: give ('gate', 'up') or ('up', 'gate')")
    return single or [Role(role) for role in order]


def _layer_planes(checkpoint: Checkpoint, layer: int | str) -> list[AnyPlane]:
    """The planes of the routed experts of a layer."""
    groups: dict[str, list[AnyPlane]] = {}
    mark = f"{layer}.".rpartition("*")[2]
    every: list[AnyPlane] = [*checkpoint.planes, *checkpoint.dense_planes]
    for plane in every:
        if mark not in plane.name:  # before the name is taken apart, which takes longer
            continue
        group = checkpoint.experts.group_of(plane.name)
        if group is None:
            continue
        name = checkpoint.experts.layer_of(plane.name)
        if layer in (name, group) if isinstance(layer, str) else name.rpartition(".")[2] == str(layer):
            groups.setdefault(group, []).append(plane)
    if not groups:
        raise UsageError(f"{checkpoint.label}: has no block scales of experts in layer {escape(layer)}")
    if len(groups) > 1:
        names = ", ".join(sorted(map(escape, groups)))
        raise UsageError(f"{checkpoint.label}: {escape(layer)} may mean {names}: give one of these names as the layer")
    return next(iter(groups.values()))


def _stack_planes(checkpoint: Checkpoint, planes: Sequence[AnyPlane], layer: int | str, role: Role) -> list[AnyPlane]:
    """The planes of a projection in the order of the experts: one an expert, all of one format and geometry."""
    what = f"layer {escape(layer)}, {role}"
    places = [(expert, plane) for plane in planes if (expert := checkpoint.experts.of_tensor(plane.name))]
    by_expert = {expert.number: plane for expert, plane in places if role_of(expert.projection) is role}
    total = max(expert.number for expert, _ in places) + 1
    if len(by_expert) < total:
        first = next(expert for expert in range(total) if expert not in by_expert)
        lacking = total - len(by_expert)
        have = verb(lacking, "has", "have")
        problem = f"{what}: {lacking} of {total} experts {have} no block scales, for example expert {first}"
        raise CheckpointError(problem, Code.NO_STACK, checkpoint.label)
    stack = [by_expert[expert] for expert in range(total)]
    for plane in stack:
        if _kind(plane) != _kind(stack[0]):
            names = f"{escape(plane.name)} is {_kind(plane)}, but {escape(stack[0].name)} is {_kind(stack[0])}"
            raise CheckpointError(f"{what}: {names}: they cannot form a stack", Code.NO_STACK, checkpoint.label)
    return stack


def _kind(plane: AnyPlane) -> str:
    return f"{plane.fmt.title} {plane.rows}x{plane.cols}"


def _require_divisible(plane: AnyPlane, role: Role, projection: str, tp_size: int) -> None:
    if fault := share(plane, role, tp_size).fault:
        raise UsageError(
            f"tp_size {tp_size}: {_kind(plane)} planes of {projection} cannot be divided: {fault} "
            f"(whole slabs of 16 rows, {plane.fmt.column_multiple} columns); tp_size 1 loads the whole stack"
        )


def _cut(streams: RowStreams, plane: AnyPlane, role: Role, tp_rank: int, tp_size: int) -> RowStreams:
    """The part of a stack of planes like this one that is a rank's."""
    rows, cols, _ = share(plane, role, tp_size)
    if is_cut_by_columns(role):
        return streams.take_columns(tp_rank * cols, (tp_rank + 1) * cols)
    return streams.take_rows(tp_rank * rows, (tp_rank + 1) * rows)
