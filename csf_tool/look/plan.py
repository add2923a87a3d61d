"""plan: what the block scales take in GPU memory, decoded when loading or kept compressed. From headers alone.

Expanded, every stack's dense scales stay in memory. Kept compressed, its streams and the starts of its
exceptions do, and all stacks share one workspace, which holds the dense scales of one layer at a time: an engine's
experts take those of gate and up and those of down in one call. A stack has the planes of all experts: those that are
stored dense beside compressed ones are encoded when it is loaded.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.experts import Experts
from csf_tool.checkpoint.names import Role, module_of, natural_key, role_of
from csf_tool.checkpoint.plane_tables import AnyPlane, DensePlane, Plane
from csf_tool.codec.formats import CsfFormat
from csf_tool.codec.prepared import prepared_bytes
from csf_tool.errors import UsageError
from csf_tool.loading.tensor_parallel import share

MOST_GPUS = 64
"""Most GPUs that are tried where fewer have too little memory."""


@dataclass(frozen=True)
class Stack:
    """The planes that are decoded together: a projection of a layer over all experts, gate and up as one.

    Sizes are those on one GPU, after division.
    """

    layer: str
    projection: str
    format: CsfFormat
    experts: int
    rows: int
    cols: int
    compressed_bytes: int
    """Bytes of the prepared stack: streams, and the starts of its exceptions."""
    undivided: str | None = None
    """Why it cannot be divided among the GPUs, so that each holds the whole stack."""
    module: str = ""
    """The module of routed experts, whose stacks are in the workspace at the same time; empty for other stacks."""

    @property
    def divided(self) -> bool:
        """Whether it is divided among the GPUs."""
        return self.undivided is None

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense scales."""
        return self.experts * self.rows * self.cols

    @property
    def weight_bytes(self) -> int:
        """Bytes of the FP4 weights that the scales belong to."""
        return self.format.weight_bytes(self.dense_bytes)


@dataclass(frozen=True)
class Plan:
    """Both strategies for the first `resident` stacks, on each of `tp` GPUs."""

    path: str
    kind: str
    tp: int
    stacks: list[Stack]
    resident: int
    other_bytes: int
    """Bytes of all tensors but the stacks' scales and weights, divided evenly."""
    gpu_memory: int | None = None
    fits_from: tuple[int | None, int | None] = field(default=(None, None), compare=False)
    """The least --tp, of those tried, with which it fits into `gpu_memory`: expanded, and kept compressed."""

    @property
    def left_bytes(self) -> tuple[int, int]:
        """Bytes of `gpu_memory` that are left: expanded, and kept compressed; negative where it does not fit."""
        return self.left_after(self.dense_bytes), self.left_after(self.kept_bytes)

    @property
    def undivided(self) -> list[str]:
        """Kinds of stacks that cannot be divided among the GPUs, and why."""
        return sorted({stack.undivided for stack in self.stacks if stack.undivided})

    @property
    def dense_bytes(self) -> int:
        """Bytes of the resident stacks' scales when all are expanded."""
        return sum(stack.dense_bytes for stack in self.stacks[: self.resident])

    @property
    def compressed_bytes(self) -> int:
        """Bytes of the resident stacks' scales when they are kept compressed, without the workspace."""
        return sum(stack.compressed_bytes for stack in self.stacks[: self.resident])

    @property
    def workspace_bytes(self) -> int:
        """Dense bytes of the largest resident layer."""
        return max(islice(self._workspaces(), self.resident), default=0)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the resident stacks' scales when they are kept compressed, with the workspace."""
        return self.compressed_bytes + self.workspace_bytes

    @property
    def saved_bytes(self) -> int:
        """Bytes that keeping the scales compressed saves; negative where it costs."""
        return self.dense_bytes - self.kept_bytes

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all other tensors: the resident stacks' weights, and what is no stack."""
        return self.other_bytes + sum(stack.weight_bytes for stack in self.stacks[: self.resident])

    def left_after(self, scale_bytes: int) -> int:
        """Bytes of a GPU's memory, where it was given, that the other tensors and so many bytes of scales leave."""
        return (self.gpu_memory or 0) - self.tensor_bytes - scale_bytes

    @property
    def wins_from(self) -> int | None:
        """The number of resident stacks from which on keeping them compressed takes less; None when it never does."""
        last_lost = max((n for n, dense, kept in self.growth() if kept >= dense), default=0)
        return last_lost + 1 if last_lost < len(self.stacks) else None

    def growth(self) -> list[tuple[int, int, int]]:
        """For 1 to all stacks: how many are resident, their bytes expanded, and compressed with the workspace."""
        dense = accumulate(stack.dense_bytes for stack in self.stacks)
        kept = accumulate(stack.compressed_bytes for stack in self.stacks)
        workspace = accumulate(self._workspaces(), max)
        return [(n, d, k + w) for n, (d, k, w) in enumerate(zip(dense, kept, workspace, strict=True), 1)]

    def _workspaces(self) -> Iterator[int]:
        """For each stack: its dense bytes, and those of the stacks before it that are in the workspace beside it."""
        beside: Counter[str] = Counter()
        for stack in self.stacks:
            beside[stack.module] += stack.dense_bytes
            yield beside[stack.module] if stack.module else stack.dense_bytes


