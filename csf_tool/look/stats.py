"""stats: sizes of the block scales, compressed against dense, by a checkpoint's headers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.experts import counts_experts
from csf_tool.checkpoint.names import layers_of, natural_key
from csf_tool.checkpoint.other_scales import ScaleGroup, grouped
from csf_tool.checkpoint.plane_tables import DenseTable, Plane, PlaneTable
from csf_tool.checkpoint.problems import Problem
from csf_tool.choices import GroupBy
from csf_tool.codec.formats import EXCEPTION_BYTES, format_by_name
from csf_tool.codes import Code

if TYPE_CHECKING:  # it reads data, with numpy: headers alone need neither
    from csf_tool.look.scale_bytes import ScaleBytes

K = TypeVar("K")


@dataclass
class Totals:
    """Sizes summed over planes. Of dense planes only `planes` and `dense_bytes` count."""

    planes: int = 0
    dense_bytes: int = 0
    fixed_bytes: int = 0
    exception_bytes: int = 0

    @property
    def exceptions(self) -> int:
        """Exceptions in all lists."""
        return self.exception_bytes // EXCEPTION_BYTES

    @property
    def csf_bytes(self) -> int:
        """Bytes of both streams."""
        return self.fixed_bytes + self.exception_bytes

    def add(self, other: "Totals") -> None:
        """Add the sums of `other`."""
        self.planes += other.planes
        self.dense_bytes += other.dense_bytes
        self.fixed_bytes += other.fixed_bytes
        self.exception_bytes += other.exception_bytes


class Projection(NamedTuple):
    """A projection and the geometry of its planes."""

    name: str
    format: str
    rows: int
    cols: int


def titles(projections: Collection[Projection]) -> list[str]:
    """The words for projections: name and geometry, and format where there are several."""
    several = len({p.format for p in projections}) > 1
    return [
        f"{p.name} {p.rows}x{p.cols}" + (f" {format_by_name(p.format).title}" if several else "") for p in projections
    ]


_Group = tuple[str, str, str, int]
"""Layer, shard, projection, and index in the table's `kinds`: the planes that have all four in common are a group."""


@dataclass
class Stats:
    """The report of `stats`. Groups hold the CSF planes, or the dense ones when there are no others."""

    path: str
    layout: str
    kind: str
    shards: int
    tensors: int
    total: Totals
    dense_total: Totals
    payload_bytes: int
    by_projection: dict[Projection, Totals] = field(default_factory=dict)
    by_layer: dict[str, Totals] = field(default_factory=dict)
    by_layer_and_projection: dict[tuple[str, Projection], Totals] = field(default_factory=dict)
    by_shard: dict[str, Totals] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    incomplete: dict[Code, int] = field(default_factory=dict)
    """Numbers of tensors that lack something or do not fit, by the kind of fault."""
    misfits: int = 0
    """Block scales that do not fit their weights, and are not counted as planes."""
    others: list[ScaleGroup] = field(default_factory=list)
    """Scales that are no planes, by their kind; those that do not fit are among them."""
    scale_bytes: "ScaleBytes | None" = None
    by_format: dict[str, Totals] = field(default_factory=dict)

    @property
    def projections(self) -> dict[str, Totals]:
        """Projections by what tells them apart: name, geometry, and format where there are several."""
        return dict(zip(titles(self.by_projection), self.by_projection.values(), strict=True))

    @property
    def is_csf(self) -> bool:
        """Whether there is at least one CSF plane."""
        return self.total.planes > 0

    @property
    def shown_total(self) -> Totals:
        """The sums of the planes that groups hold."""
        return self.total if self.is_csf else self.dense_total

    @property
    def dense_payload_bytes(self) -> int:
        """Bytes of all tensors once every plane is dense."""
        return self.payload_bytes - self.total.csf_bytes + self.total.dense_bytes


def groups_of(stats: Stats, by: GroupBy) -> dict[str, Totals]:
    """The groups of a table's rows."""
    if by is GroupBy.LAYER:
        return stats.by_layer
    if by is GroupBy.SHARD:
        return stats.by_shard
    return stats.projections


