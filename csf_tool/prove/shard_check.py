"""The check of one shard: decode, hash and compare it in one pass over its bytes."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from csf_tool.checkpoint.container import ScaleReceipt
from csf_tool.checkpoint.logical import LogicalShard, LogicalTensor
from csf_tool.checkpoint.names import SCALE_SUFFIXES
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.problems import Problem
from csf_tool.checkpoint.stored import Located, Shard
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.codec.formats import CsfFormat
from csf_tool.coders.coded import CodedPlane
from csf_tool.coders.cross_checked import require_same
from csf_tool.coders.decoder import Decoder
from csf_tool.codes import Code
from csf_tool.disk.reader import CHUNK_BYTES
from csf_tool.errors import CheckpointError
from csf_tool.prove.compare import DenseReader, adjacent, mismatch, same_bytes
from csf_tool.prove.observers import PROBE_BYTES, Comparison, Observer, RebuiltHash, StoredHash, ZeroWatch, is_zero
from csf_tool.prove.reference_check import check_dtype
from csf_tool.prove.verdict import Checks

_LOOKS_SO = "a failed download can look like this"


@dataclass(frozen=True)
class Scope:
    """The reference, hashes and options with which every shard is checked."""

    theirs: dict[str, LogicalTensor]
    receipts: dict[str, ScaleReceipt]
    stored_hashes: set[str]
    scale_formats: Mapping[str, CsfFormat]
    """The format of every block scale of either side, by its name."""
    decoder: Decoder
    drop_cache: bool


@dataclass
class ShardFindings(Checks):
    """The results of shards, one or all of them: checks, counts and stored hashes."""

    hashed_planes: int = 0
    agreed_planes: int = 0
    """Planes that the CPU has decoded, to the same scales as the device where that is another one."""
    uncompared: int = 0
    rebuilt_shards: int = 0
    stored_digests: dict[str, str] = field(default_factory=dict)

    def add_shard(self, shard: "ShardFindings") -> None:
        """Add the results of a further shard."""
        self.add(shard)
        self.hashed_planes += shard.hashed_planes
        self.agreed_planes += shard.agreed_planes
        self.uncompared += shard.uncompared
        self.rebuilt_shards += shard.rebuilt_shards
        self.stored_digests |= shard.stored_digests


class ShardCheck:
    """Decodes, hashes and compares one dense shard in the order of its data, reading every byte once."""

    def __init__(self, shard: LogicalShard, scope: Scope, on_bytes: Callable[[int], None]) -> None:
        self._shard = shard
        self._scope = scope
        self._on_bytes = on_bytes
        self._readers = Readers()
        self._pieces = _Pieces(self._readers)
        self._reference = DenseReader()
        self._rebuilt = RebuiltHash(shard)
        self._stored = StoredHash(shard, scope.stored_hashes)
        self.found = ShardFindings()

    def run(self) -> ShardFindings:
        """Go through the shard once."""
        with self._readers, self._reference:
            self._expect()
            self._stored.begin(self._readers)
            decoded = _InOrder(self._scope.decoder.decode(self._good_streams()))
            for group in adjacent(self._shard.tensors, self._scope.theirs):
                if len(group) == 1 or not self._take_together(group):
                    for tensor in group:
                        self._check_tensor(tensor, decoded)
            if self._scope.drop_cache:
                self._readers.forget()
                self._reference.forget()
        self._close()
        return self.found

    def _expect(self) -> None:
        theirs = self._scope.theirs
        self._readers.expect(stored for tensor in self._shard.tensors for stored in tensor.stored)
        self._reference.expect(theirs[tensor.name] for tensor in self._shard.tensors if tensor.name in theirs)

    def _close(self) -> None:
        self.found.stored_digests = self._stored.digest()
        if problem := self._rebuilt.problem():
            file = self._shard.tensors[0].stored_in if self._shard.tensors else self._shard.name
            self.found.source.fail(*problem, file)
        elif self._shard.sha256:
            self.found.rebuilt_shards = 1

    def _good_streams(self) -> Iterator[PlaneStreams]:
        """Read and check each plane's streams, and yield those that can be decoded."""
        check = self.found.streams
        for plane in self._shard.planes:
            file = plane.fixed.shard.name
            check.checked += 1
            if _has_no_bytes(plane.fixed) or _has_no_bytes(plane.exceptions):
                check.fail(
                    "its streams cannot be read: see the check structure", Code.UNREADABLE_STREAMS, file, plane.name
                )
                continue
            try:
                streams = self._readers.streams(plane)
            except CheckpointError as error:
                check.failures.append(Problem.of(error.within("its streams cannot be read"), file, plane.name))
                continue
            faults = streams.faults()
            for fault in faults:
                (check.warn if fault.decodable else check.fail)(str(fault), fault.code, file, plane.name)
            if all(fault.decodable for fault in faults):
                yield streams

    def _take_together(self, group: list[LogicalTensor]) -> bool:
        """Check adjacent stored tensors with one read; False if any has a fault or needs a check of its own.

        Three quarters of a checkpoint's tensors are scalars: read one by one they cost more than the weights.
        """
        theirs = self._scope.theirs
        if not (self._rebuilt.wanted or self._stored.wanted or theirs):
            return False  # each costs next to nothing
        first, last = group[0].source, group[-1].source
        assert isinstance(first, Located)
        assert isinstance(last, Located)
        begin, end = first.tensor.begin, last.tensor.end
        if any(map(_has_no_bytes, (t.source for t in group))):
            return False
        try:
            data = self._pieces.read(first.shard, begin, end)
            if theirs and not same_bytes(data, self._reference.read_group([theirs[t.name] for t in group])):
                return False
        except CheckpointError:
            return False  # one by one, each gets its own message
        if any(len(t.shape) > 1 and is_zero(_part(data, t, begin)) for t in group):
            return False
        self._stored.pass_by(first.shard, begin, data)
        self._pass_by(data, self._rebuilt)
        self._pieces.turn()
        self.found.reference.checked += len(group) if theirs else 0
        return True

    def _check_tensor(self, tensor: LogicalTensor, decoded: "_InOrder") -> None:
        try:
            if isinstance(tensor.source, Plane):
                self._check_plane(tensor, decoded.take(tensor.source))
            else:
                self._check_stored_tensor(tensor, tensor.source)
        except CheckpointError as error:
            self._lack(tensor)
            self.found.structure.failures.append(Problem.of(error, tensor.stored_in, tensor.name))

    def _lack(self, tensor: LogicalTensor) -> None:
        """Note that a tensor's bytes are not available, so that its dense shard cannot be hashed."""
        self._rebuilt.lack(tensor.name)
        self.found.uncompared += tensor.name in self._scope.theirs

    def _check_plane(self, tensor: LogicalTensor, decoded: CodedPlane | None) -> None:
        if decoded is None:
            self._lack(tensor)
            text = "not decoded: its streams are broken"
            self.found.decode.fail(text, Code.UNREADABLE_STREAMS, tensor.stored_in, tensor.name)
            return
        self.found.decode.checked += 1
        before = self.found.reports
        self._look_at_scales(tensor, decoded)
        is_open = self.found.reports > before or (self._rebuilt.wanted and tensor.name not in self._scope.receipts)
        if is_open and not decoded.agreed:
            require_same(decoded, self._scope.decoder.device)  # where they differ, it is no fault of the checkpoint
        self.found.agreed_planes += is_open or decoded.agreed

    def _look_at_scales(self, tensor: LogicalTensor, decoded: CodedPlane) -> None:
        self._stored.pass_streams(decoded.streams)
        data = decoded.scales.data.cast("B")
        zero, comparison = ZeroWatch(), self._comparison(tensor)
        self._pass_by(data, zero, self._rebuilt, *comparison)
        self._report_zero(tensor, zero)
        if not zero.only_zeros and is_zero(decoded.streams.fixed.data.cast("B")):
            text = f"its fixed stream is entirely zero, but its exceptions are not: {_LOOKS_SO}"
            self.found.streams.warn(text, Code.ZERO_STREAM, tensor.stored_in, tensor.name)
        self._report_difference(tensor, comparison)
        self._check_source_hash(tensor, data)

    def _check_source_hash(self, tensor: LogicalTensor, data: memoryview) -> None:
        receipt = self._scope.receipts.get(tensor.name)
        if receipt is None:
            return
        self.found.hashed_planes += 1
        found = hashlib.sha256(data).hexdigest()
        if found != receipt.source_sha256:
            text = f"decodes to SHA-256 {found}, but the original's is {receipt.source_sha256}"
            self.found.source.fail(text, Code.SOURCE_DIFFERS, tensor.stored_in, tensor.name)

    def _check_stored_tensor(self, tensor: LogicalTensor, located: Located) -> None:
        if _has_no_bytes(located):
            self._lack(tensor)  # reported under structure
            return
        begin, end = located.tensor.begin, located.tensor.end
        zero, comparison = ZeroWatch(), self._comparison(tensor)
        if self._rebuilt.wanted or self._stored.wanted or comparison:
            for at in range(begin, end, CHUNK_BYTES):
                piece = self._pieces.read(located.shard, at, min(at + CHUNK_BYTES, end))
                self._stored.pass_by(located.shard, at, piece)
                self._pass_by(piece, zero, self._rebuilt, *comparison)
                self._pieces.turn()
        else:
            reader = self._readers[located.shard]
            probe = min(begin + PROBE_BYTES, end)
            zero.update(memoryview(reader.read(begin, probe)))
            for piece in reader.chunks(probe, end) if zero.only_zeros else ():
                zero.update(piece)
        self._report_difference(tensor, comparison)
        if len(tensor.shape) > 1:  # a bias or a scalar may well be zero
            self._report_zero(tensor, zero)

    def _pass_by(self, piece: memoryview, *observers: Observer) -> None:
        for observer in observers:
            observer.update(piece)
        self._on_bytes(len(piece))

    def _report_zero(self, tensor: LogicalTensor, zero: ZeroWatch) -> None:
        if zero.only_zeros and tensor.nbytes:
            what = "scale plane" if tensor.name.endswith(SCALE_SUFFIXES) else "weight tensor"
            text = f"{what} is entirely zero: {_LOOKS_SO}"
            self.found.streams.warn(text, Code.ZERO_WEIGHT, tensor.stored_in, tensor.name)

    def _comparison(self, tensor: LogicalTensor) -> list[Comparison]:
        """The comparison with the reference's tensor of the same name; empty if they cannot be compared."""
        theirs = self._scope.theirs.get(tensor.name)
        if theirs is None:
            return []  # a missing name is reported once, for the whole checkpoint
        check = self.found.reference
        check.checked += 1
        if problem := mismatch(tensor, theirs):
            check.fail(problem, Code.REFERENCE_DIFFERS, tensor.stored_in, tensor.name)
            return []
        check_dtype(check, tensor, theirs, self._scope.scale_formats)
        return [Comparison(tensor, theirs, self._reference)]

    def _report_difference(self, tensor: LogicalTensor, comparisons: list[Comparison]) -> None:
        for comparison in comparisons:
            if problem := comparison.problem():
                self.found.reference.fail(*problem, tensor.stored_in, tensor.name)


