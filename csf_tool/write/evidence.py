"""Comparing the source of a run with the hashes that came with it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.checkpoint.published import (
    damaged_evidence,
    mixed_revisions,
    published_hashes,
    sha256_by_file,
)
from csf_tool.checkpoint.stored import Shard
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash, hash_faults
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.reader import is_file
from csf_tool.errors import CheckpointError
from csf_tool.progress import OnBytes

Evidence = Mapping[str, tuple[PublishedHash, ...]]
"""The hashes that are known of files, by name."""


def evidence_warnings(checkpoint: Checkpoint) -> list[Problem]:
    """Warnings of oddities among the hashes that came with a checkpoint; it can be read all the same."""
    missing = [
        Problem(f"is missing, but its hash is known ({entry.place})", Code.MISSING_FILE, entry.file)
        for entry in ([] if checkpoint.hub else published_hashes(checkpoint))
        if not entry.file.endswith(SHARD_SUFFIX) and not is_file(checkpoint.root / entry.file)
    ]
    problems = [*damaged_evidence(checkpoint), *missing, *mixed_revisions(checkpoint)]
    return [replace(problem, severity=Severity.WARNING) for problem in problems]


def require_known_hashes(checkpoint: Checkpoint, refusal: str) -> None:
    """Check the files beside the shards by every hash that is known of them, and that hashes do not contradict.

    Raises:
        CheckpointError: a file does not have its hash, or two hashes cannot both be right.
    """
    promised = {entry.file for entry in checkpoint.layout.model_hashes()}
    shards = {shard.name for shard in checkpoint.shards}
    known = [
        entry
        for entry in published_hashes(checkpoint)
        if entry.file in shards | promised or is_file(checkpoint.root / entry.file)
        if entry.file not in checkpoint.aside  # nothing is made of these
    ]
    sha256_by_file(known)
    for file, entries in _by_file(entry for entry in known if entry.file not in shards).items():
        require_hash(checkpoint.root / file, file, entries, refusal=refusal)


def shard_evidence(checkpoint: Checkpoint) -> Evidence:
    """The hashes that are known of the shards here; those on the Hub are compared when they are fetched."""
    names = {shard.name for shard in checkpoint.shards if not shard.remote}
    return _by_file(entry for entry in published_hashes(checkpoint) if entry.file in names)


def hashed_first(evidence: Evidence, passes_source: bool) -> Evidence:
    """The hashes to compare before a source is used: all but the SHA-256 of one whose every byte will pass."""
    if not passes_source:
        return evidence
    return {name: known for name, known in evidence.items() if any(entry.algorithm != "sha256" for entry in known)}


def require_hashes(sources: Iterable[Shard], evidence: Evidence, on_bytes: OnBytes) -> None:
    """Read those of `sources` whose hashes are known, and compare them.

    Raises:
        As `require_hash`.
    """
    for source in sources:
        if source.name in evidence:
            require_hash(source.path, source.name, evidence[source.name], on_bytes)


def require_passed(sources: Iterable[Shard], evidence: Evidence, sha256: str) -> None:
    """Check the SHA-256 of the one source all of whose bytes have passed.

    Raises:
        As `require_hash`.
    """
    for source in sources:
        known = evidence.get(source.name, ())
        if any(entry.algorithm == "sha256" and entry.digest != sha256 for entry in known):
            require_hash(source.path, source.name, known)  # bytes that belong to no tensor do not pass


def require_hash(
    path: Path,
    name: str,
    known: Iterable[PublishedHash],
    on_bytes: OnBytes = lambda _: None,
    refusal: str = "not written from",
    sha256: str | None = None,
) -> None:
    """Check that a file has the hashes that are `known` of it.

    Raises:
        CheckpointError: it does not have them.
        EnvironmentFault: the system cannot read it.
    """
    if faults := hash_faults(path, name, known, sha256, on_bytes):
        remedy = "download it again, or remove that record if you changed the file on purpose"
        found = faults[0].replace("sha256", "SHA-256", 1)
        raise CheckpointError(f"{refusal}: its {found}: {remedy}", Code.HASH_DIFFERS, name)


def _by_file(entries: Iterable[PublishedHash]) -> dict[str, tuple[PublishedHash, ...]]:
    found: dict[str, tuple[PublishedHash, ...]] = {}
    for entry in entries:
        found[entry.file] = (*found.get(entry.file, ()), entry)
    return found
