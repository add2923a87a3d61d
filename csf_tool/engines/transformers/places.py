"""The files of a container whose metadata/ is loaded as a model: its shards, which lie beside that."""

from pathlib import Path
from typing import Any

from csf_tool.checkpoint.open import open_checkpoint

_Resolved = tuple[list[str], dict[str, Any] | None]
"""Files, and the index where there are several: what `modeling_utils._get_resolved_checkpoint_files` gives."""


def files_of(container: Path) -> _Resolved:
    """The shards of a container, and where its stored tensors are.

    Raises:
        CheckpointError: not one of them can be read.
        EnvironmentFault: the system cannot read them.
    """
    checkpoint = open_checkpoint(container)
    files = sorted(str(shard.path) for shard in checkpoint.shards)
    weight_map = {located.tensor.name: located.shard.file for located in checkpoint.tensors()}
    index = {"all_checkpoint_keys": list(weight_map), "weight_map": weight_map}
    return files, index if len(files) > 1 else None
