"""Shards that are left out: a list says which files count where two of them hold a tensor.

The list is the index. Without one it is the header of `model.safetensors`, which loaders take first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.index import Index, is_index_name
from csf_tool.checkpoint.names import dense_name
from csf_tool.checkpoint.problems import Problem, Problems
from csf_tool.checkpoint.renamed import renamed_copies
from csf_tool.checkpoint.shard_headers import prepare, read_shard
from csf_tool.checkpoint.stored import Shard
from csf_tool.codes import Code
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.paths import names_in
from csf_tool.errors import CheckpointError, EnvironmentFault
from csf_tool.text import count, counted, verb

SINGLE_FILE = f"model{SHARD_SUFFIX}"
"""The one shard of a checkpoint that has no index; transformers takes it before any index."""

_TAKEN_ALL_THE_SAME = "--all-shards uses it"


@dataclass(frozen=True)
class Deciding:
    """A list of shards that count: its name, and the shard of each tensor, by the name in the dense checkpoint."""

    name: str
    homes: Mapping[str, str]
    is_index: bool = True

    @classmethod
    def by_index(cls, index: Index, listed: Iterable[Shard]) -> "Deciding":
        """The list that an index is, with what it forgot of those of its shards that are here."""
        held = {dense_name(name): shard.name for shard in listed for name in shard.header.names}
        return cls(index.name, held | {dense_name(name): shard for name, shard in index.weight_map.items()})

    @classmethod
    def by_single_file(cls, shard: Shard) -> "Deciding":
        """The list that the header of `model.safetensors` is."""
        return cls(shard.name, {dense_name(name): shard.name for name in shard.header.names}, is_index=False)

    @property
    def about(self) -> str:
        """The beginning of what is said of a shard that is not in the list."""
        return f"{self.name} does not list this shard" if self.is_index else "no index lists this shard"


def take_unlisted(checkpoint: Checkpoint, names: list[str], deciding: Deciding, read: Mapping[str, Shard]) -> None:
    """Add to a checkpoint those of its unlisted shards that hold other tensors, and leave the rest out.

    A copy of the model under other names is none of other tensors.

    `read` are shards that have been read already. The list alone decides, and not which of its shards are here: a run
    that removes its source must find the same ones again.
    """
    listed = {shard.name: shard for shard in checkpoint.shards}
    lacks_listed = bool(checkpoint.lacking)  # what seems to be new may stand in these
    prepare(checkpoint, names)
    others: dict[str, tuple[Shard, Problems]] = {}
    for name in names:
        problems = Problems()
        try:
            shard = read.get(name) or read_shard(checkpoint, name, problems)
        except (CheckpointError, EnvironmentFault) as error:
            if isinstance(error, EnvironmentFault) and (checkpoint.hub or not deciding.is_index):
                raise
            if deciding.is_index:
                _leave_out(checkpoint, name, f"{deciding.about}, and it cannot be read: {error.problem}: left out")
            else:
                checkpoint.lacking.append(name)
                checkpoint.problems.append(Problem(error.problem, error.code, name))
            continue
        homes = {tensor: home for tensor in shard.header.names if (home := deciding.homes.get(dense_name(tensor)))}
        if not homes:
            others[name] = shard, problems
        elif len(homes) < len(shard.header) and not lacks_listed:
            checkpoint.lacking.append(name)
            checkpoint.problems.error(_mixed(shard, deciding, homes), Code.TENSOR_IN_TWO_SHARDS, name)
        else:
            damage = f"; it is damaged: {problems[0].problem}" if problems else ""
            _leave_out(checkpoint, name, _whole(shard, deciding, homes, listed) + damage)
    found = [shard for shard, _ in others.values()]
    copies = renamed_copies(found, deciding.homes, [] if lacks_listed else list(listed.values()))
    for name, (shard, problems) in others.items():
        if name in copies:
            text = (
                f"{deciding.about}: it holds a copy of the model under other names, for example {shard.header.names[0]}"
            )
            _leave_out(checkpoint, name, f"{text}: left out ({_TAKEN_ALL_THE_SAME})")
        else:
            checkpoint.shards.append(shard)
            checkpoint.problems += problems


def _leave_out(checkpoint: Checkpoint, name: str, text: str) -> None:
    checkpoint.aside.append(name)
    checkpoint.problems.warn(text, Code.SHARD_LEFT_ASIDE, name)


def _whole(shard: Shard, deciding: Deciding, homes: Mapping[str, str], listed: Mapping[str, Shard]) -> str:
    """Why a shard does not count, all of whose tensors have another home."""
    there = {
        home: {dense_name(name) for name in listed[home].header.names} for home in {*homes.values()} & listed.keys()
    }
    stand = all(dense_name(name) in there.get(home, ()) for name, home in homes.items())
    number = len(shard.header)
    which = f"all of its {number:,} tensors" if number > 1 else "its only tensor"
    which = which if len(homes) == number else f"{len(homes):,} of its {number:,} tensors"
    verb = ("are" if number > 1 else "is") if stand else ("belong" if number > 1 else "belongs")
    why = f"{which} {verb} in {_some_shards(homes)}{' as well' if stand else ', by the index'}"
    first = "; transformers loads a file of this name first" if shard.name == SINGLE_FILE else ""
    return f"{deciding.about}: {why}: left out ({_TAKEN_ALL_THE_SAME}){first}"


def _mixed(shard: Shard, deciding: Deciding, homes: Mapping[str, str]) -> str:
    """Why a shard can neither be taken nor left out, some of whose tensors have another home."""
    new = [name for name in shard.header.names if name not in homes]
    are = verb(len(homes), "is", "are")
    twice = f"{len(homes):,} of its {len(shard.header):,} tensors {are} in {_some_shards(homes)} as well"
    others = f"{counted(new, 'tensor')}, {verb(len(new), 'is', 'are')} only here"
    return f"{deciding.about}: {twice}, but {others}: remove it, or keep only the new tensors in it"


def _some_shards(homes: Mapping[str, str]) -> str:
    shards = sorted(set(homes.values()))
    return shards[0] if len(shards) == 1 else f"{len(shards):,} other shards"


def note_other_indexes(checkpoint: Checkpoint, index: Index) -> None:
    """Warn of further indexes at the top that place tensors in shards that are left out."""
    aside = set(checkpoint.aside)
    for name in names_in(index.root) if aside else ():
        if not is_index_name(name) or name.startswith(".") or name == index.name:
            continue
        try:
            shards = Index(index.root, name).shards & aside
        except CheckpointError:
            continue  # a file beside the shards like any other
        if shards:
            were = verb(len(shards), "was", "were")
            text = f"is the index of {count(len(shards), 'shard')} that {were} left out: {index.name} is the one in use"
            checkpoint.problems.warn(text, Code.SHARD_LEFT_ASIDE, name)
