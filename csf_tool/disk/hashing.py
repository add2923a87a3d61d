"""Hashes of files, and hashing in a thread of its own beside the reading, writing or comparing of the bytes."""

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from csf_tool.disk.reader import RandomReader


class Hashing:
    """SHA-256 of bytes as they pass, computed beside the reading of the next ones.

    A piece must stay as it is until the next but one is given, as `RandomReader.chunks` keeps it.
    """

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="csf-tool-hash")
        self._last = self._thread.submit(lambda: None)

    def update(self, data: memoryview) -> None:
        """Take in the next bytes."""
        self._last.result()
        self._last = self._thread.submit(self._hasher.update, data)

    def hexdigest(self) -> str:
        """The digest of all bytes given; nothing can follow."""
        wait_for([self._last])
        self._thread.shutdown()
        return self._hasher.hexdigest()


@dataclass(frozen=True)
class PublishedHash:
    """The hash that a file should have, and who says so.

    `algorithm` is `sha256`, or `git-sha1`: the name that git gives a blob, which the Hub uses for small files. `line`
    is where `evidence` says so, if that is a list; `is_published` tells publishers and the Hub from lists of one's own.
    `content` gives the published file itself, where it is small and may be wanted.
    """

    file: str
    algorithm: str
    digest: str
    evidence: str
    line: int = field(default=0, compare=False)
    is_published: bool = field(default=True, compare=False)
    content: Callable[[], bytes] | None = field(default=None, compare=False, repr=False)

    @property
    def place(self) -> str:
        """The source of the hash, with the line in it."""
        return f"{self.evidence}, line {self.line}" if self.line else self.evidence


class Hasher(Protocol):
    """The part of hashlib's objects that is used."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take in more bytes."""

    def hexdigest(self) -> str:
        """The digest as hex digits."""


def new_hasher(algorithm: str, nbytes: int) -> Hasher:
    """A hash of one of the algorithms of `PublishedHash`, for a file of `nbytes` bytes."""
    if algorithm == "sha256":
        return hashlib.sha256()
    return hashlib.sha1(f"blob {nbytes}\0".encode(), usedforsecurity=False)


def hash_file(path: Path, name: str, algorithms: set[str], on_bytes: Callable[[int], None]) -> dict[str, str]:
    """The digests of a file by each of `algorithms`, from one reading.

    Raises:
        CheckpointError: it is not there.
        EnvironmentFault: the operating system cannot read it.
    """
    with RandomReader(path, name) as reader:
        nbytes = os.fstat(reader.fileno()).st_size
        hashers = {algorithm: new_hasher(algorithm, nbytes) for algorithm in algorithms}
        for chunk in reader.chunks(0, nbytes):
            for hasher in hashers.values():
                hasher.update(chunk)
            on_bytes(len(chunk))
    return {algorithm: hasher.hexdigest() for algorithm, hasher in hashers.items()}


def hash_faults(
    path: Path,
    name: str,
    known: Iterable[PublishedHash],
    sha256: str | None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> list[str]:
    """The known hashes that a file does not have, in words; it is not read where its `sha256` suffices.

    Raises:
        As `hash_file`.
    """
    known = list(known)
    found = {"sha256": sha256} if sha256 is not None else {}
    wanted = {entry.algorithm for entry in known} - found.keys()
    found |= hash_file(path, name, wanted, on_bytes) if wanted else {}
    return [
        f"{entry.algorithm} is {found[entry.algorithm]}, expected {entry.digest} ({entry.place})"
        for entry in known
        if found[entry.algorithm] != entry.digest
    ]


def sha256_of(path: Path, name: str, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """The SHA-256 of a file; raises as `hash_file`."""
    return hash_file(path, name, {"sha256"}, on_bytes)["sha256"]
