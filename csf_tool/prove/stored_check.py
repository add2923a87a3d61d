"""The check of stored files by every known hash: published with a file, or in a list."""

from collections.abc import Callable, Mapping
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.hash_list import HashList
from csf_tool.checkpoint.index import MAP_KEY, read_index
from csf_tool.checkpoint.problems import Problem, errors, warnings
from csf_tool.checkpoint.published import damaged_evidence, mixed_revisions
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash, hash_faults
from csf_tool.disk.json_files import parse_json
from csf_tool.disk.reader import is_file
from csf_tool.errors import CheckpointError, CsfToolError
from csf_tool.prove.runtime_files import is_far
from csf_tool.prove.verdict import Check, StoredCheck
from csf_tool.text import count, counted


def check_stored(
    check: StoredCheck,
    checkpoint: Checkpoint,
    known: list[PublishedHash],
    listed: HashList | None,
    digests: Mapping[str, str],
    shards: list[str],
) -> set[str]:
    """Compare the hash of every file for which one is `known`; the check is skipped if one of `shards` has none.

    `listed` is the list that some of the hashes come from. `digests` are the SHA-256 of files that have been read
    already. Returns the files that were compared.
    """
    here: dict[str, list[PublishedHash]] = {}
    for entry in known:
        if not _is_far(checkpoint, entry.file, digests):
            here.setdefault(entry.file, []).append(entry)
    for file, entries in here.items():
        _check_file(check, checkpoint.root / file, entries, digests.get(file))
    check.checked = len(here)
    for file in _written_anew(check, checkpoint, here):
        del here[file]
    _check_evidence(check, checkpoint, listed)
    bare = [name for name in shards if name not in here]
    if far := [name for name in bare if _is_far(checkpoint, name, digests)]:
        check.skip(f"not fetched completely: {counted(far, 'shard')} (--all-tensors fetches them)")
    elif bare:
        check.skip(f"no {'hash' if listed else 'published hash'} for {counted(bare, 'shard')}")
    else:
        _tell_apart(check, here, listed, shards)
    return set(here)


def _tell_apart(
    check: StoredCheck, here: Mapping[str, list[PublishedHash]], listed: HashList | None, shards: list[str]
) -> None:
    """Note which files match published hashes, and which match only a list."""
    published = {file for file, entries in here.items() if any(entry.is_published for entry in entries)}
    if published:
        names = dict.fromkeys(e.evidence for entries in here.values() for e in entries if e.is_published)
        check.published = f"{count(len(published), 'file')} by {', '.join(names)}"
    if listed and len(published) < len(here):
        check.listed = f"{count(len(here) - len(published), 'file')} as listed in {listed.name}"
    if listed and not published.issuperset(shards):
        check.list_name, check.maker = listed.name, listed.maker or ""
    check.note = "; ".join(filter(None, (check.published, check.listed)))


def _is_far(checkpoint: Checkpoint, file: str, digests: Mapping[str, str]) -> bool:
    """Whether a file is on the Hub and has not been read whole."""
    return file not in digests and is_far(checkpoint, file)


def _check_file(check: Check, path: Path, entries: list[PublishedHash], sha256: str | None) -> None:
    """Compare a file with its known hashes; `sha256` is its own, if computed already."""
    file = entries[0].file
    if sha256 is None and not is_file(path):
        check.fail(f"is missing, but its hash is known ({entries[0].place})", Code.MISSING_FILE, file)
        return
    try:
        for text in hash_faults(path, file, entries, sha256):
            check.fail(text, Code.HASH_DIFFERS, file)
    except CheckpointError as error:
        check.failures.append(Problem.of(error, file))


def _written_anew(check: Check, checkpoint: Checkpoint, here: Mapping[str, list[PublishedHash]]) -> list[str]:
    """Indexes in other bytes than the published ones that place the same tensors in the same shards: they only warn.

    `expand` writes the index anew, and tools sort it. That is no fault, but the file is not the published one.
    """
    differing = {problem.file for problem in check.failures if problem.code is Code.HASH_DIFFERS}
    found = [
        file
        for file in differing & here.keys()
        if all(entry.content and _places_the_same(checkpoint.root, file, entry.content) for entry in here[file])
    ]
    check.failures = [problem for problem in check.failures if problem.file not in found]
    for file in found:
        place = here[file][0].place
        text = f"has other bytes than {place} lists, but the same content: the same tensors in the same shards"
        check.warn(text, Code.HASH_DIFFERS, file)
    return found


def _places_the_same(root: Path, file: str, content: Callable[[], bytes]) -> bool:
    """Whether an index has the map of the published one; not so where that cannot be had."""
    try:
        published = parse_json(content(), file)
        return bool(read_index(root, file).weight_map == published[MAP_KEY])
    except (CsfToolError, TypeError, LookupError):
        return False


def _check_evidence(check: Check, checkpoint: Checkpoint, listed: HashList | None) -> None:
    """Report faults of lists and of downloaders' notes, and that they name several revisions."""
    damaged = [*damaged_evidence(checkpoint), *(listed.faults if listed else ())]
    check.failures += errors(damaged)
    check.warnings += [*warnings(damaged), *mixed_revisions(checkpoint)]
