"""Saves with one file a rank, as tensor-parallel engines write them: files of the same tensors, each with its part.

They are known by their structure: names that differ in one number, which counts ranks, and the same tensors in each.
Tensors that one rank alone has (the experts that are divided among ranks) do not speak against it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from csf_tool.checkpoint.numbered import OF
from csf_tool.codes import Code
from csf_tool.errors import CheckpointError
from csf_tool.text import counted

_NUMBER = re.compile(r"\d{1,5}(?!\d)", re.ASCII)
_TOTAL = re.compile(rf"{OF}(\d{{1,5}})(?!\d)", re.ASCII | re.IGNORECASE)
_AFTER_OF = re.compile(rf".*\d{OF}", re.DOTALL | re.ASCII | re.IGNORECASE)
_RANK = re.compile(r"(?<![a-z])(rank|mp|tp)(?![a-z])", re.IGNORECASE)

_NOT_AS_IT_IS = "one {} per rank (tensor parallel), each with its part of the tensors: csf-tool cannot read, compress "
_NOT_AS_IT_IS += "or expand this; merge the ranks with the tool that wrote them"


def numbered_ranks(names: Iterable[str]) -> list[list[str]]:
    """Groups of names that differ in one number, which counts as ranks do: from 0, or from 1 to a stated number."""
    groups: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for name in names:
        for number in _NUMBER.finditer(name):
            if not _AFTER_OF.fullmatch(name[: number.start()]):
                groups[name[: number.start()], name[number.end() :]][int(number[0])] = name
    return [
        [files[number] for number in sorted(files)]
        for (before, after), files in groups.items()
        if len(files) > 1 and _counts_ranks(before, after, sorted(files))
    ]


def _counts_ranks(before: str, after: str, numbers: Sequence[int]) -> bool:
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return False
    total = _TOTAL.match(after)
    is_complete = total is not None and int(total[1]) == len(numbers)
    return numbers[0] == 0 or (numbers[0] == 1 and (is_complete or bool(_RANK.search(before))))


def refuse_ranks(place: str, held: Mapping[str, Sequence[str]]) -> None:
    """Refuse shards, whose tensors `held` has by name, that are one file a rank.

    Raises:
        CheckpointError: they are.
    """
    groups = [files for files in numbered_ranks(held) if _share_tensors([held[name] for name in files])]
    if groups:
        files = sorted({name for group in groups for name in group})
        problem = f"{_NOT_AS_IT_IS.format('file')} ({counted(files, 'file')})"
        raise CheckpointError(problem, Code.RANK_FILES, place)


def _share_tensors(held: Sequence[Sequence[str]]) -> bool:
    """Whether files hold the same tensors, but for such as one of them alone has."""
    times = set(Counter(name for names in held for name in set(names)).values())
    return len(held) in times and times <= {1, len(held)}


def folders_of_ranks(path: Path, names: Iterable[str]) -> CheckpointError | None:
    """The error of a folder that has one folder a rank, by the names of those in it that hold shards."""
    groups = [group for group in numbered_ranks(names) if _RANK.search(group[0].replace("_", "-"))]
    if not groups:
        return None
    first = groups[0]
    problem = f"{_NOT_AS_IT_IS.format('folder')} ({counted(first, 'folder')})"
    return CheckpointError(problem, Code.RANK_FILES, str(path))
