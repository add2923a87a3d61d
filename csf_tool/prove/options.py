"""Options of `verify`, and the refusal of shards, references and lists with which nothing could be proved."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.hash_list import HashList
from csf_tool.checkpoint.published import known_origin
from csf_tool.checkpoint.stored import Shard
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash
from csf_tool.disk.reader import is_file
from csf_tool.errors import UsageError
from csf_tool.nearest import nearest
from csf_tool.running.jobs import default_jobs
from csf_tool.text import counted


@dataclass(frozen=True)
class VerifyOptions:
    """Options of `verify`.

    `only` are names of shards, or globs, to which the reading of data is limited; `quick` reads no data at all.
    `listed` are hashes that were saved elsewhere; `save_hashes` is the name of such a list to be made.
    """

    jobs: int = field(default_factory=default_jobs)
    drop_cache: bool = False
    only: tuple[str, ...] = ()
    quick: bool = False
    listed: HashList | None = None
    save_hashes: str = ""
    all_tensors: bool = False
    """Fetch every tensor of a checkpoint on the Hub, not just the scales."""
    tensors_only: bool = False
    """Compare only tensors with the reference, not the config, the tokenizer or the headers' metadata."""
    published: list[PublishedHash] = field(default_factory=list)
    """A list of hashes of the checkpoint's files that the user gave."""
    hub: str = ""
    """The repository that `published` is from."""


def chosen_shards(checkpoint: Checkpoint, only: tuple[str, ...]) -> list[Shard]:
    """The shards whose name, with or without its folder, equals or fits one of `only`; all shards if it is empty.

    Raises:
        UsageError: no shard is called as one of them.
    """
    for glob in only:
        if not any(_fits(shard, glob) for shard in checkpoint.shards):
            names = [shard.name for shard in checkpoint.shards]
            near = nearest(glob, [*names, *(shard.file for shard in checkpoint.shards)], 1)
            if any(_fits(shard, wider := f"*{glob.strip('*')}*") for shard in checkpoint.shards):
                near = [f"'{wider}'"]
            others = f"did you mean {near[0]}?" if near else f"the checkpoint has {counted(names, 'shard')}"
            raise UsageError(f"--only {glob}: no readable shard has this name; {others}")
    return [s for s in checkpoint.shards if not only or any(_fits(s, glob) for glob in only)]


def _fits(shard: Shard, glob: str) -> bool:
    return fnmatchcase(shard.name, glob) or fnmatchcase(shard.file, glob)


def require_another(checkpoint: Checkpoint, against: Checkpoint) -> None:
    """Refuse a reference that has the same shards as the checkpoint: comparing files with themselves proves nothing.

    Raises:
        UsageError: it has.
    """
    as_files = is_file(checkpoint.path) or is_file(against.path)
    mine, theirs = (_places(side, as_files) for side in (checkpoint, against))
    if mine & theirs or (checkpoint.hub and checkpoint.is_remote and checkpoint.label == against.label):
        problem = f"--against {against.label}: is the checkpoint itself, which would prove nothing: give another copy"
        raise UsageError(problem)


def _places(checkpoint: Checkpoint, as_files: bool) -> set[tuple[int, int]]:
    """Device and inode numbers of the local shards, or of their folders, which are the same by every path."""
    here = [shard.path for shard in checkpoint.shards if not shard.remote]
    found = (path.stat() for path in ({*here} if as_files else {path.parent for path in here}))
    return {(status.st_dev, status.st_ino) for status in found}


def require_same_origin(checkpoint: Checkpoint, listed: HashList) -> None:
    """Refuse a list of another repository or revision, where both state theirs.

    Raises:
        UsageError: it is.
    """
    here = dict(zip(("repository", "revision"), known_origin(checkpoint), strict=True))
    for key, stated in (("repository", listed.repository), ("revision", listed.revision)):
        if stated and here[key] and stated != here[key]:
            problem = f"is a list of {key} {stated}, but {checkpoint.label} is of {here[key]}"
            raise UsageError(problem, Code.OTHER_LIST, listed.name)
