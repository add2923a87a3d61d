"""Streams that were encoded to count their exceptions, kept until the shard that they belong in is written."""

import os
import threading
from collections.abc import Iterable
from typing import BinaryIO

from csf_tool.checkpoint.plane_tables import DensePlane
from csf_tool.checkpoint.streams import PlaneStreams
from csf_tool.closing import Closing
from csf_tool.disk.reader import drop_cache, writing_fault
from csf_tool.errors import EnvironmentFault
from csf_tool.write.destination import Destination

_NAME = "encoded scales"


class KeptStreams(Closing):
    """The streams of a run, in a file without a name on the destination's disk: a large checkpoint has gigabytes.

    Safe to use from several threads.
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._end = 0
        self._places: dict[str, tuple[int, int]] = {}
        """Offset and bytes of each plane's streams, by the name of its scale."""

    def close(self) -> None:
        """Remove the file, which has no name."""
        if self._file:
            self._file.close()

    def keep(self, streams: PlaneStreams) -> None:
        """Keep the streams of a plane.

        Raises:
            EnvironmentFault: the disk is full, or cannot be written.
        """
        data = memoryview(streams.joined())
        with self._lock:
            self._places[streams.plane.name] = self._end, len(data)
            try:
                self._file = self._file or self._destination.scratch_file()
                self._file.seek(self._end)
                self._end += len(data)
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                raise writing_fault(_NAME, error) from error

    def has(self, planes: Iterable[DensePlane]) -> bool:
        """Whether the streams of all these planes were kept."""
        return all(plane.name in self._places for plane in planes)

    def read(self, plane: DensePlane) -> PlaneStreams:
        """The kept streams of a plane.

        Raises:
            EnvironmentFault: they cannot be read back.
        """
        offset, nbytes = self._places[plane.name]
        data = bytearray(nbytes)
        assert self._file is not None
        with self._lock:
            try:
                self._file.seek(offset)
                done = self._file.readinto(data)  # type: ignore[attr-defined]
            except OSError as error:
                raise EnvironmentFault(f"{_NAME}: cannot be read back: {error.strerror or error}") from error
        if done != len(data):
            raise EnvironmentFault(f"{_NAME}: {done} of {len(data)} bytes can be read back")
        return PlaneStreams.split(plane, memoryview(data))

    def forget(self) -> None:
        """Let the page cache drop what was kept so far."""
        if self._file:
            os.fsync(self._file.fileno())
            drop_cache(self._file.fileno(), 0, self._end)
