"""stats: what a checkpoint's headers say of its block scales, compressed against dense."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from csf_tool.checkpoint.model import Checkpoint, DensePlane, Plane
from csf_tool.checkpoint.names import layer_of, natural_key, projection_of
from csf_tool.checkpoint.problems import Problem

K = TypeVar("K")


@dataclass
class Totals:
    """Sizes summed over planes. Of dense planes only `planes` and `dense_bytes` count."""

    planes: int = 0
    dense_bytes: int = 0
    fixed_bytes: int = 0
    exception_bytes: int = 0
    exceptions: int = 0

    @property
    def csf_bytes(self) -> int:
        """Bytes of both streams."""
        return self.fixed_bytes + self.exception_bytes

    def add(self, plane: Plane | DensePlane) -> None:
        """Count one plane more."""
        self.planes += 1
        self.dense_bytes += plane.dense_bytes
        if isinstance(plane, Plane):
            self.fixed_bytes += plane.fixed_bytes
            self.exception_bytes += plane.exception_bytes
            self.exceptions += plane.exception_count


@dataclass(frozen=True, order=True)
class Projection:
    """A projection and the geometry of its planes."""

    name: str
    format: str
    rows: int
    cols: int


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
    planes: list[Plane] | list[DensePlane] = checkpoint.planes or checkpoint.dense_planes
    return Stats(
        path=str(checkpoint.path),
        layout=checkpoint.layout.value,
        kind=checkpoint.kind,
        shards=len(checkpoint.shards),
        tensors=sum(len(shard.header.tensors) for shard in checkpoint.shards),
        total=_total(checkpoint.planes),
        dense_total=_total(checkpoint.dense_planes),
        payload_bytes=sum(tensor.nbytes for shard in checkpoint.shards for tensor in shard.header),
        by_projection=dict(sorted(_group(planes, _projection).items())),
        by_layer=_naturally_sorted(_group(planes, lambda plane: layer_of(plane.name))),
        by_shard=_naturally_sorted(_group(planes, _shard_name)),
        problems=checkpoint.problems,
    )


def _total(planes: Iterable[Plane | DensePlane]) -> Totals:
    total = Totals()
    for plane in planes:
        total.add(plane)
    return total


def _group(planes: Iterable[Plane | DensePlane], key: Callable[[Plane | DensePlane], K]) -> dict[K, Totals]:
    groups: dict[K, Totals] = {}
    for plane in planes:
        groups.setdefault(key(plane), Totals()).add(plane)
    return groups


def _projection(plane: Plane | DensePlane) -> Projection:
    return Projection(projection_of(plane.name), plane.fmt.name, plane.rows, plane.cols)


def _shard_name(plane: Plane | DensePlane) -> str:
    return (plane.fixed if isinstance(plane, Plane) else plane.scale).shard.name


def _naturally_sorted(groups: dict[str, Totals]) -> dict[str, Totals]:
    return {name: groups[name] for name in sorted(groups, key=natural_key)}
