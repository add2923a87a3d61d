"""Block scales, CSF planes and dense ones: each by itself, and the tables of all that a checkpoint holds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from csf_tool.checkpoint.experts import Experts, projections_of
from csf_tool.checkpoint.names import module_of
from csf_tool.checkpoint.stored import Located, Shard, Stored
from csf_tool.codec.formats import EXCEPTION_BYTES, CsfFormat


class PlaneKind(NamedTuple):
    """The kind of many planes: format and geometry, and the dtype of their dense scales."""

    fmt: CsfFormat
    rows: int
    cols: int
    dtype: str

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense scales: one each, in every dtype that they have."""
        return self.rows * self.cols

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the fixed stream."""
        return self.fmt.fixed_bytes(self.rows, self.cols)


class Plane(NamedTuple):
    """One CSF plane: the scale it stands for, its geometry, and where its two streams lie."""

    name: str
    fmt: CsfFormat
    rows: int
    cols: int
    dtype: str
    fixed: Located
    exceptions: Located

    @property
    def shard(self) -> Shard:
        """The shard of its fixed stream."""
        return self.fixed.shard

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense scales."""
        return self.rows * self.cols

    @property
    def weight_bytes(self) -> int:
        """Bytes of the FP4 weight that the scales belong to."""
        return self.fmt.weight_bytes(self.dense_bytes)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the fixed stream."""
        return self.fixed.tensor.nbytes

    @property
    def exception_bytes(self) -> int:
        """Bytes of the exception list."""
        return self.exceptions.tensor.nbytes

    @property
    def csf_bytes(self) -> int:
        """Bytes of both streams."""
        return self.fixed_bytes + self.exception_bytes

    @property
    def saved_bytes(self) -> int:
        """Bytes that compression saves; negative where it costs."""
        return self.dense_bytes - self.csf_bytes

    @property
    def exception_count(self) -> int:
        """Exceptions in the list."""
        return self.exception_bytes // EXCEPTION_BYTES

    @property
    def exception_share(self) -> float:
        """Exceptions as a part of the scales."""
        return self.exception_count / self.dense_bytes


class DensePlane(NamedTuple):
    """A block scale that is stored dense beside its FP4 weight."""

    name: str
    fmt: CsfFormat
    rows: int
    cols: int
    scale: Located

    @property
    def shard(self) -> Shard:
        """The shard of its scales."""
        return self.scale.shard

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense scales."""
        return self.scale.tensor.nbytes


class Misfit(NamedTuple):
    """A block scale that is not of the shape or dtype that its FP4 weight wants, as far as it is a plane; and why."""

    plane: DensePlane
    reason: str


AnyPlane = Plane | DensePlane
"""A block scale, however it is stored."""


@dataclass
class _Columns:
    """Columns of block scales, however they are stored: the name, and the kind as its place in `kinds`."""

    stored: Stored
    kinds: list[PlaneKind] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    kind_of: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def modules(self) -> list[str]:
        """The module of each, once the table is complete."""
        return list(map(module_of, self.names))

    @cached_property
    def projections(self) -> list[str]:
        """The projection of each, once the table is complete."""
        return projections_of(self.modules, self.kind_of, self.stored)

    @cached_property
    def experts(self) -> Experts:
        """The routed experts among them, once the table is complete."""
        return Experts.among(self.modules, self.kind_of, self.stored)

    def place_of(self, kind: PlaneKind) -> int:
        """The place of a kind in `kinds`, where it is put if need be."""
        if kind not in self.kinds:
            self.kinds.append(kind)
        return self.kinds.index(kind)


@dataclass
class PlaneTable(_Columns):
    """CSF planes: the rows in `stored` of their fixed streams and exception lists."""

    fixed: list[int] = field(default_factory=list)
    exceptions: list[int] = field(default_factory=list)

    def __iter__(self) -> Iterator[Plane]:
        stored, kinds = self.stored, self.kinds
        for name, kind, fixed, exceptions in zip(self.names, self.kind_of, self.fixed, self.exceptions, strict=True):
            yield Plane(name, *kinds[kind], stored[fixed], stored[exceptions])

    def sort(self) -> None:
        """Put the planes in the order in which their fixed streams are stored."""
        order = sorted(range(len(self)), key=self.fixed.__getitem__)
        columns: tuple[list[Any], ...] = self.names, self.kind_of, self.fixed, self.exceptions
        for column in columns:
            column[:] = [column[i] for i in order]

    @property
    def stream_names(self) -> set[str]:
        """The names of the tensors that planes replace."""
        return {self.stored.names[row] for rows in (self.fixed, self.exceptions) for row in rows}

    @property
    def exception_bytes(self) -> list[int]:
        """Bytes of each exception list."""
        return list(map(self.stored.nbytes, self.exceptions))


@dataclass
class DenseTable(_Columns):
    """Block scales that are stored dense: their rows in `stored`."""

    scales: list[int] = field(default_factory=list)
    padded: dict[str, str] = field(default_factory=dict)
    """Scales with more rows or columns than their weight needs, up to whole tiles, each with both shapes."""

    def __iter__(self) -> Iterator[DensePlane]:
        stored, kinds = self.stored, self.kinds
        for name, kind, scale in zip(self.names, self.kind_of, self.scales, strict=True):
            yield DensePlane(name, *kinds[kind][:3], stored[scale])
