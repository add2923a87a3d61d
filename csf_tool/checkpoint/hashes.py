"""Hashes that somebody else published for a checkpoint's files, and computing ours."""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from csf_tool.checkpoint.container import METADATA, RECEIPTS, Container
from csf_tool.checkpoint.files import RandomReader, is_safe_relative
from csf_tool.checkpoint.model import Checkpoint

DOWNLOAD_METADATA = ".cache/huggingface/download"
"""Where `hf download --local-dir` notes each file's commit and ETag."""

_SUMS_FILES = ("SHA256SUMS", "SHA256SUMS.txt", "sha256sums.txt", "sha256sum.txt")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class PublishedHash:
    """What a file's hash should be, and who says so.

    `algorithm` is `sha256`, or `git-sha1`: the name that git gives a blob, which the Hub uses for small files.
    """

    file: str
    algorithm: str
    digest: str
    evidence: str


class Hasher(Protocol):
    """What is used of hashlib's objects."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take in more bytes."""

    def hexdigest(self) -> str:
        """The digest as hex digits."""


def published_hashes(checkpoint: Checkpoint) -> list[PublishedHash]:
    """Every hash that the checkpoint's own surroundings hold for its files."""
    found = _container_hashes(checkpoint.container) if checkpoint.container else []
    return found + _sums(checkpoint.root) + recorded_hashes(checkpoint)


def recorded_hashes(checkpoint: Checkpoint) -> list[PublishedHash]:
    """The hashes that a Hub cache or `hf download` recorded."""
    found: list[PublishedHash] = []
    for path in _files(checkpoint):
        name = path.relative_to(checkpoint.root).as_posix()
        found += _cache_hash(path, name) + _download_hash(checkpoint.root, name)
    return found


def download_commits(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """The commits that `hf download` noted, each with the files that came from it."""
    commits: dict[str, list[str]] = {}
    for path in _files(checkpoint):
        name = path.relative_to(checkpoint.root).as_posix()
        lines = _download_lines(checkpoint.root, name)
        if lines:
            commits.setdefault(lines[0], []).append(name)
    return commits


def _files(checkpoint: Checkpoint) -> Iterable[Path]:
    """The checkpoint's shards, and the JSON and other small files at its root, in metadata/ and in receipts/."""
    seen = {shard.path for shard in checkpoint.shards}
    root = checkpoint.root
    folders = [root, root / METADATA, root / RECEIPTS] if checkpoint.path.is_dir() else []
    others = {p for folder in folders if folder.is_dir() for p in folder.iterdir() if p.is_file()}
    return sorted(seen | others)


def _container_hashes(container: Container) -> list[PublishedHash]:
    found = [
        PublishedHash(f"tensors/{row.file}", "sha256", row.target_sha256, "target_sha256")
        for row in container.rows.values()
        if row.target_sha256
    ]
    folder = container.metadata_root.relative_to(container.root).as_posix()
    prefix = "" if folder == "." else folder + "/"
    found += [
        PublishedHash(prefix + name, "sha256", digest, "metadata_sha256")
        for name, digest in container.metadata_sha256.items()
    ]
    return found


def _sums(root: Path) -> list[PublishedHash]:
    found = []
    for sums in _SUMS_FILES:
        if not (root / sums).is_file():
            continue
        for line in (root / sums).read_text("utf-8", "replace").splitlines():
            match = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", line.strip())
            if match and is_safe_relative(match[2]):  # what lies outside is not the checkpoint's
                found.append(PublishedHash(match[2], "sha256", match[1].lower(), sums))
    return found


def _cache_hash(path: Path, name: str) -> list[PublishedHash]:
    """In a Hub cache a snapshot's file is a link to a blob that is named after its own hash."""
    if not path.is_symlink():
        return []
    target = Path(path.readlink())
    return _hash_named(target.name, name, "the blob's name in the Hub cache") if target.parent.name == "blobs" else []


def _download_hash(root: Path, name: str) -> list[PublishedHash]:
    lines = _download_lines(root, name)
    return _hash_named(lines[1], name, "the hash that hf download recorded") if len(lines) > 1 else []


def _download_lines(root: Path, name: str) -> list[str]:
    note = root / DOWNLOAD_METADATA / f"{name}.metadata"
    return note.read_text("utf-8", "replace").split() if note.is_file() else []


def _hash_named(digest: str, name: str, evidence: str) -> list[PublishedHash]:
    if _SHA256.fullmatch(digest):
        return [PublishedHash(name, "sha256", digest, evidence)]
    if _GIT_SHA1.fullmatch(digest):
        return [PublishedHash(name, "git-sha1", digest, evidence)]
    return []


def new_hasher(algorithm: str, nbytes: int) -> Hasher:
    """A hash of one of the algorithms of `PublishedHash`, for a file of `nbytes` bytes."""
    if algorithm == "sha256":
        return hashlib.sha256()
    return hashlib.sha1(f"blob {nbytes}\0".encode(), usedforsecurity=False)


def hash_file(path: Path, name: str, algorithms: set[str], on_bytes: Callable[[int], None]) -> dict[str, str]:
    """The digests of a file by each of `algorithms`, from one reading."""
    nbytes = path.stat().st_size
    hashers = {algorithm: new_hasher(algorithm, nbytes) for algorithm in algorithms}
    with RandomReader(path, name) as reader:
        for chunk in reader.chunks(0, nbytes):
            for hasher in hashers.values():
                hasher.update(chunk)
            on_bytes(len(chunk))
    return {algorithm: hasher.hexdigest() for algorithm, hasher in hashers.items()}
