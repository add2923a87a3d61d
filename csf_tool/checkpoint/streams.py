"""Reading the two streams of a plane."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from csf_tool.checkpoint.plane_tables import AnyPlane, Plane
from csf_tool.checkpoint.stored import Located, Shard
from csf_tool.closing import Closing
from csf_tool.codec import reference
from csf_tool.codec.reference import StreamFault
from csf_tool.disk.reader import RandomReader, Reader
from csf_tool.errors import CheckpointError, EnvironmentFault, StreamError


@dataclass(frozen=True, slots=True)
class PlaneStreams:
    """The streams of a plane in memory, read from where they are stored, or encoded from dense scales."""

    plane: AnyPlane
    fixed: NDArray[np.uint8]
    """The fixed stream, in any shape."""
    exceptions: NDArray[np.uint32]
    """The exception words `[n]`, little-endian."""

    @classmethod
    def split(cls, plane: AnyPlane, raw: memoryview) -> Self:
        """The streams of a plane from their bytes, fixed before exceptions: what `joined` gives."""
        size = plane.fmt.fixed_bytes(plane.rows, plane.cols)
        return cls(plane, np.frombuffer(raw[:size], np.uint8), reference.exception_words(raw[size:]))

    def joined(self) -> bytes:
        """The bytes of both streams, fixed before exceptions."""
        return self.fixed.tobytes() + self.exceptions.tobytes()

    @property
    def nbytes(self) -> int:
        """Bytes of both streams."""
        return self.fixed.nbytes + self.exceptions.nbytes

    def faults(self) -> list[StreamFault]:
        """Faults of the streams."""
        plane = self.plane
        return reference.check(plane.fmt, self.fixed, self.exceptions, rows=plane.rows, cols=plane.cols)

    def require_decodable(self) -> Self:
        """Check that the streams can be decoded, and return them.

        Raises:
            StreamError: the streams break a rule of the format.
        """
        broken = [fault for fault in self.faults() if not fault.decodable]
        if broken:
            problem = "; ".join(map(str, broken))
            raise StreamError(problem, broken[0].code, self.plane.shard.name, self.plane.name)
        return self

    def decode(self) -> NDArray[np.uint8]:
        """The dense scales `[rows, cols]`, decoded on the CPU. The streams must have passed `faults`."""
        plane = self.plane
        return reference.decode(plane.fmt, self.fixed, self.exceptions, rows=plane.rows, cols=plane.cols)


class Readers(Closing):
    """Open files of a checkpoint's shards, each opened when first asked for.

    `copies` says by name where shards that lie elsewhere have been fetched to.
    """

    def __init__(self, copies: Mapping[str, Path] = MappingProxyType({})) -> None:
        self._copies = copies
        self._open: dict[str, Reader] = {}
        self._asked_for: dict[str, Shard] = {}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Check at the end of a block that every shard that it read is still the file whose header was read.

        Raises:
            EnvironmentFault: a shard is missing or another file, also where this made the block fail.
        """
        try:
            yield
        except CheckpointError:
            self._check_all()
            raise
        self._check_all()

    def _check_all(self) -> None:
        for shard in self._asked_for.values():
            _require_unchanged(shard)

    def close(self) -> None:
        """Close the files, and forget which they were."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()
        self._asked_for.clear()

    def __getitem__(self, shard: Shard) -> Reader:
        reader = self._open.get(shard.name)
        if reader is None:
            self._asked_for[shard.name] = shard
            copy = self._copies.get(shard.name)
            reader = self._open[shard.name] = RandomReader(copy, shard.name) if copy else shard.open()
        return reader

    def expect(self, tensors: Iterable[Located]) -> None:
        """Announce tensors in about the order in which they will be read: those on the Hub are fetched ahead."""
        ranges: dict[str, list[tuple[int, int]]] = {}
        shards: dict[str, Shard] = {}
        for shard, tensor in tensors:
            if shard.remote and shard.name not in self._copies:
                shards[shard.name] = shard
                ranges.setdefault(shard.name, []).append((tensor.begin, tensor.end))
        for name, shard in shards.items():
            self[shard].expect(ranges[name])

    def forget(self) -> None:
        """Let the page cache drop what was read."""
        for reader in self._open.values():
            reader.forget(0, 0)  # 0 bytes from 0: the whole file

    def streams(self, plane: Plane) -> PlaneStreams:
        """The streams of a plane, read in one piece where they lie side by side."""
        fixed, exceptions = plane.fixed, plane.exceptions
        if fixed.shard is exceptions.shard and fixed.tensor.end == exceptions.tensor.begin:
            raw = memoryview(self[fixed.shard].read(fixed.tensor.begin, exceptions.tensor.end))
            parts = raw[: fixed.tensor.nbytes], raw[fixed.tensor.nbytes :]
        else:
            parts = (
                memoryview(self[fixed.shard].read(fixed.tensor.begin, fixed.tensor.end)),
                memoryview(self[exceptions.shard].read(exceptions.tensor.begin, exceptions.tensor.end)),
            )
        return PlaneStreams(plane, np.frombuffer(parts[0], np.uint8), reference.exception_words(parts[1]))


def _require_unchanged(shard: Shard) -> None:
    """Check that a shard is still the file whose header was read. On the Hub a commit's files never change.

    Raises:
        EnvironmentFault: the file is missing, or its size or time has changed.
    """
    if shard.remote:
        return
    try:
        now = shard.path.stat()
    except OSError as error:
        raise EnvironmentFault(f"{shard.name}: disappeared while csf-tool read it: {error.strerror}") from error
    if (now.st_size, now.st_mtime_ns) != (shard.size, shard.mtime_ns):
        raise EnvironmentFault(
            f"{shard.name}: changed while csf-tool read it ({shard.size} bytes then, {now.st_size} now): "
            "wait until nothing writes to it, and start again"
        )