def make_plan(checkpoint: Checkpoint, resident: int | None = None, gpu_memory: int | None = None, tp: int = 1) -> Plan:
    """Both strategies for an opened checkpoint: the first `resident` stacks (all by default) on each of `tp` GPUs.

    Exceptions of a divided stack are taken to lie evenly, and planes that are stored dense beside compressed ones to
    have as many as those.

    Raises:
        UsageError: it has no CSF planes, or fewer stacks than `resident`, or a GPU has no memory.
    """
    if gpu_memory is not None and gpu_memory < 1:
        raise UsageError(f"a GPU with {gpu_memory} bytes of memory: give what one has, such as 96GiB")
    if not checkpoint.planes:
        raise UsageError(f"{checkpoint.label}: holds no CSF planes, so there is nothing to keep compressed")
    groups = _stacks_of(_planes_of_stacks(checkpoint), checkpoint.experts)
    if resident is not None and not 0 < resident <= len(groups):
        raise UsageError(f"{checkpoint.label}: has only {len(groups)} stacks, so {resident} cannot stay in GPU memory")
    plan = _plan(checkpoint, groups, resident, tp)
    if gpu_memory is None:
        return plan
    plan = replace(plan, gpu_memory=gpu_memory)
    return replace(plan, fits_from=_fits_from(checkpoint, groups, plan)) if min(plan.left_bytes) < 0 else plan


def _fits_from(checkpoint: Checkpoint, groups: list[list[AnyPlane]], plan: Plan) -> tuple[int | None, int | None]:
    """The least number of GPUs, doubled from that of a plan on, with which either strategy fits into their memory."""
    fits: list[int | None] = [plan.tp if left >= 0 else None for left in plan.left_bytes]
    tp = plan.tp
    while None in fits and tp < MOST_GPUS:
        tp *= 2
        wider = replace(_plan(checkpoint, groups, plan.resident, tp), gpu_memory=plan.gpu_memory)
        fits = [known or (tp if left >= 0 else None) for known, left in zip(fits, wider.left_bytes, strict=True)]
    return fits[0], fits[1]


