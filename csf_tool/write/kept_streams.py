"""Streams that were encoded to count their exceptions, kept until the shard that they belong in is written."""

import hashlib
import os
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from csf_tool.checkpoint.model import DensePlane
from csf_tool.codec import reference
from csf_tool.coders.encoder import Encoded
from csf_tool.disk.reader import drop_cache, writing_fault
from csf_tool.errors import CheckpointError, EnvironmentFault
from csf_tool.write.destination import Destination

_NAME = "encoded scales"


@dataclass(frozen=True, slots=True)
class Kept:
    """The two streams of a plane as a file has them, fixed before exceptions, and the SHA-256 of its dense scales.

    The hash is None where nobody asked for it.
    """

    plane: DensePlane
    data: memoryview
    source_sha256: str | None

    def decoded(self) -> memoryview:
        """The dense scales.

        Raises:
            CheckpointError: they are not what was encoded.
        """
        plane, data = self.plane, self.data
        size = plane.fmt.fixed_bytes(plane.rows, plane.cols)
        fixed, exceptions = np.frombuffer(data[:size], np.uint8), reference.exception_words(data[size:])
        scales = reference.decode(plane.fmt, fixed, exceptions, rows=plane.rows, cols=plane.cols)
        dense = scales.data.cast("B")
        if hashlib.sha256(dense).hexdigest() != self.source_sha256:
            name = plane.scale.shard.name
            raise CheckpointError(f"{name}: {plane.name}: what was encoded does not give back the original scales")
        return dense


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    nbytes: int
    source_sha256: str | None


class KeptStreams:
    """The streams of a run, in a file without a name on the destination's disk: a large checkpoint has gigabytes.

    With `hashes`, the dense scales are hashed as well. Safe to use from several threads.
    """

    def __init__(self, destination: Destination, hashes: bool) -> None:
        self._destination = destination
        self._hashes = hashes
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._end = 0
        self._places: dict[str, _Place] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._file:
            self._file.close()

    def keep(self, encoded: Encoded) -> None:
        """Keep the streams of a plane.

        Raises:
            EnvironmentFault: the disk is full, or cannot be written.
        """
        data = memoryview(encoded.fixed.tobytes() + encoded.exceptions.tobytes())
        sha256 = hashlib.sha256(encoded.scales.data.cast("B")).hexdigest() if self._hashes else None
        with self._lock:
            self._places[encoded.plane.name] = _Place(self._end, len(data), sha256)
            try:
                self._file = self._file or self._destination.scratch_file()
                self._file.seek(self._end)
                self._end += len(data)
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                raise writing_fault(_NAME, error) from error

    def read(self, plane: DensePlane) -> Kept:
        """The streams of a plane that was kept.

        Raises:
            EnvironmentFault: the disk does not give them back.
        """
        place = self._places[plane.name]
        data = bytearray(place.nbytes)
        assert self._file is not None
        with self._lock:
            try:
                self._file.seek(place.offset)
                done = self._file.readinto(data)  # type: ignore[attr-defined]
            except OSError as error:
                raise EnvironmentFault(f"{_NAME}: cannot be read back: {error.strerror or error}") from error
        if done != len(data):
            raise EnvironmentFault(f"{_NAME}: {done} of {len(data)} bytes can be read back")
        return Kept(plane, memoryview(data), place.source_sha256)

    def forget(self) -> None:
        """Let the page cache drop what was kept so far."""
        if self._file:
            os.fsync(self._file.fileno())
            drop_cache(self._file.fileno(), 0, self._end)
