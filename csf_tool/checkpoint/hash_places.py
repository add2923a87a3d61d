"""Files of a checkpoint that the names of a list stand for: paths on the machine where it was made.

One folder of that machine is this checkpoint's: what stands before the names in common is found by the files that are
here. A name that may be two files, or a file that has two names with different hashes, is refused.
"""

import os
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from csf_tool.checkpoint.hash_lines import Listed
from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.codes import Code
from csf_tool.disk.paths import is_safe_relative, names_in
from csf_tool.disk.reader import is_file, is_folder
from csf_tool.errors import EnvironmentFault
from csf_tool.text import brief, counted

_REMEDY = "give a list whose paths are relative to the checkpoint's folder"
_ODD = str.maketrans(dict.fromkeys([*map(chr, range(1, 32)), "\\", ":"], "_"))

_MOST_PARTS = 40
"""Deepest path that is looked into for another folder's: each of its parts may be where the checkpoint begins."""


class _Base(NamedTuple):
    """A folder of a list that may be the checkpoint's: its path there, and the folder in the checkpoint that it is."""

    there: tuple[str, ...] = ()
    here: str = ""

    def above(self) -> Iterator["_Base"]:
        """The folders above it in the list, as bases."""
        return (_Base(self.there[:i], self.here) for i in range(len(self.there)))


_AS_IT_IS = _Base()

_Hits = dict[_Base, dict[int, str]]
"""For each base that some entry has a file by: the files, by the entry's position."""


@dataclass(frozen=True)
class Place:
    """A checkpoint's folder, the names of its files on the Hub, and what it is called in messages."""

    root: Path
    far: Container[str] = ()
    label: str = ""

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return name in self.far or (stays_inside(name) and is_file(self.root / name))

    def is_named(self, there: tuple[str, ...]) -> bool:
        """Whether a folder of a list has this folder's name, or is this very folder."""
        real = Path(os.path.realpath(self.root))
        return there[-1:] in ((self.root.name,), (real.name,)) or there == real.parts

    def folders(self) -> list[str]:
        """The folders right in it that are not hidden."""
        try:
            return [n for n in names_in(self.root) if not n.startswith(".") and is_folder(self.root / n)]
        except EnvironmentFault:
            return []


def stays_inside(name: str) -> bool:
    """Whether a name is that of a file in the folder, here: POSIX takes any character but a separator in names."""
    return is_safe_relative(name.translate(_ODD) if os.name == "posix" else name)


def place(entries: list[Listed], at: Place, where: str) -> tuple[list[Listed], list[Problem]]:
    """The entries by the names of their files here; those that nothing explains keep the name that they have.

    The problems are what may be several files, as errors, and as a warning that other folders are listed too.
    """
    has = cache(at.has)
    hits = _hits(entries, [""], has)
    bases = _accepted(hits, at) if hits else _accepted(_hits(entries, at.folders(), has), at)
    if not bases:
        return entries, []
    return _Placing(entries, bases, where, is_named=all(at.is_named(base.there) for base in bases)).result()


def _hits(entries: list[Listed], folders: list[str], has: Callable[[str], bool]) -> _Hits:
    hits: _Hits = {}
    for i, entry in enumerate(entries):
        for there, rest in _splits(entry.name):
            for folder in folders:
                if has(name := f"{folder}/{rest}" if folder else rest):
                    hits.setdefault(_Base(there, folder), {})[i] = name
    return hits


def _splits(name: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every way to take a name for a folder there and a path in it; on Windows backslashes part them, too."""
    yield (), name
    for path in dict.fromkeys((name, name.replace("\\", "/"))):
        parts = _parts(path)
        for i in range(len(parts) if len(parts) <= _MOST_PARTS else 0):
            rest = "/".join(parts[i:])
            if (i or rest != name) and parts[i] != "/":
                yield parts[:i], rest


def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    return ("/", *parts) if path.startswith("/") else parts


def _accepted(hits: _Hits, at: Place) -> _Hits:
    """The bases to go by. Names as they are come first, unless a folder of the checkpoint's name explains more.

    A base counts only where no other explains the same entries and more, nor one above it more than it does: a file
    that is missing in a folder below is not the one of its name above.
    """
    if not hits:
        return {}
    by_entry: dict[int, list[_Base]] = {}
    for base, found in hits.items():
        for i in found:
            by_entry.setdefault(i, []).append(base)
    best = [b for b, found in hits.items() if not any(found.keys() < hits[o].keys() for o in by_entry[min(found)])]
    best = [b for b in best if not any(len(hits.get(above, ())) > len(hits[b]) for above in b.above())]
    named = [base for base in best if at.is_named(base.there)]
    most = max((len(hits[base]) for base in named), default=0)
    if len(hits.get(_AS_IT_IS, ())) >= max(most, 1):
        return {_AS_IT_IS: hits[_AS_IT_IS]}
    files = [name for base in best for name in set(hits[base].values())]
    if named and (len(set(files)) < len(files) or most == max(len(hits[base]) for base in best)):
        best = named
    return {base: hits[base] for base in best}


class _Placing:
    """The entries of a list, by the bases that were accepted."""

    def __init__(self, entries: list[Listed], bases: _Hits, where: str, *, is_named: bool) -> None:
        self._entries, self._bases, self._where, self._is_named = entries, bases, where, is_named
        self._placed: list[Listed] = []
        self._ambiguous: list[str] = []
        self._elsewhere: list[Listed] = []
        self._first: dict[tuple[str, str], tuple[_Base, Listed]] = {}

    def result(self) -> tuple[list[Listed], list[Problem]]:
        """The entries with names of files here, and the problems."""
        for i, entry in enumerate(self._entries):
            self._take(i, entry)
        problems = [Problem(text, Code.HASH_DAMAGED, self._where) for text in self._ambiguous]
        if self._elsewhere:
            text = f"not compared: {counted(list(map(_said, self._elsewhere)), 'entry')}, of other folders"
            problems.append(Problem(text, Code.OTHER_LIST, self._where, severity=Severity.WARNING))
        return self._placed, problems

    def _take(self, i: int, entry: Listed) -> None:
        names = {found[i]: base for base, found in self._bases.items() if i in found}
        if len(names) > 1:
            self._ambiguous.append(f"{_said(entry)} may mean {' or '.join(sorted(names))}: {_REMEDY}")
        elif names:
            ((name, base),) = names.items()
            self._add(entry._replace(name=name), base, entry)
        elif (missing := self._missing(entry)) is not None:
            self._placed.append(entry._replace(name=missing))
        elif self._is_named:  # what else was listed with the folder of this name is of no concern
            self._elsewhere.append(entry)
        else:
            self._placed.append(entry)

    def _add(self, placed: Listed, base: _Base, entry: Listed) -> None:
        before, other = self._first.setdefault((placed.name, placed.algorithm), (base, entry))
        if before != base and other.digest != entry.digest:
            text = f"both {_said(other)} and {_said(entry)} may mean {placed.name}, and their hashes differ: {_REMEDY}"
            self._ambiguous.append(text)
        else:
            self._placed.append(placed)

    def _missing(self, entry: Listed) -> str | None:
        """The name of a file that is not here, in the first base that its path begins with."""
        for base in sorted(self._bases, key=lambda base: len(base.there)):
            for there, rest in _splits(entry.name):
                if there == base.there:
                    return f"{base.here}/{rest}" if base.here else rest
        return None


def _said(entry: Listed) -> str:
    return brief(entry.name) + (f" (line {entry.line})" if entry.line else "")
