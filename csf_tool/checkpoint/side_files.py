"""The files of a checkpoint beside its shards: configs, index, tokenizer, licence, and how they are carried over."""

import filecmp
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.container import CONTRACT, MANIFEST, METADATA, VERIFICATION
from csf_tool.checkpoint.index import INDEX_SUFFIX
from csf_tool.checkpoint.model import Checkpoint
from csf_tool.checkpoint.published import SUMS_FILES
from csf_tool.disk.own_files import is_own
from csf_tool.disk.paths import relative_files
from csf_tool.disk.reader import file_size, read_document

_LICENCE_NAMES = ("LICENSE", "LICENCE", "NOTICE", "COPYING")
_REPLACED = {*CONFIG_FILES, *SUMS_FILES}
"""What is not carried over: configs are written anew, and sums are those of other shards."""

_CONTAINER_FILES = {MANIFEST, CONTRACT, VERIFICATION}


@dataclass(frozen=True)
class SideFile:
    """A file to write beside the shards: its name in the model's folder, and its source or its new content.

    `folder` is where in the destination the model's folder lies.
    """

    name: str
    path: Path
    content: bytes | None = None
    folder: str = ""

    @classmethod
    def new(cls, name: str, content: bytes) -> "SideFile":
        """A file that no source has."""
        return cls(name, Path(name), content)

    @property
    def target(self) -> str:
        """Its path in the destination."""
        return f"{self.folder}/{self.name}" if self.folder else self.name

    @property
    def size(self) -> int:
        """Bytes to write.

        Raises:
            CheckpointError: it is no file: a link to a missing blob, say.
        """
        return file_size(self.path, self.name) if self.content is None else len(self.content)

    def is_equal_to(self, path: Path) -> bool:
        """Whether the file at `path` holds what this one is to hold."""
        if self.content is None:
            return filecmp.cmp(self.path, path, shallow=False)
        return path.read_bytes() == self.content


def model_root(checkpoint: Checkpoint) -> Path:
    """Where the model's own config, tokenizer and index lie."""
    return checkpoint.container.metadata_root if checkpoint.container else checkpoint.root


def plain_files(checkpoint: Checkpoint) -> list[SideFile]:
    """Every file of the model that is carried over as it is: all but shards, sums of them, configs and index."""
    if checkpoint.path.is_file():
        return []
    if checkpoint.container is None:
        return _carried(checkpoint.root, relative_files(checkpoint.root), checkpoint)
    root = checkpoint.root
    own = [p.name for p in sorted(root.iterdir()) if p.is_file() and p.name not in _CONTAINER_FILES]
    if not (root / METADATA).is_dir():  # home-made: the model's files lie at the root
        return _carried(root, own, checkpoint)
    found = _carried(root / METADATA, relative_files(root / METADATA), checkpoint)
    taken = {file.name for file in found}
    own += [f"{p.name}/{name}" for p in sorted(root.iterdir()) if p.is_dir() for name in _files_of_licences(p)]
    licences = [name for name in own if is_licence(name) and name not in taken]
    return found + _carried(root, licences, checkpoint)


def _files_of_licences(folder: Path) -> list[str]:
    return relative_files(folder) if is_licence(folder.name) else []


def is_licence(name: str) -> bool:
    """Whether a file is a licence or a notice, or lies in a folder of them at the top."""
    return name.upper().startswith(_LICENCE_NAMES)


def _carried(root: Path, names: Iterable[str], checkpoint: Checkpoint) -> list[SideFile]:
    shards = {shard.path for shard in checkpoint.shards}
    return [
        SideFile(name, root / name)
        for name in names
        if root / name not in shards
        and name not in _REPLACED
        and not name.endswith(INDEX_SUFFIX)
        and not is_own(name)  # left by an interrupted run
    ]


def config_files(checkpoint: Checkpoint) -> list[SideFile]:
    """The config files that there are, as they are."""
    root = model_root(checkpoint)
    if checkpoint.path.is_file():
        return []
    return [SideFile(name, root / name) for name in CONFIG_FILES if (root / name).is_file()]


def rewritten_configs(checkpoint: Checkpoint, rewrite: Callable[[bytes, str], bytes]) -> list[SideFile]:
    """The config files as `rewrite` makes them of their bytes and their name."""
    return [SideFile(f.name, f.path, rewrite(read_document(f.path, f.name), f.name)) for f in config_files(checkpoint)]
