"""Byte values of the block scales, layer by layer. Odd ones are data like any other: nothing changes them."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from csf_tool.cancel import CancelToken
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.experts import Experts
from csf_tool.checkpoint.names import natural_key
from csf_tool.checkpoint.plane_tables import DensePlane, Plane
from csf_tool.checkpoint.problems import Problem
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.codec.formats import CsfFormat
from csf_tool.codec.values import scale_values
from csf_tool.coders.decoder import Decoder
from csf_tool.coders.encoder import read_scales
from csf_tool.errors import CheckpointError
from csf_tool.progress import Amount, OnBytes, Progress, SharedProgress
from csf_tool.running.jobs import run_with_progress

_VALUES = 256


class LayerFormat(NamedTuple):
    """Scales that are counted together: those of one layer and one format."""

    layer: str
    fmt: CsfFormat


@dataclass
class ByteCounts:
    """Number of scales that have each byte value: `by_value[256]`."""

    by_value: NDArray[np.int64]
    fmt: CsfFormat

    @property
    def scales(self) -> int:
        """Number of scales."""
        return int(self.by_value.sum())

    @property
    def nan(self) -> int:
        """Scales that are not a number."""
        return int(self.by_value[np.isnan(scale_values(self.fmt))].sum())

    @property
    def negative(self) -> int:
        """Numbers with the sign bit set, -0 among them; none in a format without one."""
        return int(self.by_value[np.signbit(scale_values(self.fmt))].sum())

    @property
    def zero(self) -> int:
        """Bytes 0x00: the number 0 in E4M3, the smallest power of two in E8M0."""
        return int(self.by_value[0])


@dataclass
class ScaleBytes:
    """The counts, and the planes that could not be counted."""

    counts: dict[LayerFormat, ByteCounts] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@dataclass
class _ShardPlanes:
    """The planes of one shard, compressed and dense."""

    csf: list[Plane] = field(default_factory=list)
    dense: list[DensePlane] = field(default_factory=list)

    @property
    def all(self) -> Iterator[Plane | DensePlane]:
        """All planes, the compressed ones first."""
        yield from self.csf
        yield from self.dense


def count_scale_bytes(checkpoint: Checkpoint, decoder: Decoder, progress: Progress, jobs: int) -> ScaleBytes:
    """Read and decode every block scale, and count bytes. A broken plane is a problem that does not stop the rest.

    Raises:
        EnvironmentFault: the system cannot read.
    """
    shards: dict[str, _ShardPlanes] = defaultdict(_ShardPlanes)
    for plane in checkpoint.planes:
        shards[plane.fixed.shard.name].csf.append(plane)
    for dense in checkpoint.dense_planes:
        shards[dense.scale.shard.name].dense.append(dense)
    shared, cancel = SharedProgress(progress), CancelToken(checkpoint.stop_fetching)
    nbytes = sum(plane.dense_bytes for shard in shards.values() for plane in shard.all)
    shared.start("count", Amount(nbytes, len(shards)))
    counts: dict[LayerFormat, NDArray[np.int64]] = defaultdict(lambda: np.zeros(_VALUES, np.int64))
    problems: list[Problem] = []

    def add(_: _ShardPlanes, counter: _Counter) -> None:
        for group, by_value in counter.counts.items():
            counts[group] += by_value
        problems.extend(counter.problems)
        shared.shard_done()

    def count_bytes(shard: _ShardPlanes, on_bytes: OnBytes) -> _Counter:
        return _Counter(shard, checkpoint.experts, on_bytes).run(decoder)

    run_with_progress(shards.values(), count_bytes, add, jobs, cancel, shared)
    groups = sorted(counts, key=lambda group: (natural_key(group.layer), group.fmt.name))
    problems.sort(key=lambda problem: (problem.file, problem.tensor))
    return ScaleBytes({group: ByteCounts(counts[group], group.fmt) for group in groups}, problems)


class _Counter:
    """Counts the bytes of one shard's planes."""

    def __init__(self, shard: _ShardPlanes, experts: Experts, on_bytes: OnBytes) -> None:
        self._shard = shard
        self._experts = experts
        self._on_bytes = on_bytes
        self.counts: dict[LayerFormat, NDArray[np.int64]] = defaultdict(lambda: np.zeros(_VALUES, np.int64))
        self.problems: list[Problem] = []

    def run(self, decoder: Decoder) -> "_Counter":
        """Go through the shard once."""
        with Readers() as readers:
            for decoded in decoder.decode(self._good_streams(readers)):
                self._add(decoded.plane, decoded.scales)
            for dense in self._shard.dense:
                try:
                    [read] = read_scales(readers, [dense])
                    self._add(dense, read.scales)
                except CheckpointError as error:
                    self._skip(dense.scale.shard.name, dense.name, error)
        return self

    def _good_streams(self, readers: Readers) -> Iterator[PlaneStreams]:
        for plane in self._shard.csf:
            try:
                yield readers.streams(plane).require_decodable()
            except CheckpointError as error:
                self._skip(plane.fixed.shard.name, plane.name, error)

    def _add(self, plane: Plane | DensePlane, scales: NDArray[np.uint8]) -> None:
        group = LayerFormat(self._experts.layer_of(plane.name), plane.fmt)
        self.counts[group] += np.bincount(scales.reshape(-1), minlength=_VALUES)
        self._on_bytes(scales.size)

    def _skip(self, file: str, name: str, error: CheckpointError) -> None:
        self.problems.append(Problem.of(error.within("not counted"), file, name))
