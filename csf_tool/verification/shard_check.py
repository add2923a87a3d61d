"""Checking one shard of a checkpoint: decode, hash and compare it in one pass over its bytes."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from csf_tool.checkpoint.compare import DenseReader, TensorComparison, adjacent, mismatch, same_bytes
from csf_tool.checkpoint.container import ScaleReceipt
from csf_tool.checkpoint.dense import DenseShard, DenseTensor
from csf_tool.checkpoint.files import CHUNK_BYTES
from csf_tool.checkpoint.model import Located, Plane, Shard
from csf_tool.checkpoint.names import SCALE_SUFFIXES
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.codec.formats import FORMATS
from csf_tool.coders.decoder import Decoded, Decoder
from csf_tool.errors import CheckpointError
from csf_tool.running.hashing import Hashing
from csf_tool.verification.verdict import Checks

_PROBE_BYTES = 4096

_LOOKS_SO = "a failed download can look so"


class _Observer(Protocol):
    """Sees the dense bytes of a tensor or a shard pass by, in order."""

    def update(self, data: memoryview, /) -> None: ...


@dataclass(frozen=True)
class Scope:
    """What every shard is checked against, and how."""

    theirs: dict[str, DenseTensor]
    receipts: dict[str, ScaleReceipt]
    stored_hashes: set[str]
    decoder: Decoder
    drop_cache: bool


@dataclass
class ShardFindings(Checks):
    """What one shard adds to each check, and what it lets the whole say."""

    hashed_planes: int = 0
    uncompared: int = 0
    is_rebuilt: bool = False
    stored_digest: dict[str, str] = field(default_factory=dict)


class ShardCheck:
    """Decodes, hashes and compares one dense shard in the order of its data, reading every byte once."""

    def __init__(self, shard: DenseShard, scope: Scope, on_bytes: Callable[[int], None]) -> None:
        self._shard = shard
        self._scope = scope
        self._on_bytes = on_bytes
        self._readers = Readers()
        self._pieces = _Pieces(self._readers)
        self._reference = DenseReader()
        self._rebuilt = _Rebuilt(shard)
        self._stored = _StoredHash(shard, scope.stored_hashes)
        self.found = ShardFindings()

    def run(self) -> ShardFindings:
        """Go through the shard once."""
        with self._readers, self._reference:
            self._expect()
            self._stored.begin(self._readers)
            decoded = _InOrder(self._scope.decoder.decode(self._good_streams()))
            for group in adjacent(self._shard.tensors, self._scope.theirs):
                if len(group) == 1 or not self._is_right(group):
                    for tensor in group:
                        self._tensor(tensor, decoded)
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
        self.found.stored_digest = self._stored.digest()
        if problem := self._rebuilt.problem():
            file = self._shard.tensors[0].stored_in if self._shard.tensors else self._shard.name
            self.found.source.fail(file, "", problem)
        elif self._shard.sha256:
            self.found.is_rebuilt = True

    def _good_streams(self) -> Iterator[PlaneStreams]:
        """Read and check each plane's streams; give on those that can be decoded."""
        check = self.found.streams
        for plane in self._shard.planes:
            file = plane.fixed.shard.name
            check.checked += 1
            if _is_hidden(plane.fixed) or _is_hidden(plane.exceptions):
                check.fail(file, plane.name, "its streams cannot be read: see structure")
                continue
            try:
                streams = self._readers.streams(plane)
            except CheckpointError as error:
                check.fail(file, plane.name, f"its streams cannot be read: {error}")
                continue
            faults = streams.faults()
            for fault in faults:
                (check.warn if fault.decodable else check.fail)(file, plane.name, str(fault))
            if all(fault.decodable for fault in faults):
                yield streams

    def _is_right(self, group: list[DenseTensor]) -> bool:
        """Take in several stored tensors that lie side by side at once, if there is nothing to say of any of them.

        Three quarters of a checkpoint's tensors are scalars: one by one they cost more than the weights.
        """
        theirs = self._scope.theirs
        if not (self._rebuilt.wanted or self._stored.wanted or theirs):
            return False  # nothing but a glance at each is needed
        first, last = group[0].source, group[-1].source
        assert isinstance(first, Located)
        assert isinstance(last, Located)
        begin, end = first.tensor.begin, last.tensor.end
        if any(map(_is_hidden, (t.source for t in group))):
            return False
        try:
            data = self._pieces.read(first.shard, begin, end)
            if theirs and not same_bytes(data, self._reference.read_group([theirs[t.name] for t in group])):
                return False
        except CheckpointError:
            return False  # one by one, each gets its own message
        if any(len(t.shape) > 1 and _is_zero(_part(data, t, begin)) for t in group):
            return False
        self._stored.pass_by(first.shard, begin, data)
        self._pass_by(data, self._rebuilt)
        self._pieces.turn()
        self.found.reference.checked += len(group) if theirs else 0
        return True

    def _tensor(self, tensor: DenseTensor, decoded: "_InOrder") -> None:
        try:
            if isinstance(tensor.source, Plane):
                self._plane(tensor, decoded.take(tensor.source))
            else:
                self._stored_tensor(tensor, tensor.source)
        except CheckpointError as error:
            self._lack(tensor)
            self.found.structure.fail(tensor.stored_in, tensor.name, str(error))

    def _lack(self, tensor: DenseTensor) -> None:
        """Note that a tensor's bytes cannot be had: nothing can be said of them, or of the shard they belong to."""
        self._rebuilt.lack(tensor.name)
        self.found.uncompared += tensor.name in self._scope.theirs

    def _plane(self, tensor: DenseTensor, decoded: Decoded | None) -> None:
        if decoded is None:
            self._lack(tensor)
            self.found.decode.fail(tensor.stored_in, tensor.name, "not decoded: its streams are broken")
            return
        self.found.decode.checked += 1
        self._stored.pass_streams(decoded.streams)
        data = decoded.scales.data.cast("B")
        zero, comparison = _ZeroWatch(), self._comparison(tensor)
        self._pass_by(data, zero, self._rebuilt, *comparison)
        self._report_zero(tensor, zero)
        if not zero.only_zeros and _is_zero(decoded.streams.fixed.data.cast("B")):
            text = f"its fixed stream is entirely zero, its exceptions are not: {_LOOKS_SO}"
            self.found.streams.warn(tensor.stored_in, tensor.name, text)
        self._report_difference(tensor, comparison)
        self._plane_hash(tensor, data)

    def _plane_hash(self, tensor: DenseTensor, data: memoryview) -> None:
        receipt = self._scope.receipts.get(tensor.name)
        if receipt is None:
            return
        self.found.hashed_planes += 1
        found = hashlib.sha256(data).hexdigest()
        if found != receipt.source_sha256:
            text = f"decodes to SHA-256 {found}, the source's is {receipt.source_sha256}"
            self.found.source.fail(tensor.stored_in, tensor.name, text)

    def _stored_tensor(self, tensor: DenseTensor, located: Located) -> None:
        if _is_hidden(located):
            self._lack(tensor)  # named under structure
            return
        begin, end = located.tensor.begin, located.tensor.end
        zero, comparison = _ZeroWatch(), self._comparison(tensor)
        if self._rebuilt.wanted or self._stored.wanted or comparison:
            for at in range(begin, end, CHUNK_BYTES):
                piece = self._pieces.read(located.shard, at, min(at + CHUNK_BYTES, end))
                self._stored.pass_by(located.shard, at, piece)
                self._pass_by(piece, zero, self._rebuilt, *comparison)
                self._pieces.turn()
        else:
            reader = self._readers[located.shard]
            probe = min(begin + _PROBE_BYTES, end)
            zero.update(memoryview(reader.read(begin, probe)))
            for piece in reader.chunks(probe, end) if zero.only_zeros else ():
                zero.update(piece)
        self._report_difference(tensor, comparison)
        if len(tensor.shape) > 1:  # a bias or a scalar may well be zero
            self._report_zero(tensor, zero)

    def _pass_by(self, piece: memoryview, *observers: _Observer) -> None:
        for observer in observers:
            observer.update(piece)
        self._on_bytes(len(piece))

    def _report_zero(self, tensor: DenseTensor, zero: "_ZeroWatch") -> None:
        if zero.only_zeros and tensor.nbytes:
            what = "scale plane" if tensor.name.endswith(SCALE_SUFFIXES) else "weight tensor"
            self.found.streams.warn(tensor.stored_in, tensor.name, f"{what} is entirely zero: {_LOOKS_SO}")

    def _comparison(self, tensor: DenseTensor) -> list["_Comparison"]:
        """The comparison with the reference's tensor of the same name; none where it cannot be made."""
        theirs = self._scope.theirs.get(tensor.name)
        if theirs is None:
            return []  # a missing name is reported once, for the whole checkpoint
        check = self.found.reference
        check.checked += 1
        if problem := mismatch(tensor, theirs):
            check.fail(tensor.stored_in, tensor.name, problem)
            return []
        if tensor.dtype != theirs.dtype:
            text = f"dtype is {tensor.dtype}, the reference has {theirs.dtype}"
            interchangeable = any({tensor.dtype, theirs.dtype} <= set(fmt.dense_dtypes) for fmt in FORMATS)
            (check.warn if interchangeable else check.fail)(tensor.stored_in, tensor.name, text)
        return [_Comparison(tensor, theirs, self._reference)]

    def _report_difference(self, tensor: DenseTensor, comparisons: list["_Comparison"]) -> None:
        for comparison in comparisons:
            if problem := comparison.problem():
                self.found.reference.fail(tensor.stored_in, tensor.name, problem)


