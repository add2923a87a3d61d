"""Problems by their causes: those of one kind whose words differ in names and numbers alone are said in one line.

Collectors keep every problem apart, and JSON documents list each; here they become lines for people. Memory is needed
for the causes and the files that are named, not for each problem.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Generic, NamedTuple, TypeVar

from csf_tool.checkpoint.problems import Problem, Severity, excused
from csf_tool.codec.formats import FORMATS
from csf_tool.codes import Code
from csf_tool.dtypes import DTYPES
from csf_tool.text import count, escape, some

K = TypeVar("K")

CAUSES_OF_A_KIND = 10
"""Most causes of one kind that are told apart: files made for it could have a cause for each tensor."""

_ALL_NAMED = 10
"""Most places of a cause, after the first, that are all named."""

_NAMED = 3
"""Number of places that are named where there are more."""

_CACHED = 1024
"""Number of texts whose cause is remembered: most problems of a cause have one text."""


class Sentence(NamedTuple):
    """A sentence, and the place that it is about: file, tensor, or nothing but what the words say."""

    words: str
    file: str = ""
    tensor: str = ""


@dataclass
class Cause:
    """A cause: the first sentence about it, the first few others, how many others there are, and in which files."""

    first: Sentence
    said: str
    """The first sentence with its place, made harmless for a terminal."""
    problems: int = 1
    """Number of problems, of which several may share a sentence."""
    others: int = 0
    """Number of sentences after the first."""
    is_uniform: bool = True
    """Whether all sentences have the very same words."""
    _next: list[Sentence] = field(default_factory=list)
    _files: dict[str, None] = field(default_factory=dict)
    """The files of the others, in order."""
    _shared: set[Sentence] = field(default_factory=set)

    def add(self, sentence: Sentence, *, is_shared: bool) -> None:
        """Count another problem; a sentence that several share counts once."""
        self.problems += 1
        if is_shared:
            if sentence == self.first or sentence in self._shared:
                return
            self._shared.add(sentence)
        self.others += 1
        self.is_uniform = self.is_uniform and sentence.words == self.first.words
        self._files[sentence.file] = None
        if len(self._next) < _ALL_NAMED:
            self._next.append(sentence)

    def __str__(self) -> str:
        """The first sentence in full, the number of the others, and the names of a few."""
        if not self.others:
            return self.said
        line, files = f"{self.said}; and {self.others:,} more like it", list(filter(None, self._files))
        if files in ([], [self.first.file]):
            names = [name for name in self._differences() if name]
            return f"{line}: {_named(names, self.others)}" if names else line
        if len(files) == 1:
            return f"{line}, in {escape(files[0])}"
        inside = ": in" if len(files) == self.others else f", in {count(len(files), 'file')}:"
        return f"{line}{inside} {_named(files, len(files))}"

    def _differences(self) -> list[str]:
        """Names that tell the next sentences from the first: the tensor, or the first name or number in their words."""
        if any(other.tensor != self.first.tensor for other in self._next):
            return [other.tensor for other in self._next]
        own = _names().findall(self.first.words)
        found = (zip(_names().findall(other.words), own, strict=False) for other in self._next)
        return [next((theirs for theirs, mine in pairs if theirs != mine), "") for pairs in found]


def _named(names: list[str], of: int) -> str:
    """All names if they are few, or else the first; they are so many, or more."""
    return escape(some(names, _ALL_NAMED if of <= _ALL_NAMED else _NAMED, of))


@dataclass
class Causes(Generic[K]):
    """Problems by their causes, these by their kind, and for each kind the number that are of still other causes."""

    told: dict[K, dict[str, Cause]] = field(default_factory=dict)
    rest: Counter[K] = field(default_factory=Counter)

    def add(
        self, kind: K, sentence: Sentence, whole: object, *, is_shared: bool = False, is_apart: bool = False
    ) -> None:
        """Count a problem with its cause, or the rest of its kind; `whole` is the sentence with its place.

        One that `is_apart` is a cause by itself.
        """
        told, key = self.told.setdefault(kind, {}), str(whole) if is_apart else _cause_of(sentence.words)
        if cause := told.get(key):
            cause.add(sentence, is_shared=is_shared)
        elif len(told) < CAUSES_OF_A_KIND:
            told[key] = Cause(sentence, escape(whole))
        else:
            self.rest[kind] += 1

    def __iter__(self) -> Iterator[tuple[K, str, int]]:
        """The lines, a kind after the other, each with the number of problems that it stands for."""
        for kind, told in self.told.items():
            yield from ((kind, str(cause), cause.problems) for cause in told.values())
            if rest := self.rest[kind]:
                yield kind, f"and {rest:,} more of this kind", rest


@cache
def _names() -> re.Pattern[str]:
    """Pattern of names and numbers in a sentence: quoted, in brackets, or with a digit, a slash or a dot inside.

    Dtypes and formats are neither: they tell causes apart. Every part is possessive or begins at one place, so that
    no text takes more than one look at each character.
    """
    end = r"[^\s,;:()]"
    words = "|".join(map(re.escape, [*DTYPES, *(fmt.title for fmt in FORMATS), "FP4"]))
    quoted = r"""(?<!\w)'(?:[^'\\]|\\.)*+'|(?<!\w)"(?:[^"\\]|\\.)*+"|\[[^\[\]]*+\]"""
    bare = rf"(?<!{end})(?!(?:{words})(?!{end}))[^\s,;:()0-9./\\]*+(?:[0-9/\\]|\.(?=\w)){end}*+"
    return re.compile(f"{quoted}|{bare}")


@lru_cache(_CACHED)
def _cause_of(words: str) -> str:
    """A sentence without its names and numbers. A number that a browser puts in brackets is part of a name."""
    bare = _names().sub("#", words)
    return re.sub(r"#(?:,#| \(#\)#?)+", "#", bare).replace(" (and # more)", "")


class Line(NamedTuple):
    """A line for people: the severity of its problems, what it says, and how many they are."""

    severity: Severity
    text: str
    problems: int


def lines_of(problems: Iterable[Problem]) -> list[Line]:
    """A line for each cause of some problems, the worst first; one for all others where a kind has too many causes.

    Problems of a file with the same `Problem.summary` are one sentence, which that is. Each shard that is left out
    has its line: what to do with it may be another thing.
    """
    found: Causes[tuple[Severity, Code]] = Causes()
    for p in problems:
        if p.summary:
            p = replace(p, problem=p.summary, tensor="")
        sentence, is_apart = Sentence(p.problem, p.file, p.tensor), p.code is Code.SHARD_LEFT_ASIDE
        found.add((p.severity, p.code), sentence, p, is_shared=bool(p.summary), is_apart=is_apart)
    lines = [Line(severity, text, number) for (severity, _), text, number in found]
    return sorted(lines, key=lambda line: line.severity is not Severity.ERROR)


def sentences_of(texts: Iterable[str]) -> list[str]:
    """A line for each cause among some texts, made harmless for a terminal."""
    found: Causes[None] = Causes()
    for text in texts:
        found.add(None, Sentence(text), text)
    return [line for _, line, _ in found]


def first_of(problems: list[Problem]) -> str:
    """The first cause of some problems in one line, and the number of problems of others."""
    first, *others = lines_of(problems)
    left = count(sum(line.problems for line in others), "more problem")
    return f"{first.text} (and {left} of other causes; csf-tool verify lists them)" if others else first.text


def incomplete_notes(problems: Iterable[Problem]) -> list[str]:
    """Sentence for the end of a run that went on all the same."""
    if not (found := excused(problems)):
        return []
    return [f"the source lacks what its model needs, and so does the result: {first_of(found)}"]
