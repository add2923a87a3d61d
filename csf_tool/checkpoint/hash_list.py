"""Lists of files with their SHA-256, in sha256sum's format; our own state further facts in comments.

sha256sum passes comments over, so `sha256sum -c` reads our lists. Every list is read by the same rules, whether it lies
beside the shards or was saved elsewhere: a line that was meant as a hash and is none is a fault, never passed over.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from csf_tool.checkpoint.problems import Problem
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash
from csf_tool.disk.paths import is_safe_relative
from csf_tool.disk.reader import is_file, read_document
from csf_tool.errors import UsageError
from csf_tool.text import brief, escape
from csf_tool.version import __version__

_DIGEST = "(?P<digest>[0-9a-fA-F]{64})"
_LINE = re.compile(rf"(?P<escaped>\\?){_DIGEST} [ *](?P<name>.+)", re.DOTALL)
_TAGGED = re.compile(rf"(?P<escaped>\\?)SHA(?:2-)?256 ?\((?P<name>.+)\) ?= {_DIGEST}", re.DOTALL)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPED = {"\\": "\\", "n": "\n", "r": "\r"}
_OTHER_TAG = re.compile(r"\\?(?:MD5|SHA1|SHA224|SHA384|SHA512(?:/\d+)?|SHA3-\d+|BLAKE\S*|SM3|RMD160) ?\(.*\) ?= ?\S+")
_TAG = re.compile(r"\\?(?:SHA(?:2-)?256 ?\(|\S{1,12} ?\(.*\) ?= ?[0-9a-fA-F]{16})", re.DOTALL)
_LOST_DIGIT = re.compile(r"#[0-9a-fA-F]{63} [ *].+")
"""A digit 3 that lost a bit makes a comment of its line."""

_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_ODD = str.maketrans(dict.fromkeys([*map(chr, range(1, 32)), "\\", ":"], "_"))
_ORIGIN = re.compile(r"# (repository|revision|made by): (.+)")
_SIZE = re.compile(r"# size: (\d{1,19}) (.+)", re.ASCII)
_TITLE = "# SHA-256 of a checkpoint's files, for csf-tool verify --manifest and sha256sum -c"
_MAKER = f"csf-tool {__version__} verify --save-hashes"


class Listed(NamedTuple):
    """A line of a list: a file's name, its SHA-256 in hex, and the number of the line, from 1."""

    name: str
    digest: str
    line: int


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

    def hashes(self) -> list[PublishedHash]:
        """The listed hashes, as of a list that was not published."""
        return [
            PublishedHash(name, "sha256", digest, self.name, self.lines.get(name, 0), is_published=False)
            for name, digest in self.digests.items()
        ]

    def render(self) -> str:
        """The list as text."""
        origin = {"made by": _MAKER, "repository": self.repository, "revision": self.revision}
        comments = [f"# {key}: {value}" for key, value in origin.items() if value]
        comments += [f"# left out, for no line can hold the name: {escape(name)}" for name in self.left_out]
        comments += [f"# size: {nbytes} {name}" for name, nbytes in self.sizes.items()]
        lines = [_line(name, digest) for name, digest in self.digests.items()]
        return "\n".join([_TITLE, *comments, *lines]) + "\n"


def _line(name: str, digest: str) -> str:
    return f"{digest}  {name}"


def can_list(name: str) -> bool:
    """Whether a list gives the name of a file back as it was, on every system and to every reader of such lists."""
    raw = _line(name, "0" * 64).encode("utf-8", "replace")  # bytes that are no UTF-8 are lost
    found, _ = parse_lines(raw, "")
    is_plain = is_safe_relative(name) and len(name.splitlines()) == 1
    return is_plain and [listed.name for listed in found] == [name]


