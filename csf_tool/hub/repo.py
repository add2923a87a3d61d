"""A checkpoint on the Hub: one commit, its listing, its small files in the cache, its shards by ranges.

All of it goes through huggingface_hub, whose token, endpoint, cache and offline mode are the user's.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import disable_progress_bars, logging

from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.index import INDEX_NAME
from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.checkpoint.problems import Problems
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.paths import is_hidden, is_safe_relative
from csf_tool.disk.reader import exists
from csf_tool.errors import CheckpointError, EnvironmentFault, UsageError
from csf_tool.hub.errors import HubRef, RetryPolicy, with_retries
from csf_tool.hub.name import HubName
from csf_tool.hub.ranges import HubFile, Ranges, RemoteFile
from csf_tool.version import __version__

T = TypeVar("T")

RETRY_POLICY = RetryPolicy()


class HubRepo:
    """One commit of a repository on the Hub.

    `root` is its snapshot in the cache, which holds what has been fetched; without `entries`, the whole checkpoint.
    `files` are those that the Hub lists, by name.
    """

    def __init__(self, ref: HubRef, root: Path, entries: Iterable[RepoSibling] = ()) -> None:
        self.root = root
        self.files: dict[str, HubFile] = {}
        self.problems = Problems()
        self._ref = ref
        self._ranges = Ranges(ref, RETRY_POLICY)
        self._remote: dict[str, RemoteFile] = {}
        for entry in entries:
            name, sha256 = entry.rfilename, entry.lfs.sha256 if entry.lfs else None
            if not is_safe_relative(name):
                text = "its name is no plain path inside the repository: left out"
                self.problems.warn(text, Code.UNSAFE_NAME, name)
            elif entry.size is None or entry.blob_id is None:
                raise EnvironmentFault(f"{ref}: {name}: {ref.endpoint} lists it without its size or hash")
            else:
                self.files[name] = HubFile(name, entry.size, sha256, entry.blob_id)

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
        self._fetch(name for name in self.files if any(layout.is_document(name) for layout in LAYOUTS))

    def fetch_side_files(self, shards: set[str], endings: set[str] | None = None) -> None:
        """Fetch the files that are none of `shards` into the cache: all, or those with one of `endings`."""
        others = (name for name in self.files if name not in shards and not is_hidden(name))
        self._fetch(name for name in others if endings is None or PurePosixPath(name).suffix in endings)

    def published_hashes(self) -> list[PublishedHash]:
        """The hash of every listed file: of its content in LFS, or git's own of small files."""
        return [PublishedHash(file.name, *file.published, str(self)) for file in self.files.values()]

    def _is_here(self, name: str) -> bool:
        return exists(self.root / name)

    def _fetch(self, names: Iterable[str]) -> None:
        api, repo_id, commit = _api(), self._ref.repo_id, self._ref.revision

        def fetch(name: str) -> None:
            ref, wait = replace(self._ref, file=name), self._ranges.cancel.wait
            with_retries(lambda: api.hf_hub_download(repo_id, name, revision=commit), ref, RETRY_POLICY, wait)

        self._in_parallel(fetch, [name for name in names if not self._is_here(name)])

    def _in_parallel(self, work: Callable[[str], T], names: list[str]) -> list[T]:
        """Do `work` for several names at once. After a failure or an interrupt, no more of it begins."""
        futures = [self._ranges.submit(work, name) for name in names]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()


def open_repo(name: HubName) -> HubRepo:
    """The commit that a name stands for: from the cache where its checkpoint is complete, else from the Hub.

    Complete are the shards that index or manifest list, and the files that say how to read them; offline, the shards.

    Raises:
        UsageError: there is no such repository or revision.
        EnvironmentFault: the Hub cannot be asked, or refuses.
    """
    _be_quiet()
    ref = HubRef(name.repo_id, name.revision or constants.DEFAULT_REVISION, _api().endpoint)
    if (cached := with_retries(lambda: _cached_snapshot(name), ref, RETRY_POLICY, time.sleep)) is not None:
        return HubRepo(replace(ref, revision=cached.name), cached)
    repo = list_repo(name)
    repo.fetch_documents()
    return repo


def list_repo(name: HubName) -> HubRepo:
    """The commit that a name stands for, with its listing, by one request.

    Not by `list_repo_tree`: in huggingface_hub 2 that waits as long as the server likes, and retries by itself.

    Raises:
        UsageError: there is no such repository or revision.
        EnvironmentFault: the Hub cannot be asked, or refuses.
    """
    _be_quiet()
    api, timeout = _api(), constants.HF_HUB_ETAG_TIMEOUT
    ref = HubRef(name.repo_id, name.revision or constants.DEFAULT_REVISION, api.endpoint)

    def ask() -> ModelInfo:
        return api.model_info(name.repo_id, revision=name.revision, timeout=timeout, files_metadata=True)

    info = with_retries(ask, ref, RETRY_POLICY, time.sleep)
    if not info.sha:
        raise UsageError(f"{ref}: the Hub names no commit for it: it is empty")
    return HubRepo(replace(ref, revision=info.sha), _snapshot(name.repo_id, info.sha), info.siblings or ())


def _api() -> HfApi:
    return HfApi(library_name="csf-tool", library_version=__version__)


def _be_quiet() -> None:
    """Silence huggingface_hub: csf-tool itself reports errors, each in one line, and progress."""
    disable_progress_bars()
    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def _snapshot(repo_id: str, commit: str) -> Path:
    """The folder in which the cache keeps a commit (https://huggingface.co/docs/huggingface_hub/guides/manage-cache)."""
    folder = "models--" + repo_id.replace("/", "--")
    return Path(constants.HF_HUB_CACHE).expanduser().absolute() / folder / "snapshots" / commit


def _cached_snapshot(name: HubName) -> Path | None:
    """The snapshot of a revision in the cache, if the checkpoint is complete there."""
    main = [layout.main_document for layout in LAYOUTS if layout.main_document]
    for document in (*main, INDEX_NAME, *CONFIG_FILES, f"model{SHARD_SUFFIX}"):
        path = try_to_load_from_cache(name.repo_id, document, revision=name.revision)
        if isinstance(path, str):
            return Path(path).parent if _is_complete(Path(path).parent) else None
    return None


def _is_complete(root: Path) -> bool:
    try:
        shards, documents = next(filter(None, (layout.needed_of(root) for layout in LAYOUTS)), ([], []))
    except CheckpointError:
        return False
    wanted = shards if constants.HF_HUB_OFFLINE else shards + documents
    return bool(shards) and all(exists(root / name) for name in wanted)