class _Pieces:
    """Stored bytes in pieces of at most CHUNK_BYTES, in two buffers: `Hashing` may still read the piece before."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._free, self._held = (memoryview(bytearray(CHUNK_BYTES)) for _ in range(2))

    def read(self, shard: Shard, begin: int, end: int) -> memoryview:
        """A piece, valid until the next is read, or, after `turn`, until the next but one."""
        piece = self._free[: end - begin]
        self._readers[shard].read_into(piece, begin)
        return piece

    def turn(self) -> None:
        """Keep the piece that was read last while the next is read."""
        self._free, self._held = self._held, self._free


class _InOrder:
    """Decoded planes, taken in order; None for planes that have faults."""

    def __init__(self, decoded: Iterable[CodedPlane]) -> None:
        self._decoded = iter(decoded)
        self._next = next(self._decoded, None)

    def take(self, plane: Plane) -> CodedPlane | None:
        """The decoded `plane`, or None when it was not decoded."""
        if self._next is None or self._next.plane is not plane:
            return None
        found, self._next = self._next, next(self._decoded, None)
        return found


def _has_no_bytes(source: Located | Plane) -> bool:
    """Whether a stored tensor's bytes overlap another's or lie past the end of its file."""
    return isinstance(source, Located) and source.tensor.name in source.shard.header.unreadable


def _part(data: memoryview, tensor: LogicalTensor, begin: int) -> memoryview:
    """A tensor's bytes within `data`, which begins at offset `begin` of its shard."""
    assert isinstance(tensor.source, Located)
    stored = tensor.source.tensor
    return data[stored.begin - begin : stored.end - begin]
