"""Lines of a hash and a name, as sha256sum, shasum, openssl, BSD's sha256 and git-lfs write them.

A line that was meant as a hash and is none is a fault, never passed over. The style of a list is one for all of its
lines: what is a damaged line among others may be the style of another tool where all are like it.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from csf_tool.checkpoint.problems import Problem
from csf_tool.codes import Code

DIGEST = "(?P<digest>[0-9a-fA-F]{64})"

_TWO_CHARACTERS = re.compile(rf"(?P<escaped>\\?){DIGEST} [ *](?P<name>.+)", re.DOTALL)
_ONE_BLANK = re.compile(rf"(?P<escaped>\\?){DIGEST} (?P<name>[^ *].*)", re.DOTALL)
_TAB = re.compile(rf"(?P<escaped>\\?){DIGEST}\t+(?P<name>[^\t].*)", re.DOTALL)
_GIT_LFS = re.compile(rf"(?P<escaped>){DIGEST} [*-] (?P<name>.+)", re.DOTALL)
_SEVEN_ZIP = re.compile(rf"(?P<escaped>){DIGEST} +\d+  (?P<name>.+)", re.DOTALL)
_OTHER_STYLES = (_GIT_LFS, _ONE_BLANK, _TAB, _SEVEN_ZIP)
"""Styles that count where every line with a digest is of them: in a list of sha256sum's such a line is damaged."""

_GIT_LFS_SIZE = re.compile(r" \(\d+(?:\.\d+)? [KMGTPE]?i?B\)$")
_SEVEN_ZIP_RULE = re.compile(r"-{64} -+  -+")
_TAGGED = re.compile(rf"(?P<escaped>\\?)SHA(?:2-)?256 ?\((?P<name>.+)\) ?= {DIGEST}", re.DOTALL)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPED = {"\\": "\\", "n": "\n", "r": "\r"}
_OTHER_TAG = re.compile(
    r"\\?(?P<kind>MD5|SHA1|SHA224|SHA384|SHA512(?:[-/]\d+)?|SHA2-(?!256)\d+(?:/\d+)?|SHA3-\d+|BLAKE[^ (]*|SM3|RMD160)"
    r" ?\(.*\) ?= ?\S+"
)
_TAG = re.compile(r"\\?(?:SHA(?:2-)?256 ?\(|\S{1,12} ?\(.*\) ?= ?[0-9a-fA-F]{16})", re.DOTALL)
_LOST_DIGIT = re.compile(r"#[0-9a-fA-F]{63} [ *].+")
"""A digit 3 that lost a bit makes a comment of its line."""

_OTHER_SUM = re.compile(r"\\?([0-9a-fA-F]{32,128}) [ *]?.+")
_OTHER_KINDS = {32: "MD5", 40: "SHA-1", 56: "SHA-224", 96: "SHA-384", 128: "SHA-512 or BLAKE2b"}
"""Kinds of sums by their hex digits."""

_BEGUN_DIGEST = re.compile(r"[0-9a-fA-F]+")
"""All that is left of the last line of a list that was cut short, which no new line ends."""

_BEGINS_WITH_DIGEST = re.compile(r"\\?[0-9a-fA-F]{64}[ \t]")
_HOLDS_DIGEST = re.compile(r"(?<![0-9a-zA-Z])[0-9a-fA-F]{63,65}(?![0-9a-zA-Z])")
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


class Listed(NamedTuple):
    """An entry of a list: a file's name, its hash in hex, and the number of its line, from 1; 0 where there is none.

    `algorithm` is one of `PublishedHash`; `size` is in bytes, where the list gives it.
    """

    name: str
    digest: str
    line: int
    algorithm: str = "sha256"
    size: int | None = None


@dataclass
class Parsed:
    """Entries of a list as they are written, its faults, and what it holds in place of SHA-256, in words."""

    found: list[Listed] = field(default_factory=list)
    faults: list[Problem] = field(default_factory=list)
    instead: str = ""

    def damaged(self, n: int, where: str, what: str = "it is not a hash and a file name", unit: str = "line") -> None:
        """Note that line `n`, or another unit, was a hash once and is none."""
        self.faults.append(Problem(f"{unit} {n} is damaged: {what}", Code.HASH_DAMAGED, where))


