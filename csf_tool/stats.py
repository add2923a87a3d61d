"""stats: what a checkpoint's headers say of its block scales, compressed against dense."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from csf_tool.checkpoint.model import Checkpoint, DensePlane, Plane
from csf_tool.checkpoint.names import layer_of, natural_key, projection_of
from csf_tool.checkpoint.problems import Problem
from csf_tool.codec.formats import EXCEPTION_BYTES

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
        """Count what `other` has counted as well."""
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


_Group = tuple[str, str, str, str, int, int]
"""What the planes of a finest group have in common: layer, shard, projection, format, rows, columns."""


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
    by_shard: dict[str, Totals] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_csf(self) -> bool:
        """Whether there is at least one CSF plane."""
        return self.total.planes > 0

    @property
    def dense_payload_bytes(self) -> int:
        """Bytes of all tensors once every plane is dense."""
        return self.payload_bytes - self.total.csf_bytes + self.total.dense_bytes


def collect_stats(checkpoint: Checkpoint) -> Stats:
    """Sum up the headers of an opened checkpoint. No tensor data are read."""
    csf, dense = _csf_groups(checkpoint.planes), _dense_groups(checkpoint.dense_planes)
    shown = csf or dense
    return Stats(
        path=str(checkpoint.path),
        layout=checkpoint.layout.value,
        kind=checkpoint.kind,
        shards=len(checkpoint.shards),
        tensors=sum(len(shard.header) for shard in checkpoint.shards),
        total=_total(csf.values()),
        dense_total=_total(dense.values()),
        payload_bytes=sum(shard.header.nbytes for shard in checkpoint.shards),
        by_projection=dict(sorted(_sums(shown, lambda group: Projection(*group[2:])).items())),
        by_layer=_naturally_sorted(_sums(shown, lambda group: group[0])),
        by_shard=_naturally_sorted(_sums(shown, lambda group: group[1])),
        problems=checkpoint.problems,
    )


def _csf_groups(planes: Iterable[Plane]) -> dict[_Group, Totals]:
    groups: dict[_Group, Totals] = defaultdict(Totals)
    for name, fmt, rows, cols, _, fixed, exceptions in planes:
        group = groups[layer_of(name), fixed.shard.name, projection_of(name), fmt.name, rows, cols]
        group.planes += 1
        group.dense_bytes += rows * cols
        group.fixed_bytes += fixed.tensor.nbytes
        group.exception_bytes += exceptions.tensor.nbytes
    return groups


def _dense_groups(planes: Iterable[DensePlane]) -> dict[_Group, Totals]:
    groups: dict[_Group, Totals] = defaultdict(Totals)
    for name, fmt, rows, cols, scale in planes:
        group = groups[layer_of(name), scale.shard.name, projection_of(name), fmt.name, rows, cols]
        group.planes += 1
        group.dense_bytes += scale.tensor.nbytes
    return groups


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
