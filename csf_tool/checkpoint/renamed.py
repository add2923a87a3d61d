"""Copies of a model under other names: a `consolidated.safetensors` with Mistral's, or one with an older prefix.

They are known by their structure: about as many tensors as are listed, of the same dtypes and shapes, and called after
another scheme. Further layers and draft models have names of the same scheme, or are much smaller.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from csf_tool.checkpoint.names import Patterns, dense_name, layer_of
from csf_tool.checkpoint.numbered import numbered
from csf_tool.checkpoint.stored import Shard

_ALIKE = 0.9
"""Least share of tensors that a copy has of its model's, or the model of its copy's."""

_ALIKE_BYTES = 0.85
"""Least share of bytes in tensors that look alike; either may have dense scales where the other has streams."""


class _Looks(NamedTuple):
    """A tensor without its name."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def renamed_copies(others: Sequence[Shard], names: Collection[str], listed: Sequence[Shard]) -> set[str]:
    """Choose among shards that hold none of `names` those that are copies, each alone or as a numbered set.

    `listed` are the shards that hold the tensors of these names; empty where not all of them are here.
    """
    sets: dict[object, list[Shard]] = {}
    for shard in others:
        place = numbered(shard.name)
        sets.setdefault(place.set if place else shard.name, []).append(shard)
    return {shard.name for shards in sets.values() if _is_copy(shards, names, listed) for shard in shards}


def _is_copy(shards: list[Shard], names: Collection[str], listed: Sequence[Shard]) -> bool:
    own = list({dense_name(name): None for shard in shards for name in shard.header.names})
    if min(len(own), len(names)) < _ALIKE * max(len(own), len(names)) or not own:
        return False
    pattern_of = Patterns().of
    known = set(map(pattern_of, names))
    patterns = list(map(pattern_of, own))
    if _share(patterns, known) > 1 - _ALIKE:
        return False
    has_layers = len({layer_of(name) for name, pattern in zip(own, patterns, strict=True) if "*" in pattern}) > 1
    is_other_scheme = _share(list(map(_ending, patterns)), set(map(_ending, known))) < 0.5
    return (has_layers or is_other_scheme) and (not listed or _look_alike(shards, listed))


def _share(items: Sequence[str], known: Collection[str]) -> float:
    return sum(item in known for item in items) / len(items)


def _ending(pattern: str) -> str:
    """The last two parts of a name: the projection, and what it is of it."""
    return ".".join(pattern.split(".")[-2:])


def _look_alike(shards: Sequence[Shard], listed: Sequence[Shard]) -> bool:
    """Whether most bytes of each are in tensors that look like those of the other."""
    mine, theirs = _looks(shards), _looks(listed)
    common, least = _bytes(mine & theirs), _ALIKE_BYTES * max(_bytes(mine), _bytes(theirs))
    return common >= least


def _looks(shards: Sequence[Shard]) -> Counter[_Looks]:
    headers = [shard.header for shard in shards]
    return Counter(
        _Looks(dtype, shape, end - begin)
        for header in headers
        for dtype, shape, begin, end in zip(header.dtypes, header.shapes, header.begins, header.ends, strict=True)
    )


def _bytes(looks: Counter[_Looks]) -> int:
    return sum(look.nbytes * times for look, times in looks.items())
