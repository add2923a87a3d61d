"""Hashes that somebody else published for a checkpoint's files, and computing ours."""

import re
from collections.abc import Iterator
from pathlib import Path

from csf_tool.checkpoint.container import TENSORS, Container
from csf_tool.checkpoint.downloads import NOTES
from csf_tool.checkpoint.hash_list import HashList, can_list, digest_line
from csf_tool.checkpoint.index import INDEX_NAME
from csf_tool.checkpoint.model import Checkpoint
from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.disk.hashing import PublishedHash, sha256_of
from csf_tool.disk.paths import is_safe_relative, relative_files
from csf_tool.disk.reader import is_file, read_document

_NOTE_SUFFIX = ".metadata"

SUMS_FILES = ("SHA256SUMS", "SHA256SUMS.txt", "sha256sums.txt", "sha256sum.txt")
"""Names of files as `sha256sum` writes them."""

_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")


def published_hashes(checkpoint: Checkpoint) -> list[PublishedHash]:
    """Every hash that the checkpoint's own surroundings hold for its files."""
    found = _container_hashes(checkpoint.container) if checkpoint.container else []
    return found + _sums(checkpoint.root) + recorded_hashes(checkpoint)


def recorded_hashes(checkpoint: Checkpoint) -> list[PublishedHash]:
    """The hashes that the Hub lists, or that a Hub cache or `hf download` recorded."""
    if checkpoint.hub and checkpoint.hub.files:
        return checkpoint.hub.published_hashes()
    found: list[PublishedHash] = []
    for name in _names(checkpoint):
        found += _cache_hash(checkpoint.root / name, name) + _download_hash(checkpoint.root, name)
    return found


def damaged_evidence(checkpoint: Checkpoint) -> list[Problem]:
    """Published hashes that cannot be read any more: without a word, what they vouched for would go unchecked."""
    return _damaged_sums(checkpoint.root) + _damaged_notes(checkpoint)


