"""Shards, and the table of all tensors that they hold."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import NamedTuple

from csf_tool.checkpoint.names import WEIGHTS_OF_SCALE
from csf_tool.checkpoint.repository import RemoteFile
from csf_tool.disk.reader import RandomReader, Reader
from csf_tool.disk.tensors import Header, Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file: `name` is its path relative to the checkpoint, with forward slashes.

    One that lies on the Hub is `remote`: there is nothing at its `path`, unless somebody downloads it meanwhile.
    """

    name: str
    path: Path
    size: int
    mtime_ns: int
    header: Header = field(repr=False)
    remote: RemoteFile | None = None

    def open(self) -> Reader:
        """A reader of its bytes, wherever they are.

        Raises:
            CheckpointError: it is not there.
            EnvironmentFault: the operating system cannot read it.
        """
        return self.remote.open() if self.remote else RandomReader(self.path, self.name)

    @property
    def file(self) -> str:
        """The bare file name, which container metadata use."""
        return self.name.rpartition("/")[2]


class Located(NamedTuple):
    """A tensor and the shard it lies in."""

    shard: Shard
    tensor: Tensor


class Stored:
    """The table of all tensors that shards hold: a row a tensor, shard by shard in the order of the data.

    Its columns are lists: a full-size checkpoint has half a million tensors, and most are never asked for.
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        self.shards: list[Shard] = []
        self.names: list[str] = []
        self.dtypes: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.begins: list[int] = []
        self.ends: list[int] = []
        self._rows_of: dict[str, dict[str, int]] = {}
        for shard in shards:
            header = shard.header
            self.shards += [shard] * len(header)
            self.names += header.names
            self.dtypes += header.dtypes
            self.shapes += header.shapes
            self.begins += header.begins
            self.ends += header.ends

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each name; the last, where several tensors have it."""
        return dict(zip(self.names, count(), strict=False))

    @cached_property
    def rows_by_last(self) -> dict[str, list[int]]:
        """The rows by the last part of their names, all that follows the last dot."""
        rows: dict[str, list[int]] = defaultdict(list)
        for row, name in enumerate(self.names):
            rows[name.rpartition(".")[2]].append(row)
        return dict(rows)

    def rows_of(self, ending: str) -> dict[str, int]:
        """The rows of all names that end so, one last part with its dot, by what stands before it."""
        if ending not in self._rows_of:
            names, length = self.names, len(ending)
            rows = self.rows_by_last.get(ending[1:], [])
            self._rows_of[ending] = {names[row][:-length]: row for row in rows if names[row].endswith(ending)}
        return self._rows_of[ending]

    @cached_property
    def _weights(self) -> dict[str, list[dict[str, int]]]:
        """The rows of weights by module, by the last part of their scales' names; the likelier weights first."""
        return {scale[1:]: list(map(self.rows_of, weights)) for scale, weights in WEIGHTS_OF_SCALE.items()}

    def weight_of(self, scale: str) -> int | None:
        """The row of the weight of a block scale, the likelier of its names first; None where there is none."""
        module, _, last = scale.rpartition(".")
        for rows in self._weights.get(last, ()):
            if module in rows:
                return rows[module]
        return None

    def nbytes(self, row: int) -> int:
        """Bytes of the tensor of a row."""
        return self.ends[row] - self.begins[row]

    def __getitem__(self, row: int) -> Located:
        """The tensor of a row."""
        fields = self.names[row], self.dtypes[row], self.shapes[row], self.begins[row], self.ends[row]
        return Located(self.shards[row], Tensor(*fields))
