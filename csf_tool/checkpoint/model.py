"""What an opened checkpoint is made of: shards, tensors, planes, and the dense tensors that they stand for."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from csf_tool.checkpoint.container import Container
from csf_tool.checkpoint.headers import Header, Tensor
from csf_tool.checkpoint.index import Index
from csf_tool.checkpoint.problems import Problem
from csf_tool.codec.formats import EXCEPTION_BYTES, CsfFormat


class Layout(StrEnum):
    """How a checkpoint is laid out on disk; the value stands in JSON reports."""

    HF = "hf"
    CONTAINER = "container"
    FILE = "file"

    @property
    def words(self) -> str:
        """The layout's name for people."""
        return {
            Layout.HF: "Hugging Face layout",
            Layout.CONTAINER: "CSF container",
            Layout.FILE: "single file",
        }[self]


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file: `name` is its path relative to the checkpoint, with forward slashes."""

    name: str
    path: Path
    size: int
    mtime_ns: int
    header: Header

    @property
    def file(self) -> str:
        """The bare file name, which container metadata use."""
        return self.name.rpartition("/")[2]


class Located(NamedTuple):
    """A tensor and the shard it lies in."""

    shard: Shard
    tensor: Tensor


_located = partial(tuple.__new__, Located)
"""`Located._make` without a step in Python: half a million are made at once."""


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
    def exception_count(self) -> int:
        """Exceptions in the list."""
        return self.exception_bytes // EXCEPTION_BYTES


class DensePlane(NamedTuple):
    """A block scale that is stored dense beside its FP4 weight."""

    name: str
    fmt: CsfFormat
    rows: int
    cols: int
    scale: Located

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense scales."""
        return self.scale.tensor.nbytes


@dataclass
class Checkpoint:
    """An opened checkpoint. Opening reads headers and metadata, never tensor data.

    What is wrong with it is in `problems`, so that one fault does not hide the rest.
    """

    path: Path
    root: Path
    layout: Layout
    shards: list[Shard] = field(default_factory=list)
    planes: list[Plane] = field(default_factory=list)
    dense_planes: list[DensePlane] = field(default_factory=list)
    index: Index | None = None
    container: Container | None = None
    problems: list[Problem] = field(default_factory=list)

    def tensors(self) -> Iterator[Located]:
        """Every stored tensor, shard by shard in the order of the data."""
        return map(
            _located, chain.from_iterable(zip(repeat(shard), shard.header, strict=False) for shard in self.shards)
        )

    def planes_of(self, shard: Shard) -> list[Plane]:
        """The planes whose fixed stream lies in `shard`, in the order of the data."""
        mine = [plane for plane in self.planes if plane.fixed.shard is shard]
        return sorted(mine, key=lambda plane: plane.fixed.tensor.begin)

    @property
    def formats(self) -> list[CsfFormat]:
        """The CSF formats of its planes, or else the FP4 formats of its dense scales."""
        return list(dict.fromkeys(plane.fmt for plane in self.planes or self.dense_planes))

    @property
    def kind(self) -> str:
        """What it is, in a few words: layout, CSF or dense, and formats."""
        titles = " and ".join(fmt.title for fmt in self.formats)
        what = f"{titles} CSF" if self.planes else f"dense {titles}" if self.dense_planes else "no FP4 scales"
        return f"{self.layout.words}, {what}"