def _plan(checkpoint: Checkpoint, groups: list[list[AnyPlane]], resident: int | None, tp: int) -> Plan:
    rates = _exception_rates(checkpoint) if checkpoint.dense_planes else {}
    stacks = [_stack(planes, tp, checkpoint.experts, rates) for planes in groups]
    payload = sum(shard.header.nbytes for shard in checkpoint.shards)
    own = sum(_stored_bytes(plane) + plane.fmt.weight_bytes(plane.dense_bytes) for group in groups for plane in group)
    return Plan(
        path=checkpoint.label,
        kind=checkpoint.kind,
        tp=tp,
        stacks=stacks,
        resident=len(stacks) if resident is None else resident,
        other_bytes=-(-max(payload - own, 0) // tp),  # streams may lie in a folder without their weights
    )


def _planes_of_stacks(checkpoint: Checkpoint) -> list[AnyPlane]:
    """All compressed planes, and those that are stored dense in the same modules of routed experts."""
    if not checkpoint.dense_planes:
        return [*checkpoint.planes]
    group_of = checkpoint.experts.group_of
    modules = {group_of(plane.name) for plane in checkpoint.planes} - {None}
    return [*checkpoint.planes, *(plane for plane in checkpoint.dense_planes if group_of(plane.name) in modules)]


def _exception_rates(checkpoint: Checkpoint) -> dict[str, float]:
    """The share of exceptions among the compressed scales of each module of routed experts."""
    planes: defaultdict[str, list[Plane]] = defaultdict(list)
    for plane in checkpoint.planes:
        planes[checkpoint.experts.group_of(plane.name) or ""].append(plane)
    return {module: _exception_rate(of_module) for module, of_module in planes.items()}


def _exception_rate(planes: list[Plane]) -> float:
    return sum(plane.exception_count for plane in planes) / sum(plane.dense_bytes for plane in planes)


def _stored_bytes(plane: AnyPlane) -> int:
    return plane.dense_bytes if isinstance(plane, DensePlane) else plane.csf_bytes


def _stacks_of(planes: Iterable[AnyPlane], experts: Experts) -> list[list[AnyPlane]]:
    """The planes of each stack, layer by layer. Gate and up projections are one stack where they are alike."""
    groups: dict[tuple[str, str, CsfFormat, int, int], list[AnyPlane]] = defaultdict(list)
    for plane in planes:
        module = experts.group_of(plane.name) or module_of(module_of(plane.name))
        projection = experts.projection_of(plane.name)
        kind = "gate and up" if role_of(projection) in (Role.GATE, Role.UP) else projection
        groups[module, kind, plane.fmt, plane.rows, plane.cols].append(plane)
    return [groups[key] for key in sorted(groups, key=_running_order)]


def _running_order(group: tuple[str, str, CsfFormat, int, int]) -> tuple[object, ...]:
    """Sort key: layer by layer, and within a layer in the order of running, with the down projection last."""
    module, kind, fmt, rows, cols = group
    return natural_key(module), role_of(kind) is Role.DOWN, kind, fmt.name, rows, cols


def _stack(planes: list[AnyPlane], tp: int, experts: Experts, rates: dict[str, float]) -> Stack:
    first = planes[0]
    module = experts.group_of(first.name) or ""
    names = {experts.projection_of(plane.name) for plane in planes}
    projections = sorted(names, key=lambda name: (role_of(name) or "", name))
    rows, cols, fault = share(first, role_of(projections[0]), tp)
    name = " and ".join(projections)
    ranks = 1 if fault else tp
    compressed = [plane for plane in planes if isinstance(plane, Plane)]
    rate = 0.0
    if len(compressed) < len(planes):
        rate = _exception_rate(compressed) if compressed else rates[module]
    exceptions: Counter[int | str] = Counter()  # of each expert, whose gate and up planes are decoded as one
    for plane in planes:
        expert = experts.of_tensor(plane.name)
        number = plane.exception_count if isinstance(plane, Plane) else round(rate * plane.dense_bytes)
        exceptions[expert.number if expert else module_of(module_of(plane.name))] += number
    fused = rows * len(projections)
    return Stack(
        layer=experts.layer_of(first.name),
        projection=name,
        format=first.fmt,
        experts=len(exceptions),
        rows=fused,
        cols=cols,
        compressed_bytes=prepared_bytes(first.fmt, fused, cols, [count // ranks for count in exceptions.values()]),
        undivided=f"{name} {first.rows}x{first.cols}: {fault}" if fault else None,
        module=module,
    )
