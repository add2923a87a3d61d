"""Logical tensors and shards: the dense checkpoint that the stored one stands for, and where its bytes come from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.container import Receipt, receipt_name
from csf_tool.checkpoint.index import Index, index_document
from csf_tool.checkpoint.names import parse_stream_name
from csf_tool.checkpoint.plane_tables import DensePlane, Plane
from csf_tool.checkpoint.stored import Located, Shard
from csf_tool.checkpoint.tied import tied_names
from csf_tool.codes import Code
from csf_tool.disk.headers import render_header
from csf_tool.disk.tensors import Tensor
from csf_tool.errors import CheckpointError
from csf_tool.garbage import no_garbage_collection
from csf_tool.neighbours import runs

P = TypeVar("P", Plane, DensePlane)

_CSF_METADATA_KEYS = ("schema", "codec")


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes `begin` to `end` of a stored shard, to be taken as they are."""

    shard: Shard
    begin: int
    end: int


class LogicalTensor(NamedTuple):
    """A tensor as readers know it, and what gives its bytes: stored data as they are, or a plane to decode."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Located | Plane

    @classmethod
    def of_plane(cls, plane: Plane) -> Self:
        """The scale that a plane decodes to."""
        return cls(plane.name, plane.dtype, (plane.rows, plane.cols), plane)

    @property
    def nbytes(self) -> int:
        """Bytes of dense data."""
        return self.source.dense_bytes if isinstance(self.source, Plane) else self.source.tensor.nbytes

    @property
    def stored(self) -> list[Located]:
        """The stored tensors that its bytes are made from."""
        return [self.source.fixed, self.source.exceptions] if isinstance(self.source, Plane) else [self.source]

    @property
    def home(self) -> Shard:
        """The stored shard that holds its bytes; of a plane, its fixed stream."""
        return (self.source.fixed if isinstance(self.source, Plane) else self.source).shard

    @property
    def stored_in(self) -> str:
        """The name of the stored shard that holds its bytes."""
        return self.home.name


@dataclass(frozen=True, slots=True)
class LogicalShard:
    """A shard of logical tensors: its complete header, and its tensors in the order of their data.

    `sha256` is the hash that the whole file must have, where the original's is known.
    """

    name: str
    header: bytes
    tensors: list[LogicalTensor]
    data_bytes: int
    sha256: str | None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.header) + self.data_bytes

    @property
    def sources(self) -> list[Shard]:
        """The stored shards that hold its bytes."""
        return list({s.shard.name: s.shard for tensor in self.tensors for s in tensor.stored}.values())

    @property
    def planes(self) -> list[Plane]:
        """The planes that must be decoded for it, in order."""
        return [t.source for t in self.tensors if isinstance(t.source, Plane)]

    @property
    def parts(self) -> "tuple[Range | Plane, ...]":
        """Ranges and planes that its data are made of, in order."""
        return tuple(merge_ranges(tensor.source for tensor in self.tensors))


@no_garbage_collection()
def logical_tensors(checkpoint: Checkpoint) -> dict[str, LogicalTensor]:
    """Every logical tensor by name; a scale stands where its fixed stream is stored."""
    planes = {plane.fixed.tensor.name: plane for plane in checkpoint.planes}
    result = {}
    for located in checkpoint.tensors():
        name, dtype, shape, *_ = located.tensor
        if plane := planes.get(name):
            result[plane.name] = LogicalTensor.of_plane(plane)
        elif not parse_stream_name(name):
            result[name] = LogicalTensor(name, dtype, shape, located)
    return result


def logical_shards(checkpoint: Checkpoint) -> list[LogicalShard]:
    """The shards of the dense checkpoint: the originals where receipts give their headers, csf-tool's own otherwise.

    Raises:
        CheckpointError: a receipt's source header asks for a tensor that is not stored as it says, two ask for one,
            or none asks for one that is stored.
    """
    tensors = logical_tensors(checkpoint)
    receipts = checkpoint.layout.receipts
    own = own_shards(checkpoint, tensors.values()) if len(receipts) < len(checkpoint.shards) else {}
    shards = [
        original_shard(receipts[shard.file], tensors) if shard.file in receipts else own[shard.name]
        for shard in checkpoint.shards
    ]
    carried: set[str] = set()
    for shard in shards:
        require_new(shard, carried)
    for name in tensors.keys() - carried:
        problem = "no source header lists it, so it would be lost"
        raise CheckpointError(problem, Code.RECEIPT_DIFFERS, tensors[name].stored_in, name)
    return shards


def require_new(shard: LogicalShard, carried: set[str]) -> None:
    """Add the names of a shard's tensors to those that others carry.

    Raises:
        CheckpointError: another carries one of them: a few bytes of headers could ask for any amount of data.
    """
    names = {tensor.name for tensor in shard.tensors}
    if again := names & carried:
        raise CheckpointError("two source headers list it", Code.RECEIPT_DIFFERS, shard.name, min(again))
    carried |= names


def original_shard(receipt: Receipt, tensors: dict[str, LogicalTensor]) -> LogicalShard:
    """The shard exactly as it was before compression: its own header, its tensors in its order.

    Raises:
        CheckpointError: the header is not a safetensors header, or asks for a tensor that is not stored as it says.
    """
    header = receipt.parse_source_header()
    where = receipt_name(receipt.row.file)
    if header.faults:
        fault = header.faults[0]
        raise CheckpointError(f"source header: {fault.tensor}: {fault.problem}", fault.code, where)
    return LogicalShard(
        receipt.row.file,
        receipt.source_header,
        [_source_tensor(tensor, tensors, where) for tensor in header],
        header.nbytes,
        receipt.row.source_sha256,
    )


def _source_tensor(wanted: Tensor, tensors: dict[str, LogicalTensor], where: str) -> LogicalTensor:
    found = tensors.get(wanted.name)
    if found is None:
        problem = f"source header lists {wanted.name}, which is not stored"
        raise CheckpointError(problem, Code.RECEIPT_DIFFERS, where)
    if (found.dtype, found.shape, found.nbytes) != (wanted.dtype, wanted.shape, wanted.nbytes):
        problem = f"source header lists {wanted.name} as {wanted.dtype} {list(wanted.shape)}"
        problem += f", but it is stored as {found.dtype} {list(found.shape)}"
        raise CheckpointError(problem, Code.RECEIPT_DIFFERS, where)
    return found


def own_shards(checkpoint: Checkpoint, tensors: Iterable[LogicalTensor]) -> dict[str, LogicalShard]:
    """Shards in csf-tool's own order, that of the stored shards with each pair of streams replaced by its scale.

    They are given by the names of the stored shards, and hold those of the dense tensors that are in `tensors`.
    """
    layout = checkpoint.layout
    groups: dict[str, list[LogicalTensor]] = {shard.name: [] for shard in checkpoint.shards}
    for tensor in tensors:
        stated = layout.source_names.get(tensor.name)
        home = layout.stored_name(stated) if stated else tensor.stored_in
        groups[home if home in groups else tensor.stored_in].append(tensor)
    return {shard.name: _own_shard(checkpoint, shard, groups[shard.name]) for shard in checkpoint.shards}


def _own_shard(checkpoint: Checkpoint, shard: Shard, tensors: list[LogicalTensor]) -> LogicalShard:
    entries = [(t.name, t.dtype, t.shape, t.nbytes) for t in tensors]
    header = render_header(logical_metadata(shard), entries)
    name = checkpoint.layout.dense_name(shard.name)
    return LogicalShard(name, header, tensors, sum(nbytes for *_, nbytes in entries), None)


def logical_metadata(shard: Shard) -> dict[str, str]:
    """The metadata of a shard without the marks of CSF."""
    metadata = {k: v for k, v in shard.header.metadata.items() if k not in _CSF_METADATA_KEYS}
    metadata.setdefault("format", "pt")  # transformers refuses shards without it
    return metadata


def merge_ranges(sources: Iterable[Located | P]) -> Iterator[Range | P]:
    """Stored ranges, neighbours joined; planes, of whichever kind, as they are."""
    for run in runs(sources, _is_stored_after):
        first, last = run[0], run[-1]
        if isinstance(first, Located) and isinstance(last, Located):
            yield Range(first.shard, first.tensor.begin, last.tensor.end)
        elif not isinstance(first, Located):
            yield first


def _is_stored_after(before: Located | P, source: Located | P) -> bool:
    if not isinstance(before, Located) or not isinstance(source, Located):
        return False
    return before.shard is source.shard and before.tensor.end == source.tensor.begin


def logical_index(index: Index, shards: list[LogicalShard]) -> dict[str, object]:
    """The index with dense names for stored ones and the true total size; all else as it was."""
    placed = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
    weight_map: dict[str, str] = {}
    tied: set[str] | None = None
    for stored, shard in index.weight_map.items():
        stream = parse_stream_name(stored)
        name = stream.scale if stream else stored
        if name not in placed:
            tied = tied_names(index.root, index.weight_map.keys() - placed.keys()) if tied is None else tied
            if name in tied:
                weight_map[name] = shard
                continue
            problem = f"lists {name}, which no shard holds"
            raise CheckpointError(problem, Code.INDEX_NAMES_MISSING_TENSOR, index.name)
        weight_map[name] = placed[name]
    unlisted = placed.keys() - weight_map.keys()
    left_out = sum(t.nbytes for shard in shards for t in shard.tensors if t.name in unlisted) if unlisted else 0
    return index_document(index, weight_map, sum(shard.data_bytes for shard in shards) - left_out)


def new_index(shards: list[LogicalShard]) -> dict[str, object]:
    """An index of every tensor, for a checkpoint that has none."""
    weight_map = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
    total = sum(shard.data_bytes for shard in shards)
    return index_document(None, dict(sorted(weight_map.items())), total)
