"""An opened checkpoint: its shards and tensors, its block scales, and what is wrong with it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from csf_tool.checkpoint.experts import Experts
from csf_tool.checkpoint.index import Index, find_index
from csf_tool.checkpoint.layout import Layout
from csf_tool.checkpoint.plane_tables import DensePlane, DenseTable, Misfit, Plane, PlaneTable
from csf_tool.checkpoint.problems import Problems
from csf_tool.checkpoint.repository import Repository
from csf_tool.checkpoint.stored import Located, Shard, Stored
from csf_tool.codec.formats import CsfFormat, titles
from csf_tool.codes import Code

if TYPE_CHECKING:
    from csf_tool.checkpoint.other_scales import OtherScale

_located = partial(tuple.__new__, Located)
"""`Located._make` without a step in Python: half a million are made at once."""


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
    """Whether no shard was to be left out."""
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

    @property
    def modules(self) -> list[str]:
        """The modules of all block scales, the CSF planes first."""
        return self.plane_table.modules + self.dense_table.modules

    @property
    def projections(self) -> list[str]:
        """The projection of each of them."""
        return self.plane_table.projections + self.dense_table.projections

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
