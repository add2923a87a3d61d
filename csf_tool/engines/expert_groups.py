"""The block scales of a checkpoint's routed experts, layer by layer, as far as they can be stacks."""

from collections import defaultdict
from dataclasses import dataclass, replace

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.names import Role, role_of
from csf_tool.checkpoint.plane_tables import AnyPlane, DensePlane, Plane
from csf_tool.loading.tensor_parallel import share

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class ExpertGroup:
    """The routed experts of a layer."""

    name: str
    """The module that holds them, by the checkpoint's names."""
    part: Checkpoint
    """The checkpoint with these planes alone."""

    @property
    def planes(self) -> list[AnyPlane]:
        """All planes of it, also those that are stored dense."""
        return [*self.part.planes, *self.part.dense_planes]

    def fault(self, ranks: int = 1) -> str | None:
        """Why they are not one stack of gate and up and one of down for each rank; None if they are."""
        by_role = self._by_role()
        every = {number for planes in by_role.values() for number in planes}
        if missing := [role.value for role in Role if role not in by_role]:
            return f"the checkpoint has no block scales of {' and '.join(missing)}"
        for role, planes in by_role.items():
            if set(planes) != set(range(1 + max(every))):
                return f"not every expert has block scales of {role.value}"
            if len({(plane.fmt, plane.rows, plane.cols) for plane in planes.values()}) > 1:
                return f"the experts' scales of {role.value} differ in shape or format"
            if ranks > 1 and (fault := share(planes[0], role, ranks).fault):
                return f"the format cannot divide {role.value} among {ranks} ranks: {fault}"
        gate, up, down = (by_role[role][0] for role in (Role.GATE, Role.UP, Role.DOWN))
        if (gate.fmt, gate.rows, gate.cols) != (up.fmt, up.rows, up.cols) or gate.fmt != down.fmt:
            return "gate, up and down differ in shape or format"
        return None

    def shapes(self, ranks: int = 1) -> tuple[Shape, Shape]:
        """The dense shapes of both stacks on each rank, if there is no fault."""
        by_role = self._by_role()
        gate, down = (share(by_role[role][0], role, ranks) for role in (Role.GATE, Role.DOWN))
        experts = len(by_role[Role.DOWN])
        return (experts, 2 * gate.rows, gate.cols), (experts, down.rows, down.cols)

    def _by_role(self) -> dict[Role, dict[int, AnyPlane]]:
        """The planes of each role by their experts' numbers."""
        by_role: defaultdict[Role, dict[int, AnyPlane]] = defaultdict(dict)
        for plane in self.planes:
            expert = self.part.experts.of_tensor(plane.name)
            if expert and (role := role_of(expert.projection)):
                by_role[role][expert.number] = plane
        return by_role


def expert_groups(checkpoint: Checkpoint) -> dict[str, ExpertGroup]:
    """The routed experts of each layer in which any plane is compressed, by name."""
    planes: defaultdict[str, list[Plane]] = defaultdict(list)
    dense: defaultdict[str, list[DensePlane]] = defaultdict(list)
    for plane in checkpoint.planes:
        if name := checkpoint.experts.group_of(plane.name):
            planes[name].append(plane)
    for scale in checkpoint.dense_planes:
        if (name := checkpoint.experts.group_of(scale.name)) in planes:
            dense[str(name)].append(scale)
    return {name: ExpertGroup(name, part_of(checkpoint, own, dense[name])) for name, own in planes.items()}


def part_of(checkpoint: Checkpoint, planes: list[Plane], dense: list[DensePlane]) -> Checkpoint:
    """The checkpoint as if it had no other planes than these."""
    part = replace(checkpoint)
    part.planes, part.dense_planes, part.experts = planes, dense, checkpoint.experts
    return part