def collect_stats(checkpoint: Checkpoint) -> Stats:
    """Sum up the headers of an opened checkpoint. No tensor data are read."""
    csf, dense = _csf_groups(checkpoint.plane_table), _dense_groups(checkpoint.dense_table)
    shown = csf or dense
    kinds = (checkpoint.plane_table if csf else checkpoint.dense_table).kinds

    def projection(group: _Group) -> Projection:
        _, _, name, kind = group
        fmt, rows, cols, _ = kinds[kind]
        return Projection(name, fmt.name, rows, cols)

    return Stats(
        path=checkpoint.label,
        layout=checkpoint.layout.name,
        kind=checkpoint.kind,
        shards=len(checkpoint.shards),
        tensors=sum(len(shard.header) for shard in checkpoint.shards),
        total=_total(csf.values()),
        dense_total=_total(dense.values()),
        payload_bytes=sum(shard.header.nbytes for shard in checkpoint.shards),
        by_format=_sums(shown, lambda group: kinds[group[-1]].fmt.name),
        by_projection=dict(sorted(_sums(shown, projection).items())),
        by_layer=_naturally_sorted(_sums(shown, lambda group: group[0])),
        by_layer_and_projection=dict(_sums(shown, lambda group: (group[0], projection(group)))),
        by_shard=_naturally_sorted(_sums(shown, lambda group: group[1])),
        problems=checkpoint.problems,
        incomplete=checkpoint.incomplete,
        misfits=len(checkpoint.misfits),
        others=grouped(checkpoint.other_scales),
    )


def layers_and_projections(checkpoint: Checkpoint, planes: Iterable[Plane]) -> dict[tuple[str, Projection], Totals]:
    """Sums of some planes by layer and projection, layers in their natural order."""
    experts = checkpoint.experts
    sums: dict[tuple[str, Projection], Totals] = defaultdict(Totals)
    for plane in planes:
        projection = Projection(experts.projection_of(plane.name), plane.fmt.name, plane.rows, plane.cols)
        one = Totals(1, plane.dense_bytes, plane.fmt.fixed_bytes(plane.rows, plane.cols), 0)
        one.exception_bytes = plane.csf_bytes - one.fixed_bytes
        sums[experts.layer_of(plane.name), projection].add(one)
    return {group: sums[group] for group in sorted(sums, key=lambda group: (natural_key(group[0]), group[1]))}


def _csf_groups(table: PlaneTable) -> dict[_Group, Totals]:
    groups = _groups(table, table.fixed)
    exceptions: dict[_Group, int] = defaultdict(int)
    for group, nbytes in zip(groups, table.exception_bytes, strict=True):
        exceptions[group] += nbytes
    result = {}
    for group, planes in Counter(groups).items():
        kind = table.kinds[group[-1]]
        result[group] = Totals(planes, planes * kind.dense_bytes, planes * kind.fixed_bytes, exceptions[group])
    return result


def _dense_groups(table: DenseTable) -> dict[_Group, Totals]:
    counts = Counter(_groups(table, table.scales))
    return {group: Totals(planes, planes * table.kinds[group[-1]].dense_bytes) for group, planes in counts.items()}


def _groups(table: PlaneTable | DenseTable, rows: list[int]) -> list[_Group]:
    """The group of each plane; the tensors in `rows` say in which shard it lies."""
    shards = [table.stored.shards[row].name for row in rows]
    return list(zip(_layers(table), shards, table.projections, table.kind_of, strict=True))


def _layers(table: PlaneTable | DenseTable) -> list[str]:
    """The layer of each plane; where experts' numbers stand before layers', names have to be taken apart."""
    layers = list(layers_of(table.names))
    return list(map(table.experts.layer_of, table.names)) if any(map(counts_experts, set(layers))) else layers


def _total(parts: Iterable[Totals]) -> Totals:
    total = Totals()
    for part in parts:
        total.add(part)
    return total


def _sums(groups: dict[_Group, Totals], key: Callable[[_Group], K]) -> dict[K, Totals]:
    sums: dict[K, Totals] = defaultdict(Totals)
    for group, totals in groups.items():
        sums[key(group)].add(totals)
    return sums


def _naturally_sorted(groups: dict[str, Totals]) -> dict[str, Totals]:
    return {name: groups[name] for name in sorted(groups, key=natural_key)}
