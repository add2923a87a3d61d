"""Shards that are known by name and are not here: how many, which, and what fetches them."""

import shlex
from dataclasses import replace

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.downloads import NOTES
from csf_tool.checkpoint.hub_cache import Snapshot, advise_download
from csf_tool.checkpoint.published import known_origin
from csf_tool.codes import Code
from csf_tool.disk.reader import is_file, is_folder
from csf_tool.text import count, some

_NAMED = 3
"""Most names in one line."""


def missing_shards(checkpoint: Checkpoint) -> list[str]:
    """The shards that are known by name and are not here."""
    return [name for name in checkpoint.lacking if not is_file(checkpoint.root / name)]


def name_missing_shards(checkpoint: Checkpoint) -> None:
    """Say of missing shards how many there are, which, and what fetches them."""
    missing = [] if checkpoint.hub else missing_shards(checkpoint)
    if not missing:
        return
    in_cache = Snapshot.at(checkpoint.root) is not None
    text = _of_cache(checkpoint, missing) if in_cache else _of_folder(checkpoint, missing)
    for i, problem in enumerate(checkpoint.problems):
        if problem.code is Code.MISSING_FILE and problem.file in missing:
            checkpoint.problems[i] = replace(problem, problem=text if in_cache else f"{problem.problem}{text}")


def _of_cache(checkpoint: Checkpoint, missing: list[str]) -> str:
    """The shards of a snapshot that are there, by number, those that are not, by their first names, and the command."""
    total = _total(checkpoint)
    has = f"the Hub cache has {total - len(missing)} of {count(total, 'shard')} and lacks {some(missing, _NAMED)}"
    return f"{has}: {advise_download(checkpoint.root, '')}"


def _of_folder(checkpoint: Checkpoint, missing: list[str]) -> str:
    """The end of a sentence on one missing shard of a folder: the others, and the command if `hf download` made it."""
    them, others = "it", ""
    if len(missing) > 1:
        all_shards = count(_total(checkpoint), "shard")
        them, others = "them", f": {len(missing)} of {all_shards} are missing, {some(missing, _NAMED)}"
    return f"{others}: download {them} again{_command(checkpoint, missing)}"


def _command(checkpoint: Checkpoint, missing: list[str]) -> str:
    """The command that fetches shards into a folder that `hf download` made; it notes no repository."""
    if not is_folder(checkpoint.root / NOTES):
        return ""
    revision = known_origin(checkpoint)[1]
    words = ["hf", "download", "ORG/NAME", *map(shlex.quote, missing[:_NAMED])]
    words += ["..."] if len(missing) > _NAMED else []
    words += ["--revision", shlex.quote(revision)] if revision else []
    return f", with `{' '.join([*words, '--local-dir', shlex.quote(str(checkpoint.root))])}`"


def _total(checkpoint: Checkpoint) -> int:
    return len(checkpoint.shards) + len(checkpoint.lacking)
