"""Published hashes of a checkpoint's files, its origin, and the computing of our own hashes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.container import Origin, is_sha256
from csf_tool.checkpoint.downloads import NOTES
from csf_tool.checkpoint.hash_lines import Listed
from csf_tool.checkpoint.hash_list import HashList, can_list, read_entries
from csf_tool.checkpoint.hash_places import Place
from csf_tool.checkpoint.hub_cache import Snapshot
from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.codec.formats import CsfFormat
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash, sha256_of
from csf_tool.disk.paths import relative_files
from csf_tool.disk.reader import is_file, is_folder, read_document, reading_fault
from csf_tool.errors import CheckpointError, CsfToolError
from csf_tool.text import count

_NOTE_SUFFIX = ".metadata"

SUMS_FILES = ("SHA256SUMS", "SHA256SUMS.txt", "sha256sums.txt", "sha256sum.txt")
"""Names of files as `sha256sum` writes them."""

_UNKNOWN = "unknown"
_MOST_LINKS = 8
"""Links that are followed one after another in search of a blob."""

_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")


def published_hashes(checkpoint: Checkpoint) -> list[PublishedHash]:
    """Every hash that the checkpoint's own surroundings hold for its files."""
    stated = checkpoint.layout.shard_hashes() + checkpoint.layout.model_hashes()
    return stated + _sums(checkpoint.root) + recorded_hashes(checkpoint)


def recorded_hashes(checkpoint: Checkpoint) -> list[PublishedHash]:
    """The hashes that the Hub lists, or that a Hub cache or `hf download` recorded."""
    if checkpoint.hub and checkpoint.hub.files:
        return checkpoint.hub.published_hashes()
    found: list[PublishedHash] = []
    for name in _names(checkpoint):
        found += _cache_hash(checkpoint.root / name, name) + _download_hash(checkpoint.root, name)
    return found


def sha256_by_file(known: Iterable[PublishedHash]) -> dict[str, str]:
    """The SHA-256 that is known of each file.

    Raises:
        CheckpointError: two hashes of one file differ, so that it can have one of them at most.
    """
    found: dict[str, PublishedHash] = {}
    for entry in known:
        if entry.algorithm != "sha256":
            continue
        other = found.setdefault(entry.file, entry)
        if other.digest != entry.digest:
            problem = f"its SHA-256 is {other.digest} ({other.place}), but also {entry.digest} ({entry.place})"
            raise CheckpointError(f"{problem}: csf-tool verify tells which one is right", Code.HASH_DIFFERS, entry.file)
    return {file: entry.digest for file, entry in found.items()}


def damaged_evidence(checkpoint: Checkpoint) -> list[Problem]:
    """Problems of published hashes that cannot be read any more: their files would go unchecked silently."""
    return _damaged_sums(checkpoint.root) + _damaged_notes(checkpoint)


