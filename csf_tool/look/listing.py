"""ls: the tensors of a checkpoint, dense or as stored, by its headers."""

import fnmatch
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import NamedTuple

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.names import parse_stream_name
from csf_tool.errors import UsageError
from csf_tool.nearest import did_you_mean


class Listed(NamedTuple):
    """A tensor of the list. `format` is that of the CSF plane that it is, or is a stream of."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    shard: str
    format: str | None


class _Entry(NamedTuple):
    """A row of the table of stored tensors, and the place in the table of planes of the plane that it holds."""

    row: int
    plane: int | None


@dataclass(frozen=True)
class Listing:
    """The chosen tensors, shard by shard in the order of the data. They are made anew each time: there can be millions.

    Of a plane, the dense scale stands where its fixed stream is stored; `stored` lists the two streams instead.
    """

    checkpoint: Checkpoint
    stored: bool
    pattern: str | None
    _entries: list[_Entry]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Listed]:
        planes, table = self.checkpoint.plane_table, self.checkpoint.plane_table.stored
        for row, plane in self._entries:
            shard = table.shards[row].name
            kind = None if plane is None else planes.kinds[planes.kind_of[plane]]
            if plane is None or kind is None or self.stored:
                fmt = kind.fmt.name if kind else None
                yield Listed(table.names[row], table.dtypes[row], table.shapes[row], table.nbytes(row), shard, fmt)
            else:
                shape, nbytes = (kind.rows, kind.cols), kind.dense_bytes
                yield Listed(planes.names[plane], kind.dtype, shape, nbytes, shard, kind.fmt.name)


def list_tensors(checkpoint: Checkpoint, pattern: str | None = None, *, stored: bool = False) -> Listing:
    """List the tensors that a name or glob means, or all; of a plane it may be that of the scale or of a stream.

    Raises:
        UsageError: it means nothing.
    """
    entries = _entries(checkpoint, stored)
    if pattern is None:
        return Listing(checkpoint, stored, pattern, entries)
    means = _meaning(pattern)
    chosen = [entry for entry in entries if any(map(means, _names(checkpoint, entry)))]
    if not chosen:
        problem = f"no tensor's name {'is' if _is_plain(pattern) else 'matches'} {pattern}"
        names = [name for entry in entries for name in _names(checkpoint, entry)]
        hint = did_you_mean(pattern, names) or _wider(pattern, names) or _near_parts(pattern, names)
        raise UsageError(f"{problem}{hint}", file=checkpoint.label)
    return Listing(checkpoint, stored, pattern, chosen)


def _entries(checkpoint: Checkpoint, stored: bool) -> list[_Entry]:
    """The rows to list; a stream whose partner is missing stands for no dense tensor."""
    planes, table = checkpoint.plane_table, checkpoint.plane_table.stored
    plane_at = dict(zip(planes.fixed, count(), strict=False))
    if stored:
        plane_at |= dict(zip(planes.exceptions, count(), strict=False))
        return [_Entry(row, plane_at.get(row)) for row in range(len(table.names))]
    rows = ((row, plane_at.get(row)) for row in range(len(table.names)))
    return [_Entry(row, plane) for row, plane in rows if plane is not None or not parse_stream_name(table.names[row])]


def _names(checkpoint: Checkpoint, entry: _Entry) -> list[str]:
    """The names by which a tensor can be meant: its own; of a plane, those of its scale and of both streams."""
    planes, names = checkpoint.plane_table, checkpoint.plane_table.stored.names
    if entry.plane is None:
        return [names[entry.row]]
    return [planes.names[entry.plane], names[planes.fixed[entry.plane]], names[planes.exceptions[entry.plane]]]


def _wider(pattern: str, names: list[str]) -> str:
    """The end of a message about a pattern that is a part of names: the glob that means them."""
    glob = f"*{pattern.strip('*')}*"
    return f"; did you mean '{glob}'?" if any(map(_meaning(glob), names)) else ""


def _near_parts(pattern: str, names: list[str]) -> str:
    """The end of a message about words of a pattern that no name has: near parts of names."""
    parts = set(chain.from_iterable(name.split(".") for name in names))
    words = [
        word for word in re.split(r"[^\w-]+", pattern) if len(word) > 1 and not any(word in part for part in parts)
    ]
    return next((said for word in words if (said := did_you_mean(word, sorted(parts)))), "")


def _is_plain(pattern: str) -> bool:
    return not re.search(r"[*?\[]", pattern)


def _meaning(pattern: str) -> Callable[[str], bool]:
    """Whether a name is meant: it is the pattern itself, or matches it as a glob."""
    glob = re.compile(fnmatch.translate(pattern)).match
    return lambda name: name == pattern or glob(name) is not None