def download_commits(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """The commits that `hf download` noted, each with the files that came from it."""
    commits: dict[str, list[str]] = {}
    for name in _names(checkpoint):
        lines = _download_lines(checkpoint.root, name)
        if lines and is_file(checkpoint.root / name):
            commits.setdefault(lines[0], []).append(name)
    return commits


def known_origin(checkpoint: Checkpoint) -> tuple[str | None, str | None]:
    """The repository and the revision that a checkpoint came from, as far as its place or its notes tell."""
    match = re.search(r"models--([^/]+)--([^/]+)/snapshots/([^/]+)", checkpoint.root.absolute().as_posix())
    if match:
        return f"{match[1]}/{match[2]}", match[3]
    commits = list(download_commits(checkpoint))
    return None, commits[0] if len(commits) == 1 else None


def hash_list(checkpoint: Checkpoint, name: str, known: dict[str, str]) -> HashList:
    """The list of all files of a checkpoint; those whose SHA-256 is not `known` are read for it.

    Raises:
        CheckpointError: a file of it is gone.
        EnvironmentFault: the operating system cannot read one.
    """
    files = [file for file in _names(checkpoint) if is_file(checkpoint.root / file)]
    paths = {file: checkpoint.root / file for file in files if can_list(file)}
    digests = {file: known.get(file) or sha256_of(path, file) for file, path in paths.items()}
    sizes = {file: path.stat().st_size for file, path in paths.items()}
    left_out = tuple(file for file in files if file not in paths)
    return HashList(name, digests, sizes, *known_origin(checkpoint), left_out)


def _names(checkpoint: Checkpoint) -> list[str]:
    """Every file of the checkpoint by its path, those too of which only a link or a note of `hf download` is left."""
    shards = {shard.name for shard in checkpoint.shards}
    if not checkpoint.path.is_dir():
        return sorted(shards)
    notes = relative_files(checkpoint.root / NOTES)
    noted = {note.removesuffix(_NOTE_SUFFIX) for note in notes if note.endswith(_NOTE_SUFFIX)}
    return sorted({*shards, *relative_files(checkpoint.root), *noted})


def _container_hashes(container: Container) -> list[PublishedHash]:
    found = [
        PublishedHash(f"{TENSORS}/{row.file}", "sha256", row.target_sha256, "target_sha256")
        for row in container.rows.values()
        if row.target_sha256
    ]
    return found + metadata_hashes(container)


def metadata_hashes(container: Container) -> list[PublishedHash]:
    """The hashes that a container's manifest has of the source's config, tokenizer, index and so on."""
    folder = container.metadata_root.relative_to(container.root).as_posix()
    prefix = "" if folder == "." else folder + "/"
    found = [
        PublishedHash(prefix + name, "sha256", digest, "metadata_sha256")
        for name, digest in container.metadata_sha256.items()
    ]
    stated = container.manifest.get("source_index_sha256")
    has_index = INDEX_NAME not in container.metadata_sha256 and (container.metadata_root / INDEX_NAME).exists()
    if has_index and isinstance(stated, str) and _SHA256.fullmatch(stated):
        found.append(PublishedHash(prefix + INDEX_NAME, "sha256", stated, "source_index_sha256"))
    return found


def _sums(root: Path) -> list[PublishedHash]:
    found = []
    for sums, _, line in _sums_lines(root):
        parsed = digest_line(line)
        if parsed and is_safe_relative(parsed[0]):  # what lies outside is not the checkpoint's
            found.append(PublishedHash(parsed[0], "sha256", parsed[1], sums))
    return found


def _sums_lines(root: Path) -> Iterator[tuple[str, int, str]]:
    """Every line of the sums files: the file, the line's number from 1, the line."""
    for sums in SUMS_FILES:
        if (root / sums).is_file():
            for number, line in enumerate(read_document(root / sums, sums).decode("utf-8", "replace").splitlines(), 1):
                yield sums, number, line.strip()


def _damaged_sums(root: Path) -> list[Problem]:
    """Lines that were a hash and a name once; comments, signatures and other styles are none."""
    return [
        Problem(sums, "", f"line {number} is damaged: it is no hash and name any more")
        for sums, number, line in _sums_lines(root)
        if "\0" in line or (_was_hex(line[:64]) and not digest_line(line))
    ]


def _was_hex(text: str) -> bool:
    """Whether text is hex digits but for one character; of a few letters that says nothing."""
    return len(text) >= 16 and sum(c not in _HEX_DIGITS for c in text) <= 1


def _damaged_notes(checkpoint: Checkpoint) -> list[Problem]:
    """Notes without a hash: other servers than the Hub may give such, too."""
    text = "the note that hf download left of it has no hash: it cannot be checked"
    return [
        Problem(name, "", text, Severity.WARNING)
        for name in _names(checkpoint)
        if is_file(checkpoint.root / NOTES / (name + _NOTE_SUFFIX)) and not _download_hash(checkpoint.root, name)
    ]


def _cache_hash(path: Path, name: str) -> list[PublishedHash]:
    """In a Hub cache a snapshot's file is a link to a blob that is named after its own hash."""
    if not path.is_symlink():
        return []
    target = Path(path.readlink())
    return _hash_named(target.name, name, "the blob's name in the Hub cache") if target.parent.name == "blobs" else []


def _download_hash(root: Path, name: str) -> list[PublishedHash]:
    lines = _download_lines(root, name)
    return _hash_named(lines[1], name, "the hash that hf download recorded") if len(lines) > 1 else []


def _download_lines(root: Path, name: str) -> list[str]:
    note = root / NOTES / (name + _NOTE_SUFFIX)
    return read_document(note, note.name).decode("utf-8", "replace").split() if is_file(note) else []


def _hash_named(digest: str, name: str, evidence: str) -> list[PublishedHash]:
    if _SHA256.fullmatch(digest):
        return [PublishedHash(name, "sha256", digest, evidence)]
    if _GIT_SHA1.fullmatch(digest):
        return [PublishedHash(name, "git-sha1", digest, evidence)]
    return []
