"""`csf_tool.stats` and `csf_tool.plan`: what a checkpoint holds, by its headers."""

from csf_tool.api.calling import OnProgress, Source, opened, progress_to, public
from csf_tool.documents.plan import PlanDocument, plan_document
from csf_tool.documents.stats import StatsDocument, stats_document
from csf_tool.errors import UsageError
from csf_tool.look.plan import make_plan
from csf_tool.look.stats import collect_stats
from csf_tool.running.jobs import default_jobs
from csf_tool.text import parse_size


@public
def stats(
    checkpoint: Source, *, scales: bool = False, all_shards: bool = False, on_progress: OnProgress | None = None
) -> StatsDocument:
    """Compressed against dense sizes of the block scales, as `csf-tool stats --json` gives them.

    What is wrong with the checkpoint is in `problems`, and raises nothing.

    Args:
        checkpoint: a folder, a file, a repository on the Hub, or what `open_checkpoint` gave.
        scales: read and decode all scales, too, and count their bytes (`scale_bytes`).
        all_shards: leave no shard out, though the index does not list it.
        on_progress: called with the bytes done and the bytes to do; only `scales` takes time.

    Raises:
        UsageError: there is nothing of that name, or no checkpoint.
        CheckpointError: not a shard of it can be read, or its manifest or index cannot.
        EnvironmentFault: the system, or the network, cannot read it.
    """
    with opened("checkpoint", checkpoint, all_shards=all_shards) as source:
        found = collect_stats(source)
        if scales:
            from csf_tool.coders.decoder import NumpyDecoder
            from csf_tool.look.scale_bytes import count_scale_bytes

            progress = progress_to(on_progress)
            found.scale_bytes = count_scale_bytes(source, NumpyDecoder(), progress, default_jobs())
            found.problems = found.problems + found.scale_bytes.problems
        return stats_document(found)


@public
def plan(
    checkpoint: Source,
    *,
    resident: int | None = None,
    gpu_memory: int | str | None = None,
    tp: int = 1,
    all_shards: bool = False,
) -> PlanDocument:
    """GPU memory of scales decoded when loading, and kept compressed, as `csf-tool plan --json` gives it.

    Args:
        checkpoint: a folder, a file, a repository on the Hub, or what `open_checkpoint` gave.
        resident: stacks that stay in GPU memory; all when None.
        gpu_memory: memory of one GPU, in bytes or as on the command line ("96GiB").
        tp: GPUs that the stacks are divided among.
        all_shards: leave no shard out, though the index does not list it.

    Raises:
        UsageError: it has no CSF planes, or fewer stacks than `resident`; or as `stats`.
        CheckpointError: as `stats`.
        EnvironmentFault: as `stats`.
    """
    if tp < 1:
        raise UsageError(f"tp {tp}: give 1 or more")
    try:
        memory = parse_size(gpu_memory) if isinstance(gpu_memory, str) else gpu_memory
    except ValueError as error:
        raise UsageError(f"gpu_memory {gpu_memory}: {error}") from error
    with opened("checkpoint", checkpoint, all_shards=all_shards) as source:
        return plan_document(make_plan(source, resident, memory, tp))
