"""Hashes of files, and hashing in a thread of its own beside the reading, writing or comparing of the bytes."""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
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

    `algorithm` is `sha256`, or `git-sha1`: the name that git gives a blob, which the Hub uses for small files.
    """

    file: str
    algorithm: str
    digest: str
    evidence: str


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


def sha256_of(path: Path, name: str, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """The SHA-256 of a file; raises as `hash_file`."""
    return hash_file(path, name, {"sha256"}, on_bytes)["sha256"]
