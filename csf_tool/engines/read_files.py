"""The checkpoint that an engine reads: its own choice of files decides, where that is not the one of csf_tool.

Engines have rules of their own for folders in which there are more shards than an index lists, or other ones.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES, covering_recipe
from csf_tool.checkpoint.open import open_checkpoint, open_shards
from csf_tool.checkpoint.problems import obstacles
from csf_tool.codes import Code
from csf_tool.disk.reader import is_file
from csf_tool.engines.containers import is_container
from csf_tool.loading.tensors import opened


def checkpoint_of(folder: str | os.PathLike[str], files: Iterable[str], *, chosen: bool = False) -> Checkpoint:
    """The checkpoint in a folder, or the one that its files alone are: where one of them is no shard of the first.

    So, too, where nothing is wrong with the first but files that no index lists, and the engine does not read; if it
    has chosen files by their names (`chosen`), the others need not be there at all.

    Raises:
        CheckpointError: it is broken or incomplete, or two of the files hold a tensor of the same name.
        EnvironmentFault: the system cannot read it.
    """
    files = list(files)
    alone = chosen and not is_container(Path(folder))
    if not alone:
        checkpoint = open_checkpoint(folder)
        if not (alone := _only_others_are_at_fault(checkpoint, files)):
            alone = not holds(opened(checkpoint), files)
    if alone:
        checkpoint = opened(open_shards(Path(folder), sorted(os.path.relpath(file, folder) for file in files)))
    require_scales(checkpoint)
    return checkpoint


def _only_others_are_at_fault(checkpoint: Checkpoint, files: Iterable[str]) -> bool:
    """Whether nothing is wrong but with files beside the ones that an index lists, of which the engine reads none."""
    if not checkpoint.index:
        return False
    read = {os.path.realpath(file) for file in files}
    at_fault = {problem.file for problem in obstacles(checkpoint.problems)} - {*CONFIG_FILES}
    return bool(at_fault) and all(
        file not in checkpoint.index.shards
        and is_file(checkpoint.root / file)
        and os.path.realpath(checkpoint.root / file) not in read
        for file in at_fault
    )


def holds(checkpoint: Checkpoint, files: Iterable[str]) -> bool:
    """Whether all of these files are shards of a checkpoint."""
    shards = {os.path.realpath(shard.path) for shard in checkpoint.shards}
    return all(os.path.realpath(file) in shards for file in files)


def require_scales(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint without the streams of a module whose recipe is marked as CSF, and without other scales.

    Raises:
        CheckpointError: a weight of the module has no scale.
    """
    problems = checkpoint.problems
    modules = {problem.tensor for problem in problems if problem.code is Code.RECIPE_WITHOUT_STREAMS}
    for problem in problems if modules else ():
        if problem.code is Code.WEIGHT_WITHOUT_SCALE and covering_recipe(problem.tensor, modules):
            raise problem.as_error()