class _Pieces:
    """Stored bytes in pieces of at most CHUNK_BYTES; one that was looked at stays whole for `Hashing` for a turn."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._free, self._held = (memoryview(bytearray(CHUNK_BYTES)) for _ in range(2))

    def read(self, shard: Shard, begin: int, end: int) -> memoryview:
        """A piece, valid until the next is read, or, once it has had its turn, until the next but one."""
        piece = self._free[: end - begin]
        self._readers[shard].read_into(piece, begin)
        return piece

    def turn(self) -> None:
        """Keep the piece that was read last."""
        self._free, self._held = self._held, self._free


class _InOrder:
    """Decoded planes, asked for in order; those that were left out for faults are answered with None."""

    def __init__(self, decoded: Iterable[Decoded]) -> None:
        self._decoded = iter(decoded)
        self._next = next(self._decoded, None)

    def take(self, plane: Plane) -> Decoded | None:
        """The decoded `plane`, or None when it was not decoded."""
        if self._next is None or self._next.plane is not plane:
            return None
        found, self._next = self._next, next(self._decoded, None)
        return found


class _Rebuilt:
    """Hashes the bytes of a dense shard as they pass, when the original's hash is known."""

    def __init__(self, shard: DenseShard) -> None:
        self._expected = shard.sha256
        self._hashing = Hashing() if shard.sha256 else None
        self._lacking: list[str] = []
        self.update(memoryview(shard.header))

    @property
    def wanted(self) -> bool:
        """Whether the bytes still matter."""
        return self._expected is not None and not self._lacking

    def lack(self, name: str) -> None:
        """Note that the bytes of a tensor cannot be had."""
        self._lacking.append(name)

    def update(self, data: memoryview) -> None:
        """Take in the next bytes."""
        if self._hashing and not self._lacking:
            self._hashing.update(data)

    def problem(self) -> str | None:
        """Why the shard is not the original."""
        if self._hashing is None:
            return None
        found = self._hashing.hexdigest()
        if self._lacking:
            more = f" and {len(self._lacking) - 1} more" if len(self._lacking) > 1 else ""
            return f"cannot be rebuilt: {self._lacking[0]}{more} cannot be read or decoded"
        return None if found == self._expected else f"rebuilt SHA-256 is {found}, the source's is {self._expected}"


