"""The layout of CSF containers: folders for shards and for the source's files, documents with the hashes of both."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.container import (
    CONTRACT,
    MANIFEST,
    METADATA,
    METADATA_SHA256,
    RECEIPTS,
    SHARDS,
    SOURCE_INDEX_SHA256,
    TENSORS,
    VERIFICATION,
    Receipt,
    ShardRow,
    is_sha256,
    receipt_name,
)
from csf_tool.checkpoint.container_check import compare_with_shards
from csf_tool.checkpoint.container_reading import read_documents, read_manifest
from csf_tool.checkpoint.index import INDEX_NAME, read_index
from csf_tool.checkpoint.layout import Cause, Folder, Layout, is_licence, shard_files
from csf_tool.checkpoint.names import parse_stream_name
from csf_tool.checkpoint.problems import Problem, Problems
from csf_tool.checkpoint.stored import Stored
from csf_tool.choices import Target
from csf_tool.codec.formats import CsfFormat
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.json_files import load_json
from csf_tool.disk.paths import list_files, relative_files
from csf_tool.disk.reader import exists, is_folder
from csf_tool.errors import CheckpointError

_FOLDERS = {TENSORS, RECEIPTS, METADATA}
"""The folders of a container, which may be links."""

_MIXED = "a container and a Hugging Face checkpoint seem to be in one folder. Download each into its own folder"


@dataclass
class Container(Layout):
    """A container, with its documents as far as they could be read."""

    name = Target.CONTAINER.value
    words = "CSF container"
    shard_folder = TENSORS
    main_document = MANIFEST
    own_files = frozenset({MANIFEST, CONTRACT, VERIFICATION})
    own_folder = RECEIPTS
    totals_in = frozenset({MANIFEST, VERIFICATION})
    identity_scheme = "lil-fp4-csf-v1"
    keeps_dense_files = True
    expects_config = False
    can_be_served = True
    unproved = "no receipts, so no hashes of the original"

    root: Path
    fmt: CsfFormat
    manifest: dict[str, Any]
    rows: dict[str, ShardRow] = field(default_factory=dict)
    metadata_sha256: dict[str, str] = field(default_factory=dict)
    contract: dict[str, Any] | None = None
    source_names: dict[str, str] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    remark: str = ""

    @classmethod
    def read(cls, root: Path, problems: Problems) -> "Container":
        """The container at `root`; what is wrong with its documents is added to `problems`.

        Raises:
            CheckpointError: the manifest cannot be read, or is not a CSF container's.
        """
        container = cls(root, *read_manifest(root))
        read_documents(container, problems)
        return container

    @classmethod
    def recognised(cls, folder: Folder, problems: Problems) -> "Container | None":
        """See `Layout.recognised`."""
        path, taken = folder.path, "so csf-tool reads the folder as a Hugging Face checkpoint"
        if not exists(path / MANIFEST):
            return None
        found = Problems()
        try:
            container = cls.read(path, found)
        except CheckpointError as error:
            if not folder.index_name and not folder.shards:
                raise
            if is_folder(path / TENSORS):
                problems.warn(f"cannot be read, {taken} ({error})", error.code, MANIFEST)
            return None
        if folder.shards and not shard_files(path, TENSORS, hub=folder.hub):
            problems.warn(f"lists shards in {TENSORS}, but there are none, {taken}", Code.MIXED_LAYOUTS, MANIFEST)
            return None
        mixed = _mixed_index(path, folder.index_name) if folder.index_name else []
        mixed += [Problem(f"a shard beside {MANIFEST}: {_MIXED}", Code.MIXED_LAYOUTS, name) for name in folder.shards]
        problems += found + mixed
        container.remark = "mixed with a Hugging Face checkpoint" if mixed else ""
        return container

    @classmethod
    def has_remains(cls, path: Path) -> bool:
        """See `Layout.has_remains`."""
        return is_folder(path / TENSORS) and (exists(path / CONTRACT) or is_folder(path / RECEIPTS))

    @classmethod
    def is_document(cls, name: str) -> bool:
        """See `Layout.is_document`."""
        folder, _, file = name.rpartition("/")
        if folder == RECEIPTS:
            return file.endswith(".json")
        return name in cls.own_files or (folder == METADATA and Layout.is_document(file))

    @classmethod
    def needed_of(cls, root: Path) -> tuple[list[str], list[str]] | None:
        """See `Layout.needed_of`."""
        if not exists(root / MANIFEST):
            return None
        manifest = load_json(root / MANIFEST, MANIFEST)
        rows = manifest.get(SHARDS) if isinstance(manifest, dict) else None
        files = [str(row.get("file")) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return (list(map(cls.stored_name, files)), [CONTRACT, *map(receipt_name, files)]) if files else None

    @classmethod
    def marks(cls, formats: Sequence[CsfFormat]) -> dict[str, str]:
        """See `Layout.marks`; all planes of a container are of one format."""
        [fmt] = formats
        return {"schema": fmt.schema, "codec": fmt.codec}

    @property
    def listed(self) -> Collection[str]:
        """The file names of the shards in the manifest."""
        return self.rows.keys()

    @property
    def origin(self) -> str:
        """The dense model's repository and revision, as far as the manifest states them."""
        stated = (self.manifest.get(key) for key in ("source_model_id", "source_revision"))
        return "@".join(value for value in stated if isinstance(value, str) and value)

    @property
    def model_root(self) -> Path:
        """The folder of the source's config, tokenizer and index: metadata/, or the root of a home-made container."""
        folder = self.root / METADATA
        return folder if is_folder(folder) else self.root

    def model_files(self) -> dict[str, Path]:
        """See `Layout.model_files`; licences at the root are the model's, too."""
        root = self.model_root
        names = [name for name in relative_files(root) if not name.endswith(SHARD_SUFFIX) and not self._is_own(name)]
        found = {name: root / name for name in sorted({*names, *self.metadata_sha256})}
        if root == self.root:
            return found
        licences = [name for name in relative_files(self.root) if is_licence(name) and not name.endswith(SHARD_SUFFIX)]
        return found | {name: self.root / name for name in licences if name not in found}

    def left_out(self) -> dict[Cause, set[str]]:
        """See `Layout.left_out`. Shards that no hash covers are left out: readers would take them for the model's."""
        folder, listing = self.model_root.relative_to(self.root), list_files(self.model_root)
        carried = {path.relative_to(self.root).as_posix() for path in self.model_files().values()}
        weights = {(folder / name).as_posix() for name in listing.files if name.endswith(SHARD_SUFFIX)}
        around = listing if self.model_root == self.root else list_files(self.root)
        own = {*self.own_files, *map(self.stored_name, self.rows), *map(receipt_name, self.rows)}
        beside = {name for name in around.files if self.model_root != self.root or self._is_own(name)}
        if self.model_root != self.root:
            beside = {n for n in (*beside, *around.hidden, *around.links) if not n.startswith(f"{METADATA}/")}
        return {
            Cause.HIDDEN: set(listing.hidden),
            Cause.LINK: set(listing.links) - _FOLDERS,
            Cause.UNPROVED_WEIGHTS: {name for name in weights - carried if not self._is_own(name)},
            Cause.BESIDE: beside - own - carried - _FOLDERS,
        }

    def _is_own(self, name: str) -> bool:
        """Whether a file is one of the container's own, which a home-made container has among the model's."""
        is_documented = name in self.own_files or name.startswith((f"{TENSORS}/", f"{RECEIPTS}/"))
        return is_documented and self.model_root == self.root

    def shard_hashes(self) -> list[PublishedHash]:
        """The hashes that the manifest has of the stored shards."""
        return [
            PublishedHash(self.stored_name(row.file), "sha256", row.target_sha256, "target_sha256")
            for row in self.rows.values()
            if row.target_sha256
        ]

    def model_hashes(self) -> list[PublishedHash]:
        """The hashes that the manifest has of the source's config, tokenizer, index and so on."""
        found = dict.fromkeys(self.metadata_sha256, METADATA_SHA256)
        digests = dict(self.metadata_sha256)
        stated = self.manifest.get(SOURCE_INDEX_SHA256)
        if INDEX_NAME not in digests and exists(self.model_root / INDEX_NAME) and is_sha256(stated):
            found[INDEX_NAME], digests[INDEX_NAME] = SOURCE_INDEX_SHA256, str(stated)
        folder = self.model_root.relative_to(self.root)
        return [
            PublishedHash((folder / name).as_posix(), "sha256", digests[name], evidence)
            for name, evidence in found.items()
        ]

    def cross_check(self, checkpoint: Checkpoint, stored: Stored) -> None:
        """See `Layout.cross_check`."""
        compare_with_shards(self, checkpoint, stored)


def _mixed_index(path: Path, index_name: str) -> list[Problem]:
    """Problems of an index at the root: one that lists streams is the other layout's, no copy of the source's."""
    try:
        names = read_index(path, index_name).weight_map
    except CheckpointError as error:
        return [Problem.of(error)]
    if not any(map(parse_stream_name, names)):
        return []
    return [Problem(f"lists CSF streams beside {MANIFEST}: {_MIXED}", Code.MIXED_LAYOUTS, index_name)]