def parse_lines(raw: bytes, where: str) -> tuple[list[Listed], list[Problem]]:
    """Parse the lines of a list: its files in order, and its faults; `where` is the name of the list.

    Blank lines, comments, signatures and hashes of other kinds say nothing, and are no fault.
    """
    found: list[Listed] = []
    faults: list[Problem] = []
    first: dict[str, Listed] = {}
    for number, line in enumerate(_lines(raw), 1):
        if (parsed := _parse(line)) is None:
            if _was_meant_as_hash(line):
                text = f"line {number} is damaged: it is no hash and name any more"
                faults.append(Problem(text, Code.HASH_DAMAGED, where))
            continue
        listed = Listed(*parsed, number)
        before = first.setdefault(listed.name, listed)
        if not _stays_inside(listed.name):
            text = (
                f"line {number}: file name {brief(listed.name)} leaves the checkpoint's folder or is not a plain path"
            )
            faults.append(Problem(text, Code.UNSAFE_NAME, where))
        else:
            found.append(listed)
        if before.digest != listed.digest:
            text = f"line {number} gives {brief(listed.name)} another SHA-256 than line {before.line}"
            faults.append(Problem(text, Code.HASH_DAMAGED, where))
    return found, faults


def _lines(raw: bytes) -> list[str]:
    """The lines as text: names keep bytes that are no UTF-8, as paths do; a byte order mark and CRs go."""
    text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    return [line.strip(" \t\r") for line in text.split("\n")]


def _parse(line: str) -> tuple[str, str] | None:
    """File name and digest of a line as sha256sum, shasum or openssl write them; None for any other."""
    match = _LINE.fullmatch(line) or _TAGGED.fullmatch(line)
    if not match or "\0" in line:
        return None
    name = match["name"]
    if match["escaped"]:
        if any(escape[1] not in _ESCAPED for escape in _ESCAPE.finditer(name)):
            return None
        name = _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], name)
    while name.startswith("./"):
        name = name[2:]
    return name, match["digest"].lower()


def _was_meant_as_hash(line: str) -> bool:
    """Whether a line that is no hash and name was one once: cut short, mistyped, overwritten or with a flipped bit."""
    if "\0" in line or _LOST_DIGIT.fullmatch(line):
        return True
    if line.startswith("#") or _OTHER_TAG.fullmatch(line):
        return False
    start = line.removeprefix("\\")
    return bool(_TAG.match(line)) or _is_mostly_hex(start[:64]) or _is_mostly_hex(start.split(" ")[0])


def _is_mostly_hex(text: str) -> bool:
    """Whether most of a text is hex digits; False for texts of a few letters."""
    return len(text) >= 16 and 4 * sum(c in _HEX_DIGITS for c in text) >= 3 * len(text)


def _stays_inside(name: str) -> bool:
    """Whether a name is that of a file in the folder, here: POSIX takes any character but a separator in names."""
    return is_safe_relative(name.translate(_ODD) if os.name == "posix" else name)


def read_hash_list(path: Path) -> HashList:
    """The list in a file.

    Raises:
        UsageError: the file is not there, or no line of it is sha256sum's.
        CheckpointError: it is too large.
        EnvironmentFault: the system cannot read it.
    """
    if not is_file(path):
        raise UsageError(f"{path}: no such file")
    raw = read_document(path, str(path))
    found, faults = parse_lines(raw, path.name)
    if not found:
        raise UsageError(f"{path}: has no line of sha256sum's (64 hex digits, two spaces, a file name)")
    first = {listed.name: listed for listed in reversed(found)}
    origin: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for number, line in enumerate(_lines(raw), 1):
        if match := _ORIGIN.fullmatch(line):
            origin[match[1]] = match[2]
        match = _SIZE.fullmatch(line)
        if match and match[2] in first and sizes.setdefault(match[2], int(match[1])) != int(match[1]):
            text = f"line {number} gives {brief(match[2])} another size than a line before"
            faults.append(Problem(text, Code.HASH_DAMAGED, path.name))
    return HashList(
        path.name,
        {name: listed.digest for name, listed in reversed(first.items())},
        sizes,
        origin.get("repository"),
        origin.get("revision"),
        origin.get("made by"),
        lines={name: listed.line for name, listed in first.items()},
        faults=tuple(faults),
    )