class _StoredHash:
    """Hashes a stored shard as its bytes pass, so that it is read once; gives up when they pass in another order."""

    def __init__(self, shard: DenseShard, stored_hashes: set[str]) -> None:
        names = {tensor.stored_in for tensor in shard.tensors}
        self._name = names.pop() if len(names) == 1 else ""
        self._hashing = Hashing() if self._name in stored_hashes else None
        self._source: Shard | None = next((_home(t) for t in shard.tensors), None) if self._hashing else None
        self._at = 0

    @property
    def wanted(self) -> bool:
        """Whether the bytes still matter."""
        return self._hashing is not None and self._at >= 0

    def begin(self, readers: Readers) -> None:
        """Take in the stored header."""
        if self._source:
            header = readers[self._source].read(0, self._source.header.data_start)
            self.pass_by(self._source, 0, memoryview(header))

    def pass_by(self, shard: Shard, begin: int, data: memoryview) -> None:
        """See stored bytes from offset `begin` on."""
        if self._hashing is None or self._at < 0:
            return
        if shard is not self._source or begin != self._at:
            self._at = -1
            return
        self._hashing.update(data)
        self._at += len(data)

    def pass_streams(self, streams: PlaneStreams) -> None:
        """See the two streams of a plane, whichever comes first in the file."""
        plane = streams.plane
        stored = [(plane.fixed, streams.fixed.data), (plane.exceptions, streams.exceptions.data)]
        for located, data in sorted(stored, key=lambda entry: entry[0].tensor.begin):
            self.pass_by(located.shard, located.tensor.begin, data.cast("B"))

    def digest(self) -> dict[str, str]:
        """The stored shard's name and hash, or nothing when not all of its bytes have passed in order."""
        if self._hashing is None:
            return {}
        found = self._hashing.hexdigest()
        complete = self._source is not None and self._at == self._source.size
        return {self._name: found} if complete else {}


