"""identity: one string by which launchers know that two machines hold the same checkpoint."""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.index import INDEX_NAME
from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.checkpoint.published import published_hashes, sha256_by_file
from csf_tool.checkpoint.stored import Shard
from csf_tool.choices import IdentityBy
from csf_tool.codes import Code
from csf_tool.disk.hashing import sha256_of
from csf_tool.disk.reader import is_file, read_document
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.progress import Amount, Progress
from csf_tool.text import counted


class Basis(StrEnum):
    """Basis of an identity, hashes or sizes of the shards. Identities of different bases cannot be compared."""

    MANIFEST = "manifest"
    DIGESTS = "digests"
    SIZES = "sizes"

    @property
    def words(self) -> str:
        """The strength of the identity in words."""
        return {
            Basis.MANIFEST: "digest-based: the bytes of the manifest",
            Basis.DIGESTS: "digest-based: the SHA-256 of every shard",
            Basis.SIZES: "size-based: other bytes of the same size have the same identity; --hash reads every byte",
        }[self]


@dataclass
class Identity:
    """A content identity: SHA-256 in hex, its scheme and its basis.

    `shards` has the SHA-256 of each shard, or its size in decimal. `problems` are recorded hashes that differ from the
    computed ones.
    """

    path: str
    scheme: str
    digest: str
    basis: Basis
    shards: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def find_identity(
    checkpoint: Checkpoint, by: IdentityBy, progress: Progress, *, compute_hashes: bool = False
) -> Identity:
    """The identity of a container or a Hugging Face checkpoint: the same for the same files from any source.

    It is made from the SHA-256 of every shard, as the Hub, a Hub cache, `hf download` or SHA256SUMS recorded it, or as
    computed now; or from the size of every shard. The two are never mixed.

    Raises:
        UsageError: the layout has no identity, or not this one without hashing.
        CheckpointError: a file that the identity is made of is missing, or records contradict each other.
    """
    if compute_hashes and checkpoint.is_remote:
        raise UsageError(f"--hash: {checkpoint.label} is on the Hub: fetch it first with `hf download`")
    if compute_hashes and by is IdentityBy.SIZES:
        raise UsageError("--hash and --by sizes: an identity by sizes uses no hashes, so give one of them")
    scheme = checkpoint.layout.identity_scheme
    hasher = hashlib.sha256(f"{scheme}\0".encode())
    if document := checkpoint.layout.main_document:
        if by is IdentityBy.SIZES:
            kind = checkpoint.layout.words
            raise UsageError(f"--by sizes: {checkpoint.label} is a {kind}: its identity is made from {document}")
        hasher.update(_bytes_of(checkpoint, document))
        found = Identity(checkpoint.label, scheme, hasher.hexdigest(), Basis.MANIFEST)
        found.problems = _checked_document(checkpoint, document, progress, compute_hashes)
        return found
    if checkpoint.index is None:
        if len(checkpoint.shards) > 1:
            raise CheckpointError("missing: the identity is made from it", Code.MISSING_FILE, INDEX_NAME)
        raise UsageError(f"{checkpoint.label}: has no index: only a container or an indexed folder has an identity")
    problems = [problem for problem in checkpoint.problems if problem.code is Code.SHARD_LEFT_ASIDE]
    shards = _indexed(checkpoint)
    if by is IdentityBy.SIZES:
        contents = {shard.name: str(shard.size) for shard in shards}
    elif compute_hashes:
        contents = _computed(checkpoint, shards, progress)
        problems += _unfit_records(checkpoint, contents)
    else:
        contents = _recorded(checkpoint, shards)
    for name in (CONFIG_FILES[0], checkpoint.index.name or INDEX_NAME):
        hasher.update(_bytes_of(checkpoint, name) + b"\0")
    for name, content in contents.items():
        hasher.update(f"{name}\0{content}\0".encode())
    return Identity(checkpoint.label, scheme, hasher.hexdigest(), Basis(by.value), contents, problems)


def _checked_document(checkpoint: Checkpoint, document: str, progress: Progress, compute_hashes: bool) -> list[Problem]:
    """Problems of a document that states the SHA-256 of every shard, from which the identity is made.

    Raises:
        CheckpointError: the computed hash of a shard is not the stated one.
    """
    problems = []
    stated = {entry.file for entry in checkpoint.layout.shard_hashes()}
    if bare := [shard.name for shard in checkpoint.shards if shard.name not in stated]:
        text = f"has no SHA-256 of {counted(bare, 'shard')}: other files of the same size would have the same identity"
        problems.append(Problem(text, Code.INVALID_FIELD, document, severity=Severity.WARNING))
    if compute_hashes:
        unfit = _unfit_records(checkpoint, _computed(checkpoint, checkpoint.shards, progress))
        if unfit:
            raise unfit[0].as_error()
    return problems


def _indexed(checkpoint: Checkpoint) -> list[Shard]:
    """The indexed shards, in sorted order."""
    assert checkpoint.index is not None
    shards = {shard.name: shard for shard in checkpoint.shards}
    indexed = sorted(set(checkpoint.index.weight_map.values()))
    if missing := [name for name in indexed if name not in shards]:
        known = (problem.problem for problem in checkpoint.problems if problem.file == missing[0])
        problem = f"an incomplete checkpoint has no identity: {next(known, 'it is missing')}"
        raise CheckpointError(problem, Code.MISSING_FILE, missing[0])
    return [shards[name] for name in indexed]


def _computed(checkpoint: Checkpoint, shards: list[Shard], progress: Progress) -> dict[str, str]:
    """The SHA-256 of shards, computed from their bytes."""
    progress.start("hash", Amount(sum(shard.size for shard in shards), len(shards)))
    found = {}
    for shard in shards:
        found[shard.name] = sha256_of(checkpoint.root / shard.name, shard.name, progress.advance)
        progress.shard_done()
    return found


def _recorded(checkpoint: Checkpoint, shards: list[Shard]) -> dict[str, str]:
    """The SHA-256 of shards, as recorded."""
    recorded = sha256_by_file(published_hashes(checkpoint))
    if bare := [shard.name for shard in shards if shard.name not in recorded]:
        remedy = "fetch it with `hf download`, and give --hash" if checkpoint.is_remote else "--hash reads every byte"
        problem = f"no SHA-256 is recorded for {counted(bare, 'shard')}: {remedy}"
        problem += "; --by sizes gives another kind of identity"
        raise UsageError(problem, Code.NO_RECORDED_HASH, checkpoint.label)
    return {shard.name: recorded[shard.name] for shard in shards}


def _unfit_records(checkpoint: Checkpoint, contents: dict[str, str]) -> list[Problem]:
    """Recorded hashes that differ from the computed ones."""
    entries = [e for e in published_hashes(checkpoint) if e.algorithm == "sha256" and e.file in contents]
    return [
        Problem(
            f"sha256 is {contents[e.file]}, expected {e.digest} ({e.place})",
            Code.HASH_DIFFERS,
            e.file,
            severity=Severity.WARNING,
        )
        for e in entries
        if contents[e.file] != e.digest
    ]


def _bytes_of(checkpoint: Checkpoint, name: str) -> bytes:
    path = checkpoint.root / name
    if not is_file(path):
        raise CheckpointError("missing: the identity is made from it", Code.MISSING_FILE, name)
    return read_document(path, name)
