"""A checkpoint on the Hub: one commit, its listing, its small files in the cache, its shards by ranges.

Token, endpoint, cache and offline mode are the user's, as huggingface_hub has them. Requests are csf-tool's own:
huggingface_hub reads answers to their end, however long, and cannot be interrupted.
"""

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

from huggingface_hub import constants
from huggingface_hub.utils import logging, validate_repo_id

from csf_tool.checkpoint.container import is_sha256
from csf_tool.checkpoint.index import is_index_name
from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.checkpoint.problems import Problems
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash, hash_file, new_hasher
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.json_files import is_count
from csf_tool.disk.paths import is_hidden, is_safe_relative
from csf_tool.disk.reader import MAX_JSON_BYTES, exists, read_document
from csf_tool.errors import CheckpointError, EnvironmentFault, UsageError
from csf_tool.hub.cached import complete_snapshot, snapshot_folder, what_is_cached
from csf_tool.hub.errors import HubRef, RetryPolicy, is_out_of_reach, no_hub, with_retries
from csf_tool.hub.name import HubName
from csf_tool.hub.ranges import HubFile, Ranges
from csf_tool.hub.remote_file import BLOCK_BYTES, RemoteFile
from csf_tool.text import brief

T = TypeVar("T")

RETRY_POLICY = RetryPolicy()

_COMMIT = re.compile(r"[0-9a-zA-Z][\w.-]{0,99}", re.ASCII)
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")

_SHOWN_BYTES = 60

_MAX_WHOLE_BYTES = 64 << 20
"""Largest file in git that is asked for in one piece: not every server gives parts of these, and they are small."""


