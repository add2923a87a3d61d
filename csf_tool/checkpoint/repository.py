"""Protocols of a repository whose checkpoint is not all here; `csf_tool.hub` implements them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from csf_tool.checkpoint.problems import Problems
from csf_tool.disk.hashing import PublishedHash
from csf_tool.disk.reader import Reader


class RemoteFile(Protocol):
    """A shard that is read over the network."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    @property
    def published(self) -> tuple[str, str]:
        """The algorithm and the digest that the repository lists."""

    def open(self) -> Reader:
        """A reader of its bytes."""


@runtime_checkable
class Repository(Protocol):
    """One commit of a repository. `str` of it names both."""

    root: Path
    """The folder that holds what has been fetched."""
    problems: Problems

    @property
    def files(self) -> Mapping[str, object]:
        """The files that it lists, by name; none where all of it is here."""

    @property
    def bytes_by_range(self) -> int:
        """Bytes that were fetched by range requests so far."""

    def shard_names(self, folder: str) -> list[str]:
        """The names of the listed shards right in a folder ("" for the root), without it."""

    def prepare(self, names: Iterable[str]) -> None:
        """Read the headers of shards that are not here, all at once."""

    def remote(self, name: str) -> RemoteFile | None:
        """The shard `name` where it is not here."""

    def fetch_side_files(self, shards: set[str], endings: set[str] | None = None) -> None:
        """Fetch the files that are none of `shards`: all, or those with one of `endings`."""

    def published_hashes(self) -> list[PublishedHash]:
        """The hash of every listed file."""

    def stop(self) -> None:
        """Stop all fetching that is still going on."""
