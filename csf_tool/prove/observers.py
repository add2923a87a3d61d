"""Observers of bytes as they are read: hashes, the comparison with a reference, and the test for zeros."""

from typing import Protocol

import numpy as np

from csf_tool.checkpoint.logical import LogicalShard, LogicalTensor
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.stored import Shard
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.codes import Code, Finding
from csf_tool.disk.hashing import Hashing
from csf_tool.disk.reader import CHUNK_BYTES
from csf_tool.errors import CheckpointError
from csf_tool.prove.compare import DenseReader, TensorComparison
from csf_tool.text import some

PROBE_BYTES = 4096
"""Number of bytes at the start of a tensor that nearly always show that it is not zero."""


class Observer(Protocol):
    """Takes the dense bytes of a tensor or a shard, in order."""

    def update(self, data: memoryview, /) -> None:
        """Take the next bytes."""


class RebuiltHash:
    """Hashes the bytes of a dense shard as they are read, when the original's hash is known."""

    def __init__(self, shard: LogicalShard) -> None:
        self._expected = shard.sha256
        self._hashing = Hashing() if shard.sha256 else None
        self._lacking: list[str] = []
        self.update(memoryview(shard.header))

    @property
    def wanted(self) -> bool:
        """Whether the bytes still matter."""
        return self._expected is not None and not self._lacking

    def lack(self, name: str) -> None:
        """Note that the bytes of a tensor are not available."""
        self._lacking.append(name)

    def update(self, data: memoryview) -> None:
        """Take in the next bytes."""
        if self._hashing and not self._lacking:
            self._hashing.update(data)

    def problem(self) -> Finding | None:
        """The reason why the shard is not the original, or None."""
        if self._hashing is None:
            return None
        found = self._hashing.hexdigest()
        if self._lacking:
            text = f"cannot be rebuilt: {some(self._lacking, 1)} cannot be read or decoded"
            return Finding(text, Code.CANNOT_BE_REBUILT)
        if found == self._expected:
            return None
        return Finding(f"rebuilt SHA-256 is {found}, but the original's is {self._expected}", Code.SOURCE_DIFFERS)


class StoredHash:
    """Hashes a stored shard as it is read, to read it once; gives up when its bytes come in another order."""

    def __init__(self, shard: LogicalShard, stored_hashes: set[str]) -> None:
        names = {tensor.stored_in for tensor in shard.tensors}
        self._name = names.pop() if len(names) == 1 else ""
        self._hashing = Hashing() if self._name in stored_hashes else None
        self._source: Shard | None = next((t.home for t in shard.tensors), None) if self._hashing else None
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
        """Take stored bytes from offset `begin` on."""
        if self._hashing is None or self._at < 0:
            return
        if shard is not self._source or begin != self._at:
            self._at = -1
            return
        self._hashing.update(data)
        self._at += len(data)

    def pass_streams(self, streams: PlaneStreams) -> None:
        """Take the two streams of a plane, in their order in the file."""
        plane = streams.plane
        assert isinstance(plane, Plane)
        stored = [(plane.fixed, streams.fixed.data), (plane.exceptions, streams.exceptions.data)]
        for located, data in sorted(stored, key=lambda entry: entry[0].tensor.begin):
            self.pass_by(located.shard, located.tensor.begin, data.cast("B"))

    def digest(self) -> dict[str, str]:
        """The stored shard's name and hash; empty unless all of its bytes came in order."""
        if self._hashing is None:
            return {}
        found = self._hashing.hexdigest()
        complete = self._source is not None and self._at == self._source.size
        return {self._name: found} if complete else {}


class Comparison:
    """Compares a tensor's bytes with the reference's as they are read."""

    def __init__(self, ours: LogicalTensor, theirs: LogicalTensor, reader: DenseReader) -> None:
        self._theirs = theirs
        self._reader = reader
        self._comparison = TensorComparison(ours)
        self._at = 0
        self._unreadable: Finding | None = None

    def update(self, data: memoryview) -> None:
        """Compare the next bytes."""
        try:
            for at in range(0, len(data) if self._unreadable is None else 0, CHUNK_BYTES):
                piece = data[at : at + CHUNK_BYTES]
                theirs = self._reader.read(self._theirs, self._at + at, self._at + at + len(piece))
                self._comparison.update(piece, theirs)
        except CheckpointError as error:
            self._unreadable = Finding(f"the reference cannot be read: {error}", error.code)
        self._at += len(data)

    def problem(self) -> Finding | None:
        """The difference, once all bytes have been compared."""
        difference = self._comparison.result()
        if self._unreadable or difference is None:
            return self._unreadable
        return Finding(str(difference), Code.REFERENCE_DIFFERS)


class ZeroWatch:
    """Finds out whether all bytes are zero."""

    def __init__(self) -> None:
        self.only_zeros = True

    def update(self, data: memoryview) -> None:
        """Look at the next bytes, until one is not zero."""
        if self.only_zeros:
            self.only_zeros = is_zero(data)


def is_zero(data: memoryview) -> bool:
    """Whether all bytes are zero; the first few nearly always show that they are not."""
    return not np.frombuffer(data[:PROBE_BYTES], np.uint8).any() and not np.frombuffer(data, np.uint8).any()
