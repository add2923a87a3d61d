"""Lists of files with their SHA-256, in any form that `hash_forms` reads; our own state further facts in comments.

sha256sum passes comments over, so `sha256sum -c` reads our lists. Every list is read by the same rules, whether it lies
beside the shards or was saved elsewhere.
"""

import os
import re
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

from csf_tool.checkpoint.hash_forms import FORMS, parse_list, what_it_is
from csf_tool.checkpoint.hash_lines import Listed, lines_of
from csf_tool.checkpoint.hash_places import Place, place, stays_inside
from csf_tool.checkpoint.problems import Problem, errors
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash
from csf_tool.disk.near_paths import not_there
from csf_tool.disk.paths import is_safe_relative
from csf_tool.disk.reader import is_file, read_document
from csf_tool.errors import UsageError
from csf_tool.text import brief, escape
from csf_tool.version import __version__

_ORIGIN = re.compile(r"# (repository|revision|made by): (.+)")
_SIZE = re.compile(r"# size: (\d{1,19}) (.+)", re.ASCII)
_TITLE = "# SHA-256 of a checkpoint's files, for csf-tool verify --manifest and sha256sum -c"
_MAKER = f"csf-tool {__version__} verify --save-hashes"


@dataclass(frozen=True)
class HashList:
    """SHA-256 in hex by file name, sizes in bytes where they are known, and what they are the files of.

    `lines` has the line of each name; `faults` are lines that cannot be taken at their word. `maker` is who made the
    list, as it says itself. `left_out` are files whose names no list can hold.
    """

    name: str
    digests: dict[str, str]
    sizes: dict[str, int] = field(default_factory=dict)
    repository: str | None = None
    revision: str | None = None
    maker: str | None = None
    left_out: tuple[str, ...] = ()
    lines: dict[str, int] = field(default_factory=dict)
    faults: tuple[Problem, ...] = ()
    git_digests: dict[str, str] = field(default_factory=dict)
    """The hash that git gives a blob, of files that have no other: the Hub lists small ones so."""

    @property
    def names(self) -> list[str]:
        """The listed files."""
        return sorted({*self.digests, *self.git_digests})

    def hashes(self) -> list[PublishedHash]:
        """The listed hashes, as of a list that was not published."""
        kinds = (("sha256", self.digests), ("git-sha1", self.git_digests))
        return [
            PublishedHash(name, algorithm, digest, self.name, self.lines.get(name, 0), is_published=False)
            for algorithm, digests in kinds
            for name, digest in digests.items()
        ]

    def render(self) -> str:
        """The list as text."""
        origin = {"made by": _MAKER, "repository": self.repository, "revision": self.revision}
        comments = [f"# {key}: {value}" for key, value in origin.items() if value]
        comments += [f"# left out, because a line cannot hold the name: {escape(name)}" for name in self.left_out]
        comments += [f"# size: {nbytes} {name}" for name, nbytes in self.sizes.items()]
        lines = [_line(name, digest) for name, digest in self.digests.items()]
        return "\n".join([_TITLE, *comments, *lines]) + "\n"


def _line(name: str, digest: str) -> str:
    return f"{digest}  {name}"


def can_list(name: str) -> bool:
    """Whether a list gives the name of a file back as it was, on every system and to every reader of such lists."""
    raw = _line(name, "0" * 64).encode("utf-8", "replace")  # bytes that are no UTF-8 are lost
    is_plain = is_safe_relative(name) and len(name.splitlines()) == 1
    return is_plain and [listed.name for listed in parse_list(raw, "").found] == [name]


def read_entries(raw: bytes, where: str, at: Place) -> tuple[list[Listed], list[Problem]]:
    """The entries of the list `where` beside a checkpoint's shards, by the names of its files; and its faults."""
    parsed = parse_list(raw, where)
    unused = f"{parsed.instead}: csf-tool checks nothing with it"
    faults = [Problem(unused, Code.HASH_DAMAGED, where)] if parsed.instead else []
    placed, ambiguous = place(parsed.found, at, where)
    found, odd = _agreeing([listed for listed in placed if listed.name != where], where)
    return found, [*faults, *parsed.faults, *ambiguous, *odd]


