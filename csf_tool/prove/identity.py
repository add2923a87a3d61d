"""identity: the one string that says whether two machines hold the same checkpoint; launchers pin it."""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.index import INDEX_NAME
from csf_tool.checkpoint.model import Checkpoint
from csf_tool.checkpoint.published import recorded_hashes
from csf_tool.codes import Code
from csf_tool.disk.hashing import sha256_of
from csf_tool.disk.reader import is_file, read_document
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.progress import Progress


class Basis(StrEnum):
    """What stands for a shard's content in the identity."""

    MANIFEST = "manifest"
    DIGESTS = "digests"
    SIZES = "sizes"
    MIXED = "digests and sizes"

    @property
    def words(self) -> str:
        """How much the identity is worth, for people."""
        sizes = "a copy of that size with other bytes has the same one; --hash reads every byte"
        return {
            Basis.MANIFEST: "digest-based: the bytes of the manifest",
            Basis.DIGESTS: "digest-based: the SHA-256 of every shard",
            Basis.SIZES: f"size-based: {sizes}",
            Basis.MIXED: f"digest-based for some shards, size-based for the others: {sizes}",
        }[self]


@dataclass
class Identity:
    """A content identity: SHA-256 in hex, by which scheme, and what it rests on.

    `shards` has what stood for each shard: its LFS SHA-256, or its size in decimal.
    """

    path: str
    scheme: str
    digest: str
    basis: Basis
    shards: dict[str, str] = field(default_factory=dict)


def find_identity(checkpoint: Checkpoint, compute_hashes: bool, progress: Progress) -> Identity:
    """The identity of a container or a Hugging Face checkpoint.

    A shard stands for itself by its recorded LFS SHA-256 (the blob's name in a Hub cache, or what `hf download`
    noted), else by its size; with `compute_hashes` every shard is hashed instead.

    Raises:
        UsageError: the layout has no identity.
        CheckpointError: a file that the identity is made of is missing.
    """
    scheme = checkpoint.layout.identity_scheme
    hasher = hashlib.sha256(f"{scheme}\0".encode())
    if document := checkpoint.layout.main_document:
        hasher.update(_bytes_of(checkpoint, document))
        return Identity(checkpoint.label, scheme, hasher.hexdigest(), Basis.MANIFEST)
    if checkpoint.index is None:
        if len(checkpoint.shards) > 1:
            raise CheckpointError("not there: the identity is made of it", Code.MISSING_FILE, INDEX_NAME)
        raise UsageError(f"{checkpoint.label}: has no index: only a container or an indexed folder has an identity")
    contents = _contents(checkpoint, compute_hashes, progress)
    for name in (CONFIG_FILES[0], checkpoint.index.name or INDEX_NAME):
        hasher.update(_bytes_of(checkpoint, name) + b"\0")
    for name, content in contents.items():
        hasher.update(f"{name}\0{content}\0".encode())
    return Identity(checkpoint.label, scheme, hasher.hexdigest(), _basis(contents), contents)


def _contents(checkpoint: Checkpoint, compute_hashes: bool, progress: Progress) -> dict[str, str]:
    """What stands for each indexed shard, in sorted order."""
    assert checkpoint.index is not None
    shards = {shard.name: shard for shard in checkpoint.shards}
    indexed = sorted(set(checkpoint.index.weight_map.values()))
    if missing := [name for name in indexed if name not in shards]:
        problem = "not there or not readable: an incomplete checkpoint has no identity"
        raise CheckpointError(problem, Code.MISSING_FILE, missing[0])
    if compute_hashes and checkpoint.is_remote:
        raise UsageError(f"--hash: {checkpoint.label} is on the Hub: fetch it first with `hf download`")
    if compute_hashes:
        progress.start("hash", sum(shards[name].size for name in indexed))
        return {name: sha256_of(checkpoint.root / name, name, progress.advance) for name in indexed}
    recorded = {entry.file: entry.digest for entry in recorded_hashes(checkpoint) if entry.algorithm == "sha256"}
    return {name: recorded.get(name, str(shards[name].size)) for name in indexed}


def _basis(contents: dict[str, str]) -> Basis:
    digests = sum(len(content) == hashlib.sha256().digest_size * 2 for content in contents.values())
    if digests == len(contents):
        return Basis.DIGESTS
    return Basis.MIXED if digests else Basis.SIZES


def _bytes_of(checkpoint: Checkpoint, name: str) -> bytes:
    path = checkpoint.root / name
    if not is_file(path):
        raise CheckpointError("not there: the identity is made of it", Code.MISSING_FILE, name)
    return read_document(path, name)