def parse_lines(text: str, where: str) -> Parsed:
    """The lines of a list; `where` is its name.

    Blank lines, comments, signatures and hashes of other kinds say nothing, and are no fault.
    """
    if (records := _records_ended_by_nul(text)) is not None:
        found = [Listed(*_named(match), number) for number, match in enumerate(records, 1)]
        return Parsed(found)
    lines = lines_of(text)
    if kind := _only_other_kind(lines):
        return Parsed(instead=f"holds {kind}, not SHA-256")
    parsed, style = Parsed(), _style(lines)
    sizes = style is _GIT_LFS and all(_GIT_LFS_SIZE.search(line) for line in lines if line)
    for number, line in enumerate(lines, 1):
        if named := _parse(line, style):
            name = _GIT_LFS_SIZE.sub("", named[0]) if sizes else named[0]
            parsed.found.append(Listed(name, named[1], number))
        elif number == len(lines) and _BEGUN_DIGEST.fullmatch(line):
            parsed.damaged(number, where, "the list ends within a hash")
        elif _was_meant_as_hash(line) and not _SEVEN_ZIP_RULE.match(line):
            parsed.damaged(number, where)
    return parsed


def lines_of(text: str) -> list[str]:
    """The lines of a text, without the blanks and CRs at their ends."""
    return [line.strip(" \t\r") for line in text.split("\n")]


def _style(lines: list[str]) -> re.Pattern[str]:
    """The style of the lines that begin with a digest."""
    begun = [line for line in lines if _BEGINS_WITH_DIGEST.match(line)]
    if any(map(_SEVEN_ZIP_RULE.match, lines)) and any(map(_SEVEN_ZIP.fullmatch, begun)):
        return _SEVEN_ZIP
    styles = (style for style in _OTHER_STYLES[:3] if begun and all(map(style.fullmatch, begun)))
    return next(styles, _TWO_CHARACTERS)


def _records_ended_by_nul(text: str) -> list[re.Match[str]] | None:
    """The records of `sha256sum -z`, whose names are not escaped; None where a text is not made of such alone."""
    if not text.endswith("\0"):
        return None
    records = text.rstrip("\0").split("\0")
    found = [_TWO_CHARACTERS.fullmatch(record) or _TAGGED.fullmatch(record) for record in records]
    matches = [match for match in found if match and not match["escaped"] and not _holds_a_line(match["name"])]
    return matches if len(matches) == len(records) else None


def _holds_a_line(name: str) -> bool:
    """Whether a name goes on with a line of a list: then its NUL is damage."""
    return any(_TWO_CHARACTERS.fullmatch(line) or _TAGGED.fullmatch(line) for line in name.split("\n")[1:])


def _parse(line: str, style: re.Pattern[str]) -> tuple[str, str] | None:
    """File name and digest of a line; None where it is none."""
    match = style.fullmatch(line) or _TAGGED.fullmatch(line)
    if not match or "\0" in line:
        return None
    if match["escaped"] and any(escape[1] not in _ESCAPED for escape in _ESCAPE.finditer(match["name"])):
        return None
    return _named(match)


def _named(match: re.Match[str]) -> tuple[str, str]:
    name = match["name"]
    if match["escaped"]:
        name = _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], name)
    while name.startswith("./"):
        name = name[2:]
    return name, match["digest"].lower()


def _only_other_kind(lines: list[str]) -> str:
    """The kind of hashes that all lines hold, where none is of SHA-256's length: the sums of another tool."""
    tags = {match["kind"] for line in lines if (match := _OTHER_TAG.fullmatch(line))}
    sums = {len(match[1]) for line in lines if (match := _OTHER_SUM.fullmatch(line))}
    if any(_BEGINS_WITH_DIGEST.match(line) or (_TAG.match(line) and not _OTHER_TAG.fullmatch(line)) for line in lines):
        return ""
    if len(sums) == 1 and (kind := _OTHER_KINDS.get(*sums)):
        return f"{kind} hashes ({next(iter(sums))} hex digits)"
    return f"{', '.join(sorted(tags))} hashes" if tags and not sums else ""


def _was_meant_as_hash(line: str) -> bool:
    """Whether a line that is no hash and name was one once: cut short, mistyped, overwritten or with a flipped bit."""
    if "\0" in line or _LOST_DIGIT.fullmatch(line):
        return True
    if line.startswith("#") or _OTHER_TAG.fullmatch(line):
        return False
    start = line.removeprefix("\\")
    return (
        bool(_TAG.match(line) or _HOLDS_DIGEST.search(line))
        or _is_mostly_hex(start[:64])
        or _is_mostly_hex(start.split(" ")[0])
    )


def _is_mostly_hex(text: str) -> bool:
    """Whether most of a text is hex digits; False for texts of a few letters."""
    return len(text) >= 16 and 4 * sum(c in _HEX_DIGITS for c in text) >= 3 * len(text)