class HubRepo:
    """One commit of a repository on the Hub.

    `root` is its snapshot in the cache, which holds what has been fetched; without `entries`, the whole checkpoint.
    `files` are those that the Hub lists, by name.
    """

    def __init__(self, ref: HubRef, root: Path, entries: Iterable[Any] = (), ranges: Ranges | None = None) -> None:
        self.root = root
        self.files: dict[str, HubFile] = {}
        self.problems = Problems()
        self._ref = ref
        self._ranges = ranges or Ranges(ref, RETRY_POLICY)
        self._remote: dict[str, RemoteFile] = {}
        for entry in entries:
            file = _listed_file(entry, ref)
            if is_safe_relative(file.name):
                self.files[file.name] = file
            else:
                text = "its name is not a plain path inside the repository: left out"
                self.problems.warn(text, Code.UNSAFE_NAME, file.name)

    def __str__(self) -> str:
        return str(self._ref)

    @property
    def bytes_by_range(self) -> int:
        """Bytes that were fetched by range requests so far."""
        return self._ranges.bytes_fetched

    def shard_names(self, folder: str) -> list[str]:
        """The names of the listed shards right in a folder ("" for the root), without it."""
        names = (name.rpartition("/") for name in self.files if name.endswith(SHARD_SUFFIX))
        return sorted(file for inside, _, file in names if inside == folder and not file.startswith("."))

    def prepare(self, names: Iterable[str]) -> None:
        """Read the headers of shards that are not in the cache, all at once.

        Raises:
            CheckpointError: the Hub lists one and does not have it.
            EnvironmentFault: one cannot be had.
        """
        wanted = [name for name in names if name in self.files and name not in self._remote and not self._is_here(name)]
        remote = self._in_parallel(lambda name: RemoteFile.with_head(self.files[name], self._ranges), wanted)
        self._remote |= dict(zip(wanted, remote, strict=True))

    def stop(self) -> None:
        """Give up what is still being fetched."""
        self._ranges.cancel.cancel()

    def remote(self, name: str) -> RemoteFile | None:
        """The shard `name` as it lies on the Hub; None where it lies in the cache, or nowhere."""
        return self._remote.get(name)

    def fetch_documents(self) -> None:
        """Fetch the documents that say what the checkpoint is into the cache."""
        names = [name for name in self.files if any(layout.is_document(name) for layout in LAYOUTS)]
        for name in names:
            if self.files[name].size > MAX_JSON_BYTES:
                problem = f"{self.files[name].size} bytes of text, but csf-tool reads at most {MAX_JSON_BYTES}"
                raise CheckpointError(problem, Code.TOO_LARGE, name)
        self._fetch(names)

    def fetch_side_files(self, shards: set[str], endings: set[str] | None = None) -> None:
        """Fetch the files that are none of `shards` into the cache: all, or those with one of `endings`."""
        others = (name for name in self.files if name not in shards and not is_hidden(name))
        self._fetch(name for name in others if endings is None or PurePosixPath(name).suffix in endings)

    def published_hashes(self) -> list[PublishedHash]:
        """The hash of every listed file: of its content in LFS, or git's own of small files."""
        return [
            PublishedHash(
                file.name,
                *file.published,
                str(self),
                content=partial(self._content, file.name) if is_index_name(file.name) else None,
            )
            for file in self.files.values()
        ]

    def _content(self, name: str) -> bytes:
        """All of a document, which is put into the cache."""
        self._fetch([name])
        return read_document(self.root / name, name)

    def _is_here(self, name: str) -> bool:
        return exists(self.root / name)

    def _fetch(self, names: Iterable[str]) -> None:
        """Have files in the cache, each with the hash that the Hub lists."""
        self._in_parallel(lambda name: self._fetch_file(self.files[name]), list(names))

    def _fetch_file(self, file: HubFile) -> None:
        """Have one file in the cache; called in a thread of the ranges.

        Raises:
            CheckpointError: it has not the hash that the Hub lists, there or in the cache.
        """
        path = self.root / file.name
        algorithm, digest = file.published
        if self._is_here(file.name):
            found, where = hash_file(path, file.name, {algorithm}, lambda _: None)[algorithm], f"in the cache ({path})"
        else:
            found, where = self._download(file, path), "as it was fetched"
        if found != digest:
            problem = f"{algorithm} of the file {where} is {found}, but the Hub lists {digest}: it is not used"
            raise CheckpointError(problem, Code.HASH_DIFFERS, file.name)

    def _download(self, file: HubFile, path: Path) -> str:
        """Fetch a file into the cache, as huggingface_hub lays it out; its hash. A wrong one is not kept."""
        algorithm, digest = file.published
        blob = self.root.parent.parent / "blobs" / digest
        partial = blob.with_name(f"{digest}.{secrets.token_hex(4)}.incomplete")
        hasher = new_hasher(algorithm, file.size)
        ref = replace(self._ref, file=file.name)
        try:
            for folder in (blob.parent, path.parent):
                folder.mkdir(parents=True, exist_ok=True)
            with partial.open("xb") as new:
                is_small = not file.sha256 and file.size <= _MAX_WHOLE_BYTES
                step = max(1, file.size) if is_small else BLOCK_BYTES
                for begin in range(0, file.size, step):
                    end = min(begin + step, file.size)
                    data = self._ranges.fetch_here(file, begin, end, whole=is_small)
                    hasher.update(data)
                    new.write(data)
            if (found := hasher.hexdigest()) == digest:
                partial.replace(blob)
                _link(path, blob)
            return found
        except OSError as error:
            text = f"{ref}: cannot be written to the cache: {error.filename or blob}: {error.strerror or error}"
            raise EnvironmentFault(text) from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def _in_parallel(self, work: Callable[[str], T], names: list[str]) -> list[T]:
        """Do `work` for several names at once. After a failure or an interrupt, no more of it begins."""
        futures = [self._ranges.submit(work, name) for name in names]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()


