"""The comparison of the files beside the shards with a reference's: all that a runtime may read must be the same.

Model cards, licences and pictures may differ: no runtime reads them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.index import INDEX_NAME, MAP_KEY, Index, is_index_name, read_index
from csf_tool.checkpoint.marks import strip_encoding
from csf_tool.checkpoint.names import parse_stream_name
from csf_tool.checkpoint.problems import Problem
from csf_tool.codes import Code, Finding
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.reader import CHUNK_BYTES, RandomReader, file_size, is_file, is_folder, read_document
from csf_tool.errors import CheckpointError
from csf_tool.prove.compare import same_bytes
from csf_tool.prove.json_values import Document, difference, parse_values
from csf_tool.prove.runtime_files import is_far, runtime_files

_MISSING = Finding("missing; the reference has it", Code.REFERENCE_NAMES)
_SURPLUS = Finding("the reference does not have it", Code.REFERENCE_NAMES)


@dataclass
class SideComparison:
    """Result of comparing the files beside the shards with a reference's.

    `compared` are the paths of the files whose content was compared, `files` is their number without the index.
    `of_reference` are the problems that only another copy of the reference mends.
    """

    files: int = 0
    compared: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    of_reference: list[Problem] = field(default_factory=list)

    def add(self, finding: Finding, where: str) -> None:
        """Add a problem of a file."""
        self.problems.append(Problem(*finding, where))
        if isinstance(finding, _OfReference):
            self.of_reference.append(self.problems[-1])


class _OfReference(Finding):
    """A fault of the reference's file."""

    @classmethod
    def of(cls, finding: Finding) -> "_OfReference":
        """The same fault, said to be the reference's."""
        return cls(f"in the reference: {finding.problem}", finding.code)


def compare_side_files(
    checkpoint: Checkpoint,
    reference: Checkpoint,
    on_bytes: Callable[[int], None] = lambda _: None,
    *,
    shards_only: bool = False,
) -> SideComparison:
    """Compare every file that a runtime may read with the reference's file of the same name, in both directions.

    With `shards_only`, only shards of checkpoints nested in these are compared. CSF's entries in configs and the
    spelling of JSON do not count. `compared` leaves out what cannot be compared: everything beside single files, and
    files of a repository that were not fetched.
    """
    found = SideComparison()
    if is_file(checkpoint.path) or is_file(reference.path):
        return found
    sides = checkpoint, reference
    ours, theirs = (_wanted(runtime_files(side), shards_only) for side in sides)
    folder = checkpoint.layout.model_root.relative_to(checkpoint.root)
    aside = {*checkpoint.aside, *reference.aside}
    for name in sorted({*ours, *theirs} - {shard.name for side in sides for shard in side.shards}):
        mine, other = _one_a_side(name, sides, (ours, theirs))
        if mine is None or other is None:
            having = reference if mine is None else checkpoint
            if name not in aside and (mine is None or _is_complete(reference)) and not _is_second_index(name, having):
                missing = (other and _fault_of(reference, name, other)) or _MISSING
                found.add(missing if mine is None else _SURPLUS, (folder / name).as_posix())
        elif fault := _fault_of(reference, name, other):
            found.add(fault, mine)
        elif (
            not _is_left_out(checkpoint, mine)
            and not _is_left_out(reference, other)
            and not _lists_other_shards(checkpoint, reference, name)
        ):
            found.files += 1
            found.compared.add(mine)
            if problem := _difference(name, checkpoint.root / mine, reference.root / other, on_bytes):
                found.add(problem, mine)
    if not shards_only:
        _compare_indexes(found, checkpoint, reference)
    return found


def _is_second_index(name: str, having: Checkpoint) -> bool:
    """Whether a file lists nothing but shards that were compared or left out: another form has no use for it."""
    if "/" in name or not is_index_name(name):
        return False
    known = {*having.aside, *(having.layout.dense_name(shard.name) for shard in having.shards)}
    try:
        return Index(having.layout.model_root, name).shards <= known
    except CheckpointError:
        return False


def _one_a_side(
    name: str, sides: tuple[Checkpoint, Checkpoint], files: tuple[dict[str, str], dict[str, str]]
) -> tuple[str | None, str | None]:
    """The paths of a file on both sides; a link to a folder is none where the other side has a file."""
    mine, other = (there.get(name) for there in files)
    if mine is None or other is None:
        return mine, other
    is_link = [is_folder(side.root / path) for side, path in zip(sides, (mine, other), strict=True)]
    return (None if is_link == [True, False] else mine), (None if is_link == [False, True] else other)


def _fault_of(reference: Checkpoint, name: str, path: str) -> Finding | None:
    """Why there is nothing to read under the name of a file of the reference: a link to nothing, or a pipe."""
    if _is_left_out(reference, path):
        return None
    try:
        file_size(reference.root / path, name)
    except CheckpointError as error:
        return _OfReference.of(Finding(error.problem, error.code))
    return None


