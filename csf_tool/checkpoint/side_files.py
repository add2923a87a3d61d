"""The files of a checkpoint beside its shards: configs, index, tokenizer, licence, and how they are carried over."""

import filecmp
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.index import INDEX_SUFFIX
from csf_tool.checkpoint.model import Checkpoint
from csf_tool.checkpoint.published import SUMS_FILES
from csf_tool.disk.own_files import is_own
from csf_tool.disk.reader import file_size, read_document

_REPLACED = {*CONFIG_FILES, *SUMS_FILES}
"""What is not carried over: configs are written anew, and sums are those of other shards."""


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


def plain_files(checkpoint: Checkpoint) -> list[SideFile]:
    """Every file of the model that is carried over as it is: all but shards, sums of them, configs and index."""
    if checkpoint.path.is_file():
        return []
    shards = {shard.path for shard in checkpoint.shards}
    return [
        SideFile(name, path)
        for name, path in checkpoint.layout.model_files().items()
        if path not in shards
        and name not in _REPLACED
        and not name.endswith(INDEX_SUFFIX)
        and not is_own(name)  # left by an interrupted run
    ]


def config_files(checkpoint: Checkpoint) -> list[SideFile]:
    """The config files that there are, as they are."""
    root = checkpoint.layout.model_root
    if checkpoint.path.is_file():
        return []
    return [SideFile(name, root / name) for name in CONFIG_FILES if (root / name).is_file()]


def rewritten_configs(checkpoint: Checkpoint, rewrite: Callable[[bytes, str], bytes]) -> list[SideFile]:
    """The config files as `rewrite` makes them of their bytes and their name."""
    return [SideFile(f.name, f.path, rewrite(read_document(f.path, f.name), f.name)) for f in config_files(checkpoint)]
