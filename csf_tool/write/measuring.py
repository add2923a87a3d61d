"""Exceptions of planes, counted by encoding them, before anything is written."""

from dataclasses import dataclass

from csf_tool.cancel import CancelToken
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.page_cache import should_drop_cache
from csf_tool.checkpoint.plane_tables import DensePlane
from csf_tool.checkpoint.streams import Readers
from csf_tool.coders.encoder import Encoder, read_scales
from csf_tool.progress import Amount, OnBytes, Progress, SharedProgress
from csf_tool.running.jobs import run_with_progress
from csf_tool.write.encoding import require_lossless
from csf_tool.write.kept_streams import KeptStreams
from csf_tool.write.run import WriteOptions


@dataclass(frozen=True)
class _Measuring:
    """Everything that a job needs to count the exceptions of the planes of one shard."""

    planes: list[DensePlane]
    encoder: Encoder
    kept: KeptStreams | None
    drop_cache: bool


def count_exceptions(
    checkpoint: Checkpoint,
    encoder: Encoder,
    kept: KeptStreams | None,
    progress: Progress,
    how: WriteOptions,
    planes: list[DensePlane],
) -> dict[str, int]:
    """Encode planes, shard by shard, to count the exceptions of each; streams that this run will write are kept."""
    shared, cancel = SharedProgress(progress), CancelToken(checkpoint.stop_fetching)
    mine = {shard.name for i, shard in enumerate(checkpoint.shards) if how.share.takes(i)}
    by_shard: dict[str, list[DensePlane]] = {}
    for plane in planes:
        by_shard.setdefault(plane.scale.shard.name, []).append(plane)
    drop_cache = should_drop_cache(checkpoint, how.drop_cache)
    tasks = [_Measuring(some, encoder, kept if name in mine else None, drop_cache) for name, some in by_shard.items()]
    counts: dict[str, int] = {}
    nbytes = sum(plane.dense_bytes for plane in planes)
    encoder.expect(nbytes, min(how.jobs, len(tasks)))
    shared.start("encode", Amount(nbytes, len(tasks)))

    def done(task: _Measuring, found: dict[str, int]) -> None:
        counts.update(found)
        if how.executor:  # its workers cannot report progress
            shared.advance(sum(plane.dense_bytes for plane in task.planes))
        shared.shard_done()

    run_with_progress(tasks, _measure, done, how.jobs, cancel, shared, how.executor)
    return counts


def _measure(task: _Measuring, on_bytes: OnBytes = lambda _: None) -> dict[str, int]:
    counts = {}
    with Readers() as readers, readers.unchanged():
        readers.expect(plane.scale for plane in task.planes)
        for encoded in task.encoder.encode(read_scales(readers, task.planes)):
            require_lossless(encoded, task.encoder.device)
            counts[encoded.plane.name] = len(encoded.streams.exceptions)
            if task.kept:
                task.kept.keep(encoded.streams)
            on_bytes(encoded.plane.dense_bytes)
        if task.drop_cache:
            readers.forget()
            if task.kept:
                task.kept.forget()
    return counts
