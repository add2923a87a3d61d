"""Whether a run over a checkpoint keeps its files in the system's page cache."""

import os

from csf_tool.checkpoint.checkpoint import Checkpoint


def should_drop_cache(checkpoint: Checkpoint, wanted: bool | None) -> bool:
    """Whether a run drops its files from the page cache: as asked for, or when they are larger than half of memory."""
    if wanted is not None or not hasattr(os, "sysconf"):
        return bool(wanted)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sum(shard.size for shard in checkpoint.shards) > memory // 2
