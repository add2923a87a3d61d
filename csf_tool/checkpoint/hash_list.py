"""A list of files with their SHA-256, in sha256sum's format; ours states in comments what that has no place for.

sha256sum passes comments over, so `sha256sum -c` reads our lists, and we read those of sha256sum and shasum.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from csf_tool.disk.paths import is_safe_relative
from csf_tool.disk.reader import is_file, read_document
from csf_tool.errors import UsageError
from csf_tool.text import escape

_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{64}) [ *](?:\./)?(?P<name>.+)")
_TAGGED = re.compile(r"SHA256 \((?:\./)?(?P<name>.+)\) = (?P<digest>[0-9a-fA-F]{64})")
_ORIGIN = re.compile(r"# (repository|revision): (.+)")
_SIZE = re.compile(r"# size: (\d{1,19}) (.+)", re.ASCII)
_TITLE = "# SHA-256 of a checkpoint's files, for csf-tool verify --manifest and sha256sum -c"


@dataclass(frozen=True)
class HashList:
    """SHA-256 in hex by file name, sizes in bytes where they are known, and what they are the files of.

    `left_out` are files whose names no list can hold.
    """

    name: str
    digests: dict[str, str]
    sizes: dict[str, int] = field(default_factory=dict)
    repository: str | None = None
    revision: str | None = None
    left_out: tuple[str, ...] = ()

    def render(self) -> str:
        """The list as text."""
        origin = {"repository": self.repository, "revision": self.revision}
        comments = [f"# {key}: {value}" for key, value in origin.items() if value]
        comments += [f"# left out, for no line can hold the name: {escape(name)}" for name in self.left_out]
        comments += [f"# size: {nbytes} {name}" for name, nbytes in self.sizes.items()]
        lines = [_line(name, digest) for name, digest in self.digests.items()]
        return "\n".join([_TITLE, *comments, *lines]) + "\n"


def _line(name: str, digest: str) -> str:
    return f"{digest}  {name}"


def can_list(name: str) -> bool:
    """Whether a list gives the name of a file back as it was: one with a line end would be lines of its own."""
    line = _line(name, "0" * 64).encode("utf-8", "replace").decode()  # bytes that are no UTF-8 are lost
    return list(_digests(line)) == [name]


def digest_line(line: str) -> tuple[str, str] | None:
    """File name and SHA-256 of a line as sha256sum or shasum write them; None for any other."""
    match = _LINE.fullmatch(line) or _TAGGED.fullmatch(line)
    return (match["name"], match["digest"].lower()) if match else None


def _digests(text: str) -> dict[str, str]:
    """SHA-256 by file name; what lies outside the folder is not the checkpoint's."""
    lines = filter(None, (digest_line(line.strip()) for line in text.splitlines()))
    return {name: digest for name, digest in lines if is_safe_relative(name)}


def read_hash_list(path: Path) -> HashList:
    """The list in a file.

    Raises:
        UsageError: it is not there, or no line of it is sha256sum's.
        CheckpointError: it is too large.
        EnvironmentFault: the system cannot read it.
    """
    if not is_file(path):
        raise UsageError(f"{path}: no such file")
    text = read_document(path, str(path)).decode("utf-8", "replace")
    digests = _digests(text)
    if not digests:
        raise UsageError(f"{path}: has no line of sha256sum's (64 hex digits, two spaces, a file name)")
    lines = text.splitlines()
    origin = {match[1]: match[2] for match in map(_ORIGIN.fullmatch, lines) if match}
    sizes = {match[2]: int(match[1]) for match in map(_SIZE.fullmatch, lines) if match and match[2] in digests}
    return HashList(path.name, digests, sizes, origin.get("repository"), origin.get("revision"))
