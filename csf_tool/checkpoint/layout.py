"""Layouts: the ways in which a checkpoint lies in its folder, and everything that differs between them.

`Layout` answers as an ordinary Hugging Face folder does. A further one overrides what differs, and is listed
in `checkpoint/known_layouts.py`; one that is written has a target in `write/targets.py` as well.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self

from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.index import INDEX_NAME, Index, find_index, is_index_name
from csf_tool.checkpoint.numbered import numbered_sets
from csf_tool.checkpoint.repository import Repository
from csf_tool.choices import Target
from csf_tool.codec.formats import CsfFormat
from csf_tool.disk.hashing import PublishedHash
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.paths import list_files, names_in, relative_files
from csf_tool.disk.reader import is_folder

if TYPE_CHECKING:
    from csf_tool.checkpoint.checkpoint import Checkpoint
    from csf_tool.checkpoint.container import Receipt, ScaleReceipt
    from csf_tool.checkpoint.problems import Problems
    from csf_tool.checkpoint.stored import Stored


class Cause(StrEnum):
    """Why files are not carried over; the value says so of several."""

    OWN = "csf-tool's own files"
    HIDDEN = "in hidden folders, which downloads and git leave behind"
    LINK = "links to folders that lead out of the checkpoint, in circles, or where another one leads"
    SUMS = "lists of hashes of the shards before this change"
    UNPROVED_WEIGHTS = "weights without a hash in manifest.json"
    ASIDE = "shards that were left out"
    NAME_TAKEN = "the output has a shard of that name"
    OTHER_INDEX = "an index whose tensors have other names now"
    BESIDE = "the container's own files, not the model's"


_LICENCE_NAMES = ("LICENSE", "LICENCE", "NOTICE", "COPYING")


def is_licence(name: str) -> bool:
    """Whether a file is a licence or a notice, or lies in a folder of them at the top."""
    return name.upper().startswith(_LICENCE_NAMES)


@dataclass(frozen=True)
class Folder:
    """A folder that is being recognised: its path, its index if it has one, and the shards right in it."""

    path: Path
    hub: Repository | None
    index_name: str | None
    shards: list[str]

    @classmethod
    def at(cls, path: Path, hub: Repository | None = None) -> Self:
        """The folder at a path, with what the Hub has of it."""
        shards = shard_files(path, hub=hub)
        return cls(path, hub, find_index(path, shards), shards)


def shard_files(root: Path, inside: str = "", *, hub: Repository | None) -> list[str]:
    """The names of the shards in a folder, links to missing blobs included, and those that the Hub has.

    Hidden files are none: macOS leaves a `._model.safetensors` beside every file on a foreign disk.
    """
    folder = root / inside
    names = (name for name in names_in(folder) if name.endswith(SHARD_SUFFIX) and not name.startswith("."))
    here = {name for name in names if not is_folder(folder / name)}
    return sorted(here.union(hub.shard_names(inside) if hub else ()))


class Layout:
    """The way in which a checkpoint lies in the folder `root`."""

    name: ClassVar[str]
    """The name in JSON reports and options."""
    words: ClassVar[str]
    """The name in messages."""
    shard_folder: ClassVar[str] = ""
    """The folder in the root that holds the shards; empty for the root itself."""
    main_document: ClassVar[str] = ""
    """The document that lists the shards and states the hashes of all files, so that its bytes stand for them."""
    own_files: ClassVar[frozenset[str]] = frozenset()
    """Files at the root that are the layout's and not the model's."""
    own_folder: ClassVar[str] = ""
    """A folder of such files."""
    totals_in: ClassVar[frozenset[str]] = frozenset()
    """Documents that state sums over all shards, and are at fault when one of these is gone on purpose."""
    identity_scheme: ClassVar[str] = "lil-fp4-csf-hf-v1"
    keeps_dense_files: ClassVar[bool] = False
    """Whether config and index are those of the dense model; they speak of the stored streams otherwise."""
    expects_config: ClassVar[bool] = True
    expects_index: ClassVar[bool] = True
    can_be_served: ClassVar[bool] = False
    """Whether there are engines that read it through a serving directory."""
    unproved: ClassVar[str] = "no hashes of the original"
    """Why nothing is known of the originals, where there are no receipts."""

    receipts: Mapping[str, "Receipt"] = MappingProxyType({})
    """Receipts, with what is known of the original shards, by their file names."""
    source_names: Mapping[str, str] = MappingProxyType({})
    """The file names of the shards in which dense tensors stood in the original."""
    remark: str = ""
    """A remark for reports: that another layout is mixed in."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def recognised(cls, folder: Folder, problems: "Problems") -> "Layout | None":  # noqa: ARG003 (others use them)
        """The layout of a folder with documents of its own; None where the folder is none of such.

        What is wrong is added to `problems`; with None, these are why the documents that are there do not count.

        Raises:
            CheckpointError: it is one, and its documents cannot be read.
        """
        return None

    @classmethod
    def has_remains(cls, path: Path) -> bool:  # noqa: ARG003
        """Whether a folder is one that has only lost its main document."""
        return False

    @classmethod
    def is_document(cls, name: str) -> bool:
        """Whether a file is one of those that say what a checkpoint is: a few megabytes beside its shards."""
        return "/" not in name and (name in CONFIG_FILES or is_index_name(name))

    @classmethod
    def needed_of(cls, root: Path) -> tuple[list[str], list[str]] | None:
        """The shards that a folder lists (without a list, those that are there); None where it is another layout.

        Then the files beside them that say what they are, as far as these always go with such shards: an index with
        those of a numbered set. Of a set that is not all there it is neither.

        Raises:
            CheckpointError: the list cannot be read.
        """
        if index := find_index(root):
            return sorted(Index(root, index).shards), [CONFIG_FILES[0]]
        names = [name for name in names_in(root) if name.endswith(SHARD_SUFFIX)]
        sets = numbered_sets(names)
        if any(len(numbers) != int(of.total) for of, numbers in sets.items()):
            return [], []
        return names, [INDEX_NAME] if sets else []

    @classmethod
    def stored_name(cls, file: str) -> str:
        """The name, in the checkpoint, of the shard that is called `file` in a dense one."""
        return f"{cls.shard_folder}/{file}" if cls.shard_folder else file

    @classmethod
    def dense_name(cls, stored: str) -> str:
        """The name, in a dense checkpoint, of a stored shard: `stored_name` the other way."""
        return stored.removeprefix(cls.stored_name(""))

    @classmethod
    def marks(cls, formats: Sequence[CsfFormat]) -> dict[str, str]:  # noqa: ARG003
        """Metadata of its shards' headers that state their formats."""
        return {}

    @property
    def scale_receipts(self) -> "dict[str, ScaleReceipt]":
        """The receipts' entries of all planes, by the scale's name."""
        return {name: scale for receipt in self.receipts.values() for name, scale in receipt.scales.items()}

    @property
    def listed(self) -> Collection[str]:
        """The file names of the shards, where a document of the layout lists them."""
        return ()

    @property
    def origin(self) -> str:
        """The repository and revision of the dense model, as far as its documents state them."""
        return ""

    @property
    def model_root(self) -> Path:
        """The folder of the model's own config, tokenizer and index."""
        return self.root

    def model_files(self) -> dict[str, Path]:
        """The files that may be the model's, by their names in its folder.

        Raises:
            EnvironmentFault: a folder cannot be listed.
        """
        return {name: self.root / name for name in relative_files(self.root) if name not in self.own_files}

    def left_out(self) -> dict[Cause, set[str]]:
        """Files among the model's that are none of `model_files`, by their names in the folder."""
        listing = list_files(self.model_root)
        return {Cause.HIDDEN: set(listing.hidden), Cause.LINK: set(listing.links)}

    def model_hashes(self) -> list[PublishedHash]:
        """The hashes that its documents state of the model's own files."""
        return []

    def shard_hashes(self) -> list[PublishedHash]:
        """The hashes that its documents state of the stored shards."""
        return []

    def cross_check(self, checkpoint: "Checkpoint", stored: "Stored") -> None:
        """Compare its documents with the shards."""


class HuggingFace(Layout):
    """An ordinary folder whose index lists the stored names, and whose recipes mark what is CSF."""

    name = Target.HF.value
    words = "Hugging Face layout"


class SingleFile(HuggingFace):
    """One shard, with or without its folder: neither index nor config need be there."""

    name = "file"
    words = "single file"
    expects_config = False
    expects_index = False
