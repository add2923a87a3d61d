"""A list of files with their SHA-256, in sha256sum's format; ours states in comments what that has no place for.

sha256sum passes comments over, so `sha256sum -c` reads our lists, and we read those of sha256sum and shasum.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from csf_tool.checkpoint.files import is_safe_relative, read_document
from csf_tool.errors import UsageError

_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{64}) [ *](?:\./)?(?P<name>.+)")
_TAGGED = re.compile(r"SHA256 \((?:\./)?(?P<name>.+)\) = (?P<digest>[0-9a-fA-F]{64})")
_COMMENT = re.compile(r"# (repository|revision|size): (.+)")
_TITLE = "# SHA-256 of a checkpoint's files, for csf-tool verify --manifest and sha256sum -c"


@dataclass(frozen=True)
class HashList:
    """SHA-256 in hex by file name, sizes in bytes where they are known, and what they are the files of."""

    name: str
    digests: dict[str, str]
    sizes: dict[str, int] = field(default_factory=dict)
    repository: str | None = None
    revision: str | None = None

    def render(self) -> str:
        """The list as text."""
        origin = {"repository": self.repository, "revision": self.revision}
        comments = [f"# {key}: {value}" for key, value in origin.items() if value]
        comments += [f"# size: {nbytes} {name}" for name, nbytes in self.sizes.items()]
        lines = [f"{digest}  {name}" for name, digest in self.digests.items()]
        return "\n".join([_TITLE, *comments, *lines]) + "\n"


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
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    text = read_document(path, str(path)).decode("utf-8", "replace")
    digests = _digests(text)
    if not digests:
        raise UsageError(f"{path}: has no line of sha256sum's (64 hex digits, two spaces, a file name)")
    said: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for key, value in filter(None, (m and m.groups() for m in map(_COMMENT.fullmatch, text.splitlines()))):
        nbytes, _, name = value.partition(" ")
        if key != "size":
            said[key] = value
        elif nbytes.isdecimal() and name in digests:
            sizes[name] = int(nbytes)
    return HashList(path.name, digests, sizes, said.get("repository"), said.get("revision"))
