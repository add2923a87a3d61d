"""The checkpoint that an engine reads: its own choice of files decides, where that is not the one of csf_tool.

Engines have rules of their own for folders in which there are more shards than an index lists, or other ones.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import covering_recipe
from csf_tool.checkpoint.open import open_shards
from csf_tool.codes import Code
from csf_tool.loading.tensors import opened


def checkpoint_of(folder: str | os.PathLike[str], files: Iterable[str]) -> Checkpoint:
    """The checkpoint in a folder, or the one that its files alone are, where one of them is no shard of the first.

    Raises:
        CheckpointError: it is broken or incomplete, or two of the files hold a tensor of the same name.
        EnvironmentFault: the system cannot read it.
    """
    checkpoint = opened(folder)
    if not holds(checkpoint, files):
        checkpoint = opened(open_shards(Path(folder), sorted(os.path.relpath(file, folder) for file in files)))
    require_scales(checkpoint)
    return checkpoint


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
