"""Repositories in the cache of huggingface_hub: what it holds of them, and lacks."""

from pathlib import Path

from huggingface_hub import constants, try_to_load_from_cache

from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.hub_cache import Snapshot, is_complete
from csf_tool.checkpoint.index import INDEX_NAME
from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.checkpoint.missing_shards import missing_shards
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.paths import is_safe_relative
from csf_tool.disk.reader import is_file, read_document
from csf_tool.errors import CsfToolError
from csf_tool.hub.name import HubName

_REF_BYTES = 1000


def snapshot_folder(repo_id: str, commit: str) -> Path:
    """The folder in which the cache keeps a commit."""
    return _snapshot(repo_id, commit).root


def complete_snapshot(name: HubName) -> Path | None:
    """The snapshot of a revision in the cache, if the checkpoint is complete there."""
    main = [layout.main_document for layout in LAYOUTS if layout.main_document]
    for document in (*main, INDEX_NAME, *CONFIG_FILES, f"model{SHARD_SUFFIX}"):
        path = try_to_load_from_cache(name.repo_id, document, revision=name.revision)
        if isinstance(path, str):
            root = Path(path).parent
            return root if is_complete(root, documents=not constants.HF_HUB_OFFLINE) else None
    return None


def what_is_cached(name: HubName) -> str:
    """The part of a revision that the cache has, where the Hub cannot be asked for it, and what to do, in words."""
    revision, here = name.revision or constants.DEFAULT_REVISION, _snapshot(name.repo_id, name.revision)
    commit = _commit_of(here, revision)
    if commit in here.commits:
        return _state(snapshot_folder(name.repo_id, commit))
    known = f"knows {revision} as {commit}, but has no file of it" if commit else f"has nothing of {revision}"
    unset = "unset HF_HUB_OFFLINE, or " if constants.HF_HUB_OFFLINE else ""
    return f"the Hub cache {known}: {unset}fetch it first with {here.download}{here.complete_others()}"


def _state(root: Path) -> str:
    """The state of a snapshot: what it has and lacks."""
    try:
        checkpoint = open_checkpoint(root)
    except CsfToolError as error:
        return error.problem
    missing = missing_shards(checkpoint)
    if lacks := next((p.problem for p in checkpoint.problems if p.file in missing), None):
        return lacks
    return f"the Hub cache has all of its shards: to use only these, set HF_HUB_OFFLINE=1 or give {root}"


def _commit_of(here: Snapshot, revision: str) -> str | None:
    """The commit that a revision was when the cache last heard of it; a commit is itself."""
    path = here.folder / "refs" / revision
    if is_safe_relative(revision) and is_file(path):
        commit = read_document(path, revision, _REF_BYTES).decode("utf-8", "replace").strip()
        return commit if is_safe_relative(commit) else None
    return revision if revision in here.commits else None


def _snapshot(repo_id: str, revision: str | None) -> Snapshot:
    return Snapshot(repo_id, revision, Path(constants.HF_HUB_CACHE).expanduser().absolute())
