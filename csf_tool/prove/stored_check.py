"""Checking that the stored files are the published ones: by every hash that somebody gives for one of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from csf_tool.checkpoint.model import Checkpoint
from csf_tool.checkpoint.problems import Problem, errors, warnings
from csf_tool.checkpoint.published import damaged_evidence, download_commits
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash, hash_file
from csf_tool.disk.reader import is_file
from csf_tool.errors import CheckpointError
from csf_tool.prove.verdict import Check
from csf_tool.text import count


def check_stored(
    check: Check,
    checkpoint: Checkpoint,
    published: list[PublishedHash],
    digests: Mapping[str, str],
    shards: Iterable[str],
) -> None:
    """Compare the hash of every file for which there is one; the check is skipped if one of `shards` has none.

    `digests` are the SHA-256 of files that have been read already.
    """
    here: dict[str, list[PublishedHash]] = {}
    for entry in published:
        if not _is_far(checkpoint, entry.file, digests):
            here.setdefault(entry.file, []).append(entry)
    for file, entries in here.items():
        _check_file(check, checkpoint.root / file, entries, digests.get(file))
    check.checked = len(here)
    _check_downloads(check, checkpoint)
    bare = [name for name in shards if name not in here]
    if far := [name for name in bare if _is_far(checkpoint, name, digests)]:
        check.skip(f"{count(len(far), 'shard')} not fetched whole, as {far[0]} (--all-tensors does)")
    elif bare:
        check.skip(f"no published hash for {count(len(bare), 'shard')}, as {bare[0]}")
    else:
        check.note = f"{count(len(here), 'file')} by {', '.join(dict.fromkeys(e.evidence for e in published))}"


def _is_far(checkpoint: Checkpoint, file: str, digests: Mapping[str, str]) -> bool:
    """Whether a file is on the Hub, and has not been read whole."""
    on_hub = checkpoint.hub is not None and file in checkpoint.hub.files
    return on_hub and file not in digests and not is_file(checkpoint.root / file)


def _check_file(check: Check, path: Path, entries: list[PublishedHash], sha256: str | None) -> None:
    """Compare a file with what is published of it; its SHA-256 may be known."""
    file = entries[0].file
    if sha256 is None and not is_file(path):
        check.fail(f"is not there; its hash is known ({entries[0].evidence})", Code.MISSING_FILE, file)
        return
    found = {"sha256": sha256} if sha256 is not None else {}
    wanted = {entry.algorithm for entry in entries} - found.keys()
    try:
        found |= hash_file(path, file, wanted, lambda _: None) if wanted else {}
    except CheckpointError as error:
        check.failures.append(Problem.of(error, file))
        return
    for entry in entries:
        if found[entry.algorithm] != entry.digest:
            text = f"{entry.algorithm} is {found[entry.algorithm]}, {entry.evidence} says {entry.digest}"
            check.fail(text, Code.HASH_DIFFERS, file)


def _check_downloads(check: Check, checkpoint: Checkpoint) -> None:
    """Say what is wrong with the notes of downloaders, and that they name several revisions."""
    damaged = damaged_evidence(checkpoint)
    check.failures += errors(damaged)
    check.warnings += warnings(damaged)
    if len(commits := download_commits(checkpoint)) > 1:
        said = "; ".join(f"{commit[:12]}: {count(len(files), 'file')}" for commit, files in commits.items())
        check.warn(f"the files come from different revisions ({said})", Code.MIXED_REVISIONS)
