"""Time GPU work by replaying it from a CUDA graph, so that launching it from Python costs nothing."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

ENOUGH_REPEATS = 10
"""Fewer repeats than this have no deciles worth the name: their figures are shown, and nothing is concluded."""

Launch = Callable[[int], object]
"""Queues the work on input set `i`, counted without end: the callee takes it modulo its number of sets."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one launch: the median of `repeats` replays, and the range that 80% of them are in."""

    median_us: float
    low_us: float
    high_us: float
    repeats: int


def time_graph(launch: Launch, *, launches: int, repeats: int) -> Timing:
    """Time `launch`, captured `launches` times in a row in a graph that is replayed `repeats` times.

    Set i of call i: a launch that rotates over sets larger than the L2 together finds none of its data there.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launch(0)  # compiles
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            launch(i)
    return _repeat(graph.replay, launches, repeats)


def time_eager(launch: Launch, *, launches: int, repeats: int) -> Timing:
    """Time work that cannot be captured, its launching included."""

    def replay() -> None:
        for i in range(launches):
            launch(i)

    return _repeat(replay, launches, repeats)


def _repeat(replay: Callable[[], None], launches: int, repeats: int) -> Timing:
    for _ in range(3):
        replay()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / launches)
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    return Timing(statistics.median(times), deciles[0], deciles[-1], repeats)
