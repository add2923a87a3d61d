"""Decoding on a GPU, compared with the CPU's: all planes, or a sample that finds what is wrong with a kernel.

A wrong kernel, driver or card seldom spoils one plane alone. It spoils a geometry, all planes of a batch but the first,
a place in a batch, or planes with many exceptions. So a sample has of each geometry planes 0, 1, 2, 4, 8 and so on,
planes in a stride that meets every place in a batch, and each plane that has more exceptions than those before it.
Where a published hash or a reference says what a plane must be, a wrong plane cannot pass; so that it is not called a
fault of the checkpoint, `require_same` decodes it again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from zlib import crc32

import numpy as np

from csf_tool.checkpoint.streams import PlaneStreams
from csf_tool.coders.coded import CodedPlane
from csf_tool.coders.decoder import Decoder
from csf_tool.errors import EnvironmentFault

SAMPLE_EVERY = 61
"""A sample has one plane in so many of each geometry: a prime, so that it falls on every place in a batch."""


class CrossCheckedDecoder:
    """Compares planes that another decoder decodes with the CPU's: one in `every` of each geometry, and odd ones."""

    def __init__(self, inner: Decoder, every: int) -> None:
        self._inner = inner
        self._every = every
        self.device = inner.device

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[CodedPlane]:
        """See `Decoder.decode`.

        Raises:
            EnvironmentFault: the device gives other bytes than the CPU.
        """
        sample = _Sample(self._every)
        for decoded in self._inner.decode(streams):
            if sample.takes(decoded.streams):
                require_same(decoded, self.device)
                yield replace(decoded, agreed=True)
            else:
                yield decoded


class _Sample:
    """The planes of one shard that are compared.

    The stride starts elsewhere in each shard, so that it does not always leave out the same, but where the name of the
    first plane says, so that another run compares the same planes.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._seen = Counter[tuple[str, int, int]]()
        self._most: dict[tuple[str, int, int], int] = {}
        self._start: dict[tuple[str, int, int], int] = {}

    def takes(self, streams: PlaneStreams) -> bool:
        """Whether the next plane is one of them."""
        plane, exceptions = streams.plane, len(streams.exceptions)
        kind = plane.fmt.name, plane.rows, plane.cols
        seen, most = self._seen[kind], self._most.get(kind, -1)
        start = self._start.setdefault(kind, crc32(plane.name.encode("utf-8", "surrogatepass")))
        self._seen[kind] += 1
        self._most[kind] = max(exceptions, most)
        is_power_of_two = seen & (seen - 1) == 0
        return is_power_of_two or (start + seen) % self._every == 0 or exceptions > most


def require_same(decoded: CodedPlane, device: str) -> None:
    """Check that the CPU decodes a plane to the same scales as the device did.

    Raises:
        EnvironmentFault: it does not.
    """
    if not np.array_equal(decoded.scales, decoded.streams.decode()):
        raise EnvironmentFault(
            f"{decoded.plane.name}: {device} gives other bytes than the CPU: do not trust this device or its driver; "
            "--device cpu works without it"
        )