def _wanted(files: dict[str, str], shards_only: bool) -> dict[str, str]:
    return {name: path for name, path in files.items() if not shards_only or name.endswith(SHARD_SUFFIX)}


def _is_complete(reference: Checkpoint) -> bool:
    """Whether all files of the reference are known; not so for a commit in the cache when the Hub was not asked."""
    return reference.hub is None or bool(reference.hub.files)


def _is_left_out(checkpoint: Checkpoint, path: str) -> bool:
    return is_far(checkpoint, path) or is_folder(checkpoint.root / path)


def _difference(name: str, ours: Path, theirs: Path, on_bytes: Callable[[int], None]) -> Finding | None:
    try:
        mine = file_size(ours, name)
    except CheckpointError:
        return _MISSING  # or a link to nothing
    other = file_size(theirs, name)
    if mine == other and _is_same(name, ours, theirs, mine, on_bytes):
        return None
    try:
        if name.endswith(".json"):
            return _json_difference(name, ours, theirs)
    except (ValueError, RecursionError, CheckpointError):
        pass
    return Finding(f"differs from the reference: {mine} bytes here, {other} there", Code.SIDE_FILE_DIFFERS)


def _is_same(name: str, ours: Path, theirs: Path, nbytes: int, on_bytes: Callable[[int], None]) -> bool:
    with RandomReader(ours, name) as mine, RandomReader(theirs, name) as other:
        for at in range(0, nbytes, CHUNK_BYTES):
            end = min(at + CHUNK_BYTES, nbytes)
            if not same_bytes(memoryview(mine.read(at, end)), memoryview(other.read(at, end))):
                return False
            on_bytes(end - at)
    return True


def _json_difference(name: str, ours: Path, theirs: Path) -> Finding | None:
    """The first difference of two JSON files, or a repeated key that makes one of them ambiguous.

    Configs that are the same but for CSF's marks do not differ, whatever else is in them.
    """
    raws = [read_document(path, name) for path in (ours, theirs)]
    if name in CONFIG_FILES:
        raws = [strip_encoding(raw, name) for raw in raws]
        if raws[0] == raws[1]:
            return None
    mine, other = map(parse_values, raws)
    if repeated := mine.repeated or other.repeated:
        finding = Finding(repeated, Code.INVALID_JSON)
        return finding if mine.repeated else _OfReference.of(finding)
    if _is_index(name) and (_lists_streams(mine) or _lists_streams(other)):
        return difference(_dense_map(mine), _dense_map(other))
    return difference(mine.value, other.value)


def _is_index(name: str) -> bool:
    return is_index_name(name) and "/" not in name


def _lists_other_shards(checkpoint: Checkpoint, reference: Checkpoint, name: str) -> bool:
    """Whether an index cannot be that of the reference, whose tensors lie in other shards."""
    return _is_index(name) and {s.file for s in checkpoint.shards} != {s.file for s in reference.shards}


def _weight_map(index: Document) -> dict[str, Any]:
    weight_map = index.value.get(MAP_KEY) if isinstance(index.value, dict) else None
    return weight_map if isinstance(weight_map, dict) else {}


def _lists_streams(index: Document) -> bool:
    return any(map(parse_stream_name, _weight_map(index)))


def _dense_map(index: Document) -> dict[str, dict[str, str]]:
    """The shards of the dense tensors that an index lists; both streams of a plane stand for its scales."""
    found: dict[str, set[str]] = {}
    for name, shard in _weight_map(index).items():
        stream = parse_stream_name(name)
        found.setdefault(stream.scale if stream else name, set()).add(str(shard))
    return {MAP_KEY: {name: " and ".join(sorted(shards)) for name, shards in found.items()}}


def _compare_indexes(found: SideComparison, checkpoint: Checkpoint, reference: Checkpoint) -> None:
    """Compare the index with the reference's, where both list the same dense shards."""
    root, there = checkpoint.layout.model_root, reference.layout.model_root
    theirs = reference.index_name
    if theirs is None:
        return
    name = checkpoint.index_name
    where = (root / (name or INDEX_NAME)).relative_to(checkpoint.root).as_posix()
    if name is None:
        found.problems += [Problem(*_MISSING, where)] if len(checkpoint.shards) > 1 else []
        return
    try:
        placed = [*read_index(root, name).weight_map, *read_index(there, theirs).weight_map]
        mine, other = (parse_values(read_document(path, where)) for path in (root / name, there / theirs))
    except CheckpointError as error:
        text = f"cannot be compared with the reference: {error}"
        found.problems.append(Problem(text, error.code, where))
        return
    if any(map(parse_stream_name, placed)):
        return  # the shards themselves say where a tensor is, and they have been compared
    if {shard.file for shard in checkpoint.shards} == {shard.file for shard in reference.shards}:
        found.compared.add(where)
        if problem := difference(mine.value, other.value):
            found.problems.append(Problem(*problem, where))
