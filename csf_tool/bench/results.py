"""Results of the benchmark: the ways to do the work, each timed, and the machine that they are of."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from csf_tool.bench.gemm_times import GemmResult
from csf_tool.bench.real_layer import Source
from csf_tool.bench.timing import Timing
from csf_tool.bench.workloads import Workload


@dataclass(frozen=True, slots=True)
class Measure:
    """One way to do the work, timed with its data out of the L2 and as far in it as fits."""

    name: str
    flushed: Timing
    warm: Timing | None = None
    note: str = ""
    moves_all: bool = True
    """Whether it moves as many bytes as the floor, so that their ratio says something."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Everything about one workload."""

    workload: Workload
    exceptions: int
    compressed_bytes: int
    prepared_bytes: int
    floor: Measure
    measures: list[Measure]
    """The ways to decode; the first is the whole stack, row-major."""

    @property
    def floor_bytes_per_s(self) -> float:
        """Bytes that streaming reads and writes a second."""
        return (self.compressed_bytes + self.workload.dense_bytes) / self.floor.flushed.median_us * 1e6

    def of_floor(self, measure: Measure) -> float | None:
        """Ratio to the floor, for measures that move as many bytes as the floor does."""
        return round(measure.flushed.median_us / self.floor.flushed.median_us, 4) if measure.moves_all else None


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """The encoder on one layer of scales: all its stacks queued, then waited for; launching and allocation included."""

    dense_bytes: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The measurements, and the machine that they are of."""

    device: str
    versions: dict[str, str]
    l2_bytes: int
    copy_bytes_per_s: float
    """Bytes read plus bytes written by a large copy, a second."""
    empty: Timing
    """A kernel that does nothing: what is in every figure."""
    cases: list[CaseResult]
    encode: EncodeResult | None
    gemms: list[GemmResult] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    source: Source | None = None
    """The checkpoint that the streams are of; None: they are made up."""
    skipped: list[str] = field(default_factory=list)
    """Measurements that could not be made, and why."""
