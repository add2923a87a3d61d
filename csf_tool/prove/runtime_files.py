"""The files beside a checkpoint's shards, and which of them a runtime may read."""

from pathlib import PurePosixPath

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.layout import is_licence
from csf_tool.checkpoint.published import SUMS_FILES
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.own_files import is_own
from csf_tool.disk.paths import is_hidden, list_files, relative_files
from csf_tool.disk.reader import is_file

FETCHED_SUFFIXES = {".json", ".jinja", ".model", ".tiktoken", ".txt", ".py", ".spm", ".bpe", ".vocab"}
"""Endings of the small files that runtimes read, which are fetched from the Hub to be checked."""

_PAPERS = {".md", ".rst", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".avif", ".bmp", ".ico"}
"""Endings of cards and pictures."""

_TEXTS = {"", ".txt", ".html"}
"""Endings that a licence or a README may have as well; with any other it may be code or weights."""


def all_files(checkpoint: Checkpoint) -> list[str]:
    """Paths of all files of a checkpoint in a folder, shards and files that only the Hub has included.

    Links to folders are listed but not followed.
    """
    if is_file(checkpoint.path):
        return []
    folder, listing = _model_folder(checkpoint), list_files(checkpoint.root)
    found = {*listing.files, *(name for name in listing.links if name not in _known_folders(checkpoint))}
    if folder.rstrip("/") in listing.links:
        found.update(folder + name for name in relative_files(checkpoint.layout.model_root))
    if checkpoint.hub:
        found.update(name for name in checkpoint.hub.files if not is_hidden(name))
    return sorted(name for name in found if not is_own(name))


def _known_folders(checkpoint: Checkpoint) -> set[str]:
    """The folders that may be links, because their files are read by known names."""
    layout = checkpoint.layout
    shards = {str(parent) for shard in checkpoint.shards for parent in PurePosixPath(shard.name).parents}
    return {layout.shard_folder, layout.own_folder, _model_folder(checkpoint).rstrip("/"), *shards}


def folders_like_files(checkpoint: Checkpoint) -> list[str]:
    """Folders that have the name of a file that a reader of the checkpoint looks for."""
    if is_file(checkpoint.path):
        return []
    names = {*CONFIG_FILES, *SUMS_FILES, "README.md"}
    endings = (*FETCHED_SUFFIXES, SHARD_SUFFIX)
    inside = [
        path.relative_to(checkpoint.root).as_posix()
        for path in checkpoint.root.rglob("*")
        if path.is_dir() and (path.name in names or path.name.lower().endswith(endings))
    ]
    return sorted(name for name in inside if not is_hidden(name))


def runtime_files(checkpoint: Checkpoint) -> dict[str, str]:
    """Paths of the model's files that a runtime may read, by their names in the dense checkpoint.

    The shards and their index are left out.
    """
    folder = _model_folder(checkpoint)
    index = folder + (checkpoint.index_name or "")
    inside = [path for path in _model_paths(checkpoint) if path.startswith(folder) and path != index]
    names = {path.removeprefix(folder): path for path in inside}
    return {name: path for name, path in names.items() if may_be_taken(name)}


def unclaimed_files(checkpoint: Checkpoint) -> list[str]:
    """Paths of the files that a runtime may read and that only a hash or a reference can prove right.

    The index of the stored shards is left out: it is checked against the shards' headers.
    """
    index = None if checkpoint.layout.keeps_dense_files else checkpoint.index_name
    folder = _model_folder(checkpoint)
    return [p for p in _model_paths(checkpoint) if p != index and may_be_taken(p.removeprefix(folder))]


def _model_folder(checkpoint: Checkpoint) -> str:
    """The prefix of the paths of the model's own files in the checkpoint."""
    layout = checkpoint.layout
    return "" if layout.model_root == layout.root else f"{layout.model_root.relative_to(layout.root).as_posix()}/"


def _model_paths(checkpoint: Checkpoint) -> list[str]:
    """All files but the shards and the layout's own files."""
    layout = checkpoint.layout
    known = {*(shard.name for shard in checkpoint.shards), *checkpoint.lacking, *layout.own_files}
    records = f"{layout.own_folder}/" if layout.own_folder else "\0"
    return [path for path in all_files(checkpoint) if path not in known and not path.startswith(records)]


def may_be_taken(name: str) -> bool:
    """Whether a runtime may read a file: all but cards, licences, pictures, lists of sums and hidden files."""
    path = PurePosixPath(name)
    suffix = path.suffix.lower()
    if path.name.startswith(".") or suffix in _PAPERS or path.name in SUMS_FILES:
        return False
    is_text = suffix in _TEXTS or suffix[1:].isdigit()  # LICENSE-2.0
    return not (is_text and (path.name.upper().startswith("README") or is_licence(name) or is_licence(path.name)))


def is_far(checkpoint: Checkpoint, path: str) -> bool:
    """Whether a file is on the Hub alone."""
    return checkpoint.hub is not None and path in checkpoint.hub.files and not is_file(checkpoint.root / path)