def open_repo(name: HubName, before_asking: Callable[[], None]) -> HubRepo:
    """The commit that a name stands for: from the cache where its checkpoint is complete, else from the Hub.

    Complete are the shards that index or manifest list, and the files that say how to read them; offline, the shards.

    Raises:
        UsageError: there is no such repository or revision.
        EnvironmentFault: the Hub cannot be asked, or refuses.
    """
    _be_quiet()
    ref = _ref(name)
    if (cached := with_retries(lambda: complete_snapshot(name), ref, RETRY_POLICY, _no_wait)) is not None:
        return HubRepo(replace(ref, revision=cached.name), cached)
    if not constants.HF_HUB_OFFLINE:
        before_asking()
    try:
        repo = list_repo(name)
    except EnvironmentFault as error:
        if not is_out_of_reach(error):
            raise
        raise EnvironmentFault(f"{error.problem}: {what_is_cached(name)}") from error
    repo.fetch_documents()
    return repo


def list_repo(name: HubName) -> HubRepo:
    """The commit that a name stands for, with its listing, by one request.

    Raises:
        UsageError: there is no such repository or revision.
        EnvironmentFault: the Hub cannot be asked, or refuses, or answers as none does.
    """
    _be_quiet()
    ref = _ref(name)
    with_retries(lambda: validate_repo_id(name.repo_id), ref, RETRY_POLICY, _no_wait)
    ranges = Ranges(ref, RETRY_POLICY)
    at = f"/revision/{quote(name.revision, safe='')}" if name.revision is not None else ""
    commit, entries = _parse_listing(ranges.listing(f"{ref.endpoint}/api/models/{name.repo_id}{at}?blobs=true"), ref)
    return HubRepo(replace(ref, revision=commit), snapshot_folder(name.repo_id, commit), entries, ranges.at(commit))


def _parse_listing(raw: bytes, ref: HubRef) -> tuple[str, list[Any]]:
    """The commit, and what is said of each file.

    Raises:
        UsageError: there is no commit.
        EnvironmentFault: it is no listing.
    """
    try:
        info = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise no_hub(ref, f"the listing is not JSON: {brief(raw[:_SHOWN_BYTES])}") from error
    if not isinstance(info, dict) or not isinstance(entries := info.get("siblings") or [], list):
        raise no_hub(ref, f"the listing is {brief(info)}")
    commit = info.get("sha")
    if not commit:
        raise UsageError(f"{ref}: is empty: the Hub lists no commit of it")
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise no_hub(ref, f"the commit is {brief(commit)}")
    return commit, entries


def _listed_file(entry: Any, ref: HubRef) -> HubFile:
    """A file of the listing.

    Raises:
        EnvironmentFault: something of it is not what it must be.
    """
    if not isinstance(entry, dict) or not isinstance(name := entry.get("rfilename"), str):
        raise no_hub(ref, f"it lists {brief(entry)}")
    lfs, nbytes, git_sha1 = entry.get("lfs"), entry.get("size"), entry.get("blobId")
    sha256 = lfs.get("sha256") if isinstance(lfs, dict) else None
    if not is_count(nbytes):
        raise no_hub(replace(ref, file=name), f"it lists the file with the size {brief(nbytes)}")
    if not isinstance(git_sha1, str) or not _GIT_SHA1.fullmatch(git_sha1) or not (lfs is None or is_sha256(sha256)):
        raise no_hub(replace(ref, file=name), f"it lists the file with the hash {brief(sha256 or git_sha1)}")
    return HubFile(name, nbytes, sha256, git_sha1)


def _link(path: Path, blob: Path) -> None:
    """Make a snapshot's file a link to its blob; where there are no links, the blob itself."""
    with suppress(FileExistsError):
        try:
            path.symlink_to(os.path.relpath(blob, path.parent))
        except FileExistsError:
            raise
        except OSError:
            blob.replace(path)


def _ref(name: HubName) -> HubRef:
    return HubRef(name.repo_id, name.revision or constants.DEFAULT_REVISION, constants.ENDPOINT)


def _no_wait(_: float) -> None:
    """For what asks nobody: there is nothing to wait for."""


def _be_quiet() -> None:
    """Silence huggingface_hub: csf-tool itself reports errors, each in one line."""
    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
