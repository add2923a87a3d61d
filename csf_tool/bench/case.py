"""A workload with its tensors, in so many sets that the L2 does not hold them, and the timing of work on them."""

from collections.abc import Callable

import torch

from csf_tool.bench.results import Measure
from csf_tool.bench.timing import Timing, time_graph
from csf_tool.bench.workloads import Workload, copied
from csf_tool.gpu.scales import prepared
from csf_tool.gpu.streams import CsfStreams

ROUTINGS = 16
"""Different choices of active experts that are rotated over, for each set of streams."""

_L2_TIMES = 4
"""The rotated sets are this many times the L2 together."""


class Case:
    """The tensors of a workload, in as many sets as it takes to pass the L2."""

    def __init__(self, work: Workload, streams: CsfStreams, *, repeats: int, launches: int, l2_bytes: int) -> None:
        """Replays of a graph, launches in one at least, and the bytes that the sets shall pass."""
        self.work = work
        self.repeats, self.launches = repeats, launches
        self.streams = streams
        self.device = streams.fixed.device
        self.bytes_moved = self.streams.nbytes + work.dense_bytes
        self.sets = max(2, -(-_L2_TIMES * l2_bytes // self.bytes_moved))
        self.copies = [copied(streams) for _ in range(self.sets)]
        self.prepared = [prepared(copy) for copy in self.copies]
        size = self.prepared[0].workspace_bytes("swizzled")
        self.outs = [torch.empty(size, dtype=torch.uint8, device=self.device) for _ in range(self.sets)]

    def time(self, name: str, launch: Callable[[int], object], sets: int = 0, note: str = "") -> Measure:
        """Time `launch(i)`, which works on set i of `sets`, over all of them and over the first alone."""
        warm = time_graph(lambda _: launch(0), launches=self.launches, repeats=self.repeats)
        return Measure(name, self.time_flushed(launch, sets), warm, note)

    def time_flushed(self, launch: Callable[[int], object], sets: int = 0) -> Timing:
        """Time `launch(i)` over all `sets`, so that it finds none of its data in the L2."""
        sets = sets or self.sets
        launches = -(-self.launches // sets) * sets
        return time_graph(lambda i: launch(i % sets), launches=launches, repeats=self.repeats)
