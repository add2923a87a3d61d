"""The files of a checkpoint beside its shards: configs, index, tokenizer, licence, and how they are carried over."""

import filecmp
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.layout import Cause
from csf_tool.checkpoint.published import SUMS_FILES
from csf_tool.disk.own_files import is_own
from csf_tool.disk.paths import is_hidden, names_in
from csf_tool.disk.reader import file_size, is_file, read_document


@dataclass(frozen=True)
class SideFile:
    """A file to write beside the shards: its name in the model's folder, and its source or its new content.

    `folder` is where in the destination the model's folder lies. `sha256` is the hash that the file must have, where
    it is known.
    """

    name: str
    path: Path
    content: bytes | None = None
    folder: str = ""
    sha256: str | None = None

    @classmethod
    def new(cls, name: str, content: bytes) -> "SideFile":
        """A file with new content."""
        return cls(name, Path(name), content)

    @property
    def target(self) -> str:
        """The path in the destination."""
        return f"{self.folder}/{self.name}" if self.folder else self.name

    @property
    def size(self) -> int:
        """Bytes to write.

        Raises:
            CheckpointError: the source is no file, but for example a link to a missing blob.
        """
        return file_size(self.path, self.name) if self.content is None else len(self.content)

    def is_equal_to(self, path: Path) -> bool:
        """Whether the file at `path` holds what this one is to hold."""
        if not is_file(path):  # opening a pipe would wait for ever
            return False
        if self.content is None:
            return filecmp.cmp(self.path, path, shallow=False)
        return path.read_bytes() == self.content


@dataclass
class CarriedFiles:
    """The files beside the shards: those carried over as they are, and the names of those left out, by the cause."""

    files: list[SideFile] = field(default_factory=list)
    left_out: dict[Cause, list[str]] = field(default_factory=dict)

    def leave_out(self, cause: Cause, names: Iterable[str]) -> None:
        """Note that files are not carried over."""
        if found := sorted(names):
            self.left_out[cause] = sorted({*self.left_out.get(cause, ()), *found})


def carried_files(checkpoint: Checkpoint, *, same_shards: bool = False) -> CarriedFiles:
    """Every file of the model but its shards, the configs at the top, and the index of the shards.

    Hashes of shards go along where the result stands for the `same_shards`.

    Raises:
        EnvironmentFault: a folder cannot be listed.
    """
    found, layout = CarriedFiles(), checkpoint.layout
    if is_file(checkpoint.path):
        return found
    for cause, names in layout.left_out().items():
        found.leave_out(cause, names)
    if checkpoint.hub:  # nothing of such folders has been fetched
        found.leave_out(Cause.HIDDEN, filter(is_hidden, checkpoint.hub.files))
    files = layout.model_files()
    own = set(filter(is_own, files))
    is_original = same_shards and (layout.model_root != layout.root or not layout.main_document)
    sums = set() if is_original else {name for name in SUMS_FILES if name in files}
    found.leave_out(Cause.OWN, own)
    found.leave_out(Cause.SUMS, sums)
    found.leave_out(Cause.ASIDE, checkpoint.aside)
    not_plain = {*CONFIG_FILES, checkpoint.index_name, *own, *sums, *checkpoint.aside}
    shards = {shard.path for shard in checkpoint.shards}
    found.files += [SideFile(n, path) for n, path in files.items() if n not in not_plain and path not in shards]
    return found


def covered_files(checkpoint: Checkpoint) -> dict[str, str]:
    """The SHA-256 that the layout's documents give of the model's files, by their names in the model's folder."""
    folder = checkpoint.layout.model_root.relative_to(checkpoint.root)
    return {Path(e.file).relative_to(folder).as_posix(): e.digest for e in checkpoint.layout.model_hashes()}


def config_files(checkpoint: Checkpoint) -> list[SideFile]:
    """The config files that there are, as they are. What has such a name and is no file is refused when it is read."""
    if is_file(checkpoint.path):
        return []
    root = checkpoint.layout.model_root
    there = names_in(root)
    return [SideFile(name, root / name) for name in CONFIG_FILES if name in there]


def rewritten_configs(checkpoint: Checkpoint, rewrite: Callable[[bytes, str], bytes]) -> list[SideFile]:
    """The config files as `rewrite` makes them of their bytes and their name."""
    return [SideFile(f.name, f.path, rewrite(read_document(f.path, f.name), f.name)) for f in config_files(checkpoint)]
