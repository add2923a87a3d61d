"""Places of files: the shards of a container, beside its metadata/, and the index that lists a shard."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.index import Index, is_index_name
from csf_tool.disk.paths import names_in
from csf_tool.errors import CheckpointError, EnvironmentFault
from csf_tool.loading.tensors import opened

_Resolved = tuple[list[str], dict[str, Any] | None]
"""Files, and the index where there are several: what `modeling_utils._get_resolved_checkpoint_files` gives."""


def files_of(container: Path) -> _Resolved:
    """The shards of a container, and where its stored tensors are.

    Raises:
        CheckpointError: it is broken or incomplete.
        EnvironmentFault: the system cannot read it.
    """
    checkpoint = opened(container)
    files = sorted(str(shard.path) for shard in checkpoint.shards)
    weight_map = {located.tensor.name: located.shard.file for located in checkpoint.tensors()}
    index = {"all_checkpoint_keys": list(weight_map), "weight_map": weight_map}
    return files, index if len(files) > 1 else None


def index_of(file: Path) -> Index | None:
    """The index that lists a file, in its folder or one above: of shards in folders of their own, or of a variant."""
    return next((index for index in _indexes_above(file) if _lists(index, file)), None)


def _indexes_above(file: Path) -> Iterator[Index]:
    for folder in file.parents:
        with suppress(EnvironmentFault):  # a folder far above it, which nobody may list
            yield from (Index(folder, name) for name in names_in(folder) if is_index_name(name))


def _lists(index: Index, file: Path) -> bool:
    try:
        return file.relative_to(index.root).as_posix() in index.shards
    except CheckpointError:  # it is another model's
        return False