def download_commits(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """The commits that `hf download` noted, each with the files that came from it."""
    commits: dict[str, list[str]] = {}
    for name in _names(checkpoint):
        lines = _download_lines(checkpoint.root, name)
        if lines and is_file(checkpoint.root / name):
            commits.setdefault(lines[0], []).append(name)
    return commits


def mixed_revisions(checkpoint: Checkpoint) -> list[Problem]:
    """Problems of files that came from different commits, as far as notes tell."""
    if len(commits := download_commits(checkpoint)) < 2:
        return []
    listing = "; ".join(f"{commit[:12]}: {count(len(files), 'file')}" for commit, files in commits.items())
    text = f"the files come from different revisions ({listing})"
    return [Problem(text, Code.MIXED_REVISIONS, severity=Severity.WARNING)]


def known_origin(checkpoint: Checkpoint) -> tuple[str | None, str | None]:
    """The repository and the revision that a checkpoint came from, as far as its place or its notes tell."""
    if (snapshot := Snapshot.at(checkpoint.root)) and snapshot.revision:
        return snapshot.repo_id, snapshot.revision
    commits = list(download_commits(checkpoint))
    return None, commits[0] if len(commits) == 1 else None


@dataclass(frozen=True)
class StatedOrigin:
    """The origin as the user states it; None where it is to be guessed."""

    family: str | None = None
    source_model_id: str | None = None
    source_revision: str | None = None


def find_origin(checkpoint: Checkpoint, fmt: CsfFormat, model_type: str | None, stated: StatedOrigin) -> Origin:
    """The origin: what is stated, and the rest as the folder tells it.

    It may tell by a Hub cache's path, by what `hf download` noted, and by the model's type.
    """
    repository, revision = known_origin(checkpoint)
    return Origin(
        stated.family or f"{model_type or _UNKNOWN}_{fmt.name}",
        stated.source_model_id or repository or checkpoint.root.resolve().name,
        stated.source_revision or revision or _UNKNOWN,
    )


def hash_list(checkpoint: Checkpoint, name: str, known: dict[str, str]) -> HashList:
    """The list of all files of a checkpoint; those whose SHA-256 is not `known` are read for it.

    Raises:
        CheckpointError: a file is missing.
        EnvironmentFault: the operating system cannot read one.
    """
    files = [file for file in _names(checkpoint) if is_file(checkpoint.root / file)]
    paths = {file: checkpoint.root / file for file in files if can_list(file)}
    digests = {file: known.get(file) or sha256_of(path, file) for file, path in paths.items()}
    sizes = {file: path.stat().st_size for file, path in paths.items()}
    left_out = tuple(file for file in files if file not in paths)
    return HashList(name, digests, sizes, *known_origin(checkpoint), left_out=left_out)


def place_of(checkpoint: Checkpoint) -> Place:
    """The place in which the names of a list are looked for."""
    return Place(checkpoint.root, checkpoint.hub.files if checkpoint.hub else (), checkpoint.label)


def _names(checkpoint: Checkpoint) -> list[str]:
    """Every file of the checkpoint by its path, those too of which only a link or a note of `hf download` is left."""
    shards = {shard.name for shard in checkpoint.shards}
    if not is_folder(checkpoint.path):
        return sorted(shards)
    notes = relative_files(checkpoint.root / NOTES)
    noted = {note.removesuffix(_NOTE_SUFFIX) for note in notes if note.endswith(_NOTE_SUFFIX)}
    return sorted({*shards, *relative_files(checkpoint.root), *noted})


def _sums(root: Path) -> list[PublishedHash]:
    return [
        PublishedHash(listed.name, listed.algorithm, listed.digest, sums, listed.line)
        for sums, (found, _) in _sums_files(root).items()
        for listed in found
    ]


def _sums_files(root: Path) -> dict[str, tuple[list[Listed], list[Problem]]]:
    """The entries and the faults of the sums files, by their names."""
    names = [name for name in SUMS_FILES if is_file(root / name)]
    return {name: read_entries(read_document(root / name, name), name, Place(root)) for name in names}


def _damaged_sums(root: Path) -> list[Problem]:
    return [problem for _, faults in _sums_files(root).values() for problem in faults]


def _damaged_notes(checkpoint: Checkpoint) -> list[Problem]:
    """Notes that cannot be read, or without a hash: other servers than the Hub may give such, too."""
    text = "cannot be checked: hf download recorded no hash for it"
    return [
        Problem(text, Code.HASH_DAMAGED, name, severity=Severity.WARNING)
        for name in _names(checkpoint)
        if is_file(checkpoint.root / NOTES / (name + _NOTE_SUFFIX)) and not _download_hash(checkpoint.root, name)
    ]


def _cache_hash(path: Path, name: str) -> list[PublishedHash]:
    """The hash of a file in a Hub cache, where a snapshot's file is a link to a blob that is named after its hash.

    Links to a snapshot's files count as well, wherever they lie.
    """
    for _ in range(_MOST_LINKS):
        try:
            if not path.is_symlink():
                break
            target = path.readlink()
        except OSError as error:
            raise reading_fault(name, error) from error
        if target.parent.name == "blobs":
            return _hash_named(target.name, name, "the blob's name in the Hub cache")
        path = path.parent / target
    return []


def _download_hash(root: Path, name: str) -> list[PublishedHash]:
    lines = _download_lines(root, name)
    return _hash_named(lines[1], name, "the hash that hf download recorded") if len(lines) > 1 else []


def _download_lines(root: Path, name: str) -> list[str]:
    note = root / NOTES / (name + _NOTE_SUFFIX)
    try:
        return read_document(note, note.name).decode("utf-8", "replace").split() if is_file(note) else []
    except CsfToolError:  # damaged evidence: what it vouched for is named
        return []


def _hash_named(written: str, name: str, evidence: str) -> list[PublishedHash]:
    """The hash that is written somewhere, as servers may spell it: in quotes, marked as weak, in capitals."""
    digest = written.removeprefix("W/").strip('"').lower()
    if is_sha256(digest):
        return [PublishedHash(name, "sha256", digest, evidence)]
    if _GIT_SHA1.fullmatch(digest):
        return [PublishedHash(name, "git-sha1", digest, evidence)]
    return []