def _agreeing(entries: list[Listed], where: str) -> tuple[list[Listed], list[Problem]]:
    """The entries of files in the folder; names that lead out of it, and two hashes of one file, are faults."""
    found: list[Listed] = []
    faults: list[Problem] = []
    first: dict[tuple[str, str], Listed] = {}
    for listed in entries:
        line = f"line {listed.line}" if listed.line else "an entry"
        before = first.setdefault((listed.name, listed.algorithm), listed)
        if not stays_inside(listed.name):
            text = f"{line}: file name {brief(listed.name)} leaves the checkpoint's folder or is not a plain path"
            faults.append(Problem(text, Code.UNSAFE_NAME, where))
        else:
            found.append(listed)
        if before.digest != listed.digest:
            other = f"line {before.line}" if before.line else "another entry"
            text = f"{line} has another SHA-256 for {brief(listed.name)} than {other}"
            faults.append(Problem(text, Code.HASH_DAMAGED, where))
    return found, faults


def read_hash_list(path: Path, at: Place | None = None) -> HashList:
    """The list in a file, by the names that its files have `at` a checkpoint's folder.

    Raises:
        UsageError: the file is not there, holds no SHA-256 of files, or it cannot be told which files it means.
        CheckpointError: it is too large.
        EnvironmentFault: the system cannot read it.
    """
    if not is_file(path):
        raise UsageError(not_there(path, "file"), file=str(path))
    raw = read_document(path, str(path))
    parsed = parse_list(raw, path.name)
    if not parsed.found:
        raise UsageError(f"{path}: {parsed.instead or what_it_is(raw)}; {FORMS}")
    entries, problems = place(parsed.found, at, path.name) if at else (parsed.found, [])
    if ambiguous := errors(problems):
        raise UsageError(ambiguous[0].problem, file=str(path))
    entries = [listed for listed in entries if not (at and listed.name == path.name and _is_at(path, at))]
    found, faults = _agreeing(entries, path.name)
    if at and not any(at.has(listed.name) for listed in found):
        problem = f"none of the {len(entries)} files that it lists is in {at.label or at.root}"
        raise UsageError(problem, Code.OTHER_LIST, path.name)
    if not found:
        raise UsageError(faults[0].problem, file=str(path))
    first = {listed.name: listed for listed in reversed(found)}
    origin, sizes, wrong = _comments(raw, first.keys(), path.name)
    listed_sizes = {name: listed.size for name, listed in first.items() if listed.size is not None}
    return HashList(
        path.name,
        {name: listed.digest for name, listed in reversed(first.items()) if listed.algorithm == "sha256"},
        listed_sizes | sizes,
        origin.get("repository"),
        origin.get("revision"),
        origin.get("made by"),
        lines={name: listed.line for name, listed in first.items()},
        faults=(*parsed.faults, *problems, *faults, *wrong),
        git_digests={name: listed.digest for name, listed in first.items() if listed.algorithm != "sha256"},
    )


def _is_at(path: Path, at: Place) -> bool:
    return os.path.realpath(path.absolute().parent) == os.path.realpath(at.root)


def _comments(raw: bytes, names: Container[str], where: str) -> tuple[dict[str, str], dict[str, int], list[Problem]]:
    """The comments of our own lists: their origin, the sizes of files, and contradictions in these."""
    origin: dict[str, str] = {}
    sizes: dict[str, int] = {}
    faults: list[Problem] = []
    for number, line in enumerate(lines_of(raw.decode("utf-8", "surrogateescape")), 1):
        if match := _ORIGIN.fullmatch(line):
            origin[match[1]] = match[2]
        match = _SIZE.fullmatch(line)
        if match and match[2] in names and sizes.setdefault(match[2], int(match[1])) != int(match[1]):
            text = f"line {number} has another size for {brief(match[2])} than an earlier line"
            faults.append(Problem(text, Code.HASH_DAMAGED, where))
    return origin, sizes, faults