def _is_hidden(source: Located | Plane) -> bool:
    """Whether a stored tensor's bytes are others' as well, or past the end of its file."""
    return isinstance(source, Located) and source.tensor.name in source.shard.header.unreadable


def _home(tensor: DenseTensor) -> Shard:
    return (tensor.source.fixed if isinstance(tensor.source, Plane) else tensor.source).shard


class _ZeroWatch:
    """Sees whether all bytes are zero."""

    def __init__(self) -> None:
        self.only_zeros = True

    def update(self, data: memoryview) -> None:
        """Look at the next bytes, until one is not zero."""
        if self.only_zeros:
            self.only_zeros = _is_zero(data)


def _is_zero(data: memoryview) -> bool:
    """Whether all bytes are zero; the first few nearly always tell."""
    return not np.frombuffer(data[:_PROBE_BYTES], np.uint8).any() and not np.frombuffer(data, np.uint8).any()


def _part(data: memoryview, tensor: DenseTensor, begin: int) -> memoryview:
    """A tensor's bytes within `data`, which begins at offset `begin` of its shard."""
    assert isinstance(tensor.source, Located)
    stored = tensor.source.tensor
    return data[stored.begin - begin : stored.end - begin]


class _Comparison:
    """Compares a tensor's bytes, as they pass, with the reference's."""

    def __init__(self, ours: DenseTensor, theirs: DenseTensor, reader: DenseReader) -> None:
        self._theirs = theirs
        self._reader = reader
        self._comparison = TensorComparison(ours)
        self._at = 0
        self._unreadable: str | None = None

    def update(self, data: memoryview) -> None:
        """Compare the next bytes."""
        try:
            for at in range(0, len(data) if self._unreadable is None else 0, CHUNK_BYTES):
                piece = data[at : at + CHUNK_BYTES]
                theirs = self._reader.read(self._theirs, self._at + at, self._at + at + len(piece))
                self._comparison.update(piece, theirs)
        except CheckpointError as error:
            self._unreadable = f"the reference cannot be read: {error}"
        self._at += len(data)

    def problem(self) -> str | None:
        """What differs, once all bytes have passed."""
        difference = self._comparison.result()
        return self._unreadable or (str(difference) if difference else None)
