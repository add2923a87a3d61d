"""Parts of an opened checkpoint: shards, tensors, planes, and the dense tensors that they stand for."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from csf_tool.checkpoint.experts import Experts, projections_of
from csf_tool.checkpoint.index import Index, find_index
from csf_tool.checkpoint.layout import Layout
from csf_tool.checkpoint.names import WEIGHTS_OF_SCALE, module_of
from csf_tool.checkpoint.problems import Problems
from csf_tool.checkpoint.repository import RemoteFile, Repository
from csf_tool.codec.formats import EXCEPTION_BYTES, CsfFormat, titles
from csf_tool.codes import Code
from csf_tool.disk.reader import RandomReader, Reader
from csf_tool.disk.tensors import Header, Tensor

if TYPE_CHECKING:
    from csf_tool.checkpoint.other_scales import OtherScale


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


_located = partial(tuple.__new__, Located)
"""`Located._make` without a step in Python: half a million are made at once."""


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


@dataclass(repr=False)
class Checkpoint:
    """An opened checkpoint. Opening reads headers and metadata, never tensor data.

    What is wrong with it is in `problems`, so that one fault does not hide the rest. `lacking` are the shards that
    it should have and that are missing or cannot be read. Of one on the Hub
    `path` and `root` are its snapshot in the cache.
    """

    path: Path
    layout: Layout
    shards: list[Shard] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    """Shards that are here and do not count: the index lists others, which hold their tensors."""
    all_shards: bool = False
    """Whether no shard was to be left aside."""
    plane_table: PlaneTable = field(default_factory=lambda: PlaneTable(Stored([])))
    dense_table: DenseTable = field(default_factory=lambda: DenseTable(Stored([])))
    index: Index | None = None
    problems: Problems = field(default_factory=Problems)
    doubtful: dict[str, str] = field(default_factory=dict)
    """Dense scales that may be padded or in tile order, each with what tells so."""
    misfits: list[Misfit] = field(default_factory=list)
    """Dense scales that do not fit their FP4 weights."""
    other_scales: "list[OtherScale]" = field(default_factory=list)
    """Scales that are no planes, `misfits` among them."""
    incomplete: dict[Code, int] = field(default_factory=dict)
    """Numbers of tensors that lack something or do not fit, by the kind of fault."""
    remark: str = ""
    """A remark for reports, such as that another layout is mixed in, or which folder led here."""
    hub: Repository | None = None

    def __repr__(self) -> str:
        return f"<Checkpoint {self.label!r}: {self.kind}, {len(self.shards)} shards>"

    @property
    def root(self) -> Path:
        """The folder that all names of files are relative to."""
        return self.layout.root

    @cached_property
    def index_name(self) -> str | None:
        """The name of the index in the folder of the model's files: in a container, that of the original."""
        return find_index(self.layout.model_root, {shard.name for shard in self.shards})

    @property
    def label(self) -> str:
        """The name in reports and messages: its path, or repository and commit."""
        return str(self.hub or self.path)

    @property
    def is_remote(self) -> bool:
        """Whether there are shards of it that are not here."""
        return any(shard.remote for shard in self.shards)

    def fetch_side_files(self, endings: set[str] | None = None) -> None:
        """Have the files beside the shards here, all of them or those with one of `endings`, if it is on the Hub.

        Raises:
            CheckpointError: the Hub lists a file and does not have it.
            EnvironmentFault: a file cannot be fetched.
        """
        if self.hub:
            self.hub.fetch_side_files({*(shard.name for shard in self.shards), *self.aside}, endings)

    def stop_fetching(self) -> None:
        """Give up what is still being fetched, if it is on the Hub: nothing more can be read from there."""
        if self.hub:
            self.hub.stop()

    @cached_property
    def planes(self) -> list[Plane]:
        """The CSF planes, in the order in which their fixed streams are stored."""
        return list(self.plane_table)

    @cached_property
    def dense_planes(self) -> list[DensePlane]:
        """The block scales that are stored dense, in the order in which they are stored."""
        return list(self.dense_table)

    @cached_property
    def experts(self) -> Experts:
        """The routed experts, by the names of modules."""
        return self.dense_table.experts.and_those(self.plane_table.experts)

    def tensors(self) -> Iterator[Located]:
        """Every stored tensor, shard by shard in the order of the data."""
        return map(
            _located, chain.from_iterable(zip(repeat(shard), shard.header, strict=False) for shard in self.shards)
        )

    @property
    def formats(self) -> list[CsfFormat]:
        """The CSF formats of its planes, or else the FP4 formats of its dense scales."""
        table = self.plane_table or self.dense_table
        kinds = dict.fromkeys(table.kind_of)  # in the order of the planes
        return list(dict.fromkeys(table.kinds[kind].fmt for kind in kinds))

    @property
    def kind(self) -> str:
        """A description in a few words: layout, CSF or dense, and formats."""
        named = titles(self.formats)
        what = f"{named} CSF" if self.plane_table else f"dense {named}" if self.dense_table else self._without_planes
        return f"{self.layout.words}, {what}" + (f" ({self.remark})" if self.remark else "")

    @property
    def _without_planes(self) -> str:
        """The description of the scales where none is a plane."""
        weights = list(dict.fromkeys(other.kind.weights for other in self.other_scales if other.kind.is_fp4))
        return f"scales of {' and '.join(weights)} that are not planes" if weights else "no FP4 scales"
