"""Edits of a JSON document's text: keys are set or removed, and every other byte stays as it was.

    edit_json(raw, {("quantization_config", "quant_algo"): "NVFP4", ("draft",): REMOVED}, "config.json")
    remove_everywhere(raw, "weight_scale_encoding", "csf", "config.json")

Many changes are made in one call: each call reads the document once. New members look as their neighbours do: with
their separators, line ends and indentation, and in ASCII where the document is.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from csf_tool.codes import Code
from csf_tool.disk.json_files import has_half_characters
from csf_tool.disk.json_text import Member, Span, after_blanks, members_in, members_with
from csf_tool.disk.lenient_json import BYTE_ORDER_MARK, parse_lenient
from csf_tool.errors import CheckpointError
from csf_tool.text import brief


class _Removed(Enum):
    REMOVED = "removed"


_MAX_BLANKS = 200
"""Most blanks between two members that are repeated for a new one: a file can have megabytes of them."""

REMOVED: Final = _Removed.REMOVED
"""The value of a key that is to go."""

KeyPath = tuple[str, ...]
"""The keys that lead to a value, from the top of the document."""


def edit_json(raw: bytes, changes: Mapping[KeyPath, Any], name: str) -> bytes:
    """`raw` with the values at some paths set, or with their keys `REMOVED`.

    A key that is there gets its value in its place, unless it has it already. A new one goes last, and with it the
    objects around it that are not there. Of repeated keys the last is meant, as Python's reader means it; all go when
    one is removed. A path must not lead into another.

    Raises:
        CheckpointError: it is not JSON by any reader, or a value that a path goes through is no object.
    """
    parse_lenient(raw, name)
    text = raw.decode("utf-8")
    return _applied(text, _Editor(text, name).edits(_tree(changes)))


def remove_everywhere(raw: bytes, key: str, value: str, name: str) -> bytes:
    """`raw` without the members that have this key and this string as their value, at any depth, however spelt.

    Raises:
        CheckpointError: it is not JSON by any reader.
    """
    parse_lenient(raw, name)
    text = raw.decode("utf-8")
    if key not in text and "\\" not in text:
        return raw
    runs: list[Span] = []
    for member in members_with(text, key, value):
        is_next = runs and text[runs[-1].end : member.begin].strip(" \t\n\r") == ","
        runs[-1:] = [Span(runs[-1].begin, member.end)] if is_next else [*runs[-1:], member]
    return _applied(text, (_Edit(*_cut(text, run)) for run in runs))


class _Edit(NamedTuple):
    """New text in place of a range of the old one."""

    begin: int
    end: int
    text: str = ""


@dataclass(frozen=True)
class _Style:
    """The spelling of an object's members: the text between two of them, and after a key, and a level of indentation.

    `unit` is empty where all of an object stands in one line.
    """

    between: str = ", "
    colon: str = ": "
    unit: str = ""

    @property
    def line(self) -> str:
        """The line break before a member, and its indentation; empty where all stands in one line."""
        blanks = self.between.rpartition(",")[2]
        at = blanks.rfind("\n")
        return blanks[at - 1 if blanks[at - 1 : at] == "\r" else at :] if at >= 0 and self.unit else ""

    def inside(self) -> "_Style":
        """The style of a new object that is the value of a member."""
        return replace(self, between=f",{self.line}{self.unit}") if self.line else self

    def object_of(self, members: str) -> str:
        """The text of a new object of this style with these members."""
        line = self.line
        return f"{{{line}{members}{line.removesuffix(self.unit)}}}" if line else f"{{{members}}}"


class _Tree(dict[str, Any]):
    """Changes inside an object."""


def _tree(changes: Mapping[KeyPath, Any]) -> _Tree:
    """Changes by the keys that lead to them; a `_Tree` leads further, anything else is a value."""
    tree = _Tree()
    for path, value in changes.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, _Tree())
        node[path[-1]] = value
    return tree


@dataclass
class _Found:
    """The members of an object that count for its changes; others are forgotten, for there may be millions of them.

    `runs` are members that go, those that stand one after another together; `stays` is the last that does not.
    """

    named: dict[str, Member] = field(default_factory=dict)
    runs: list[Span] = field(default_factory=list)
    stays: Member | None = None
    last: Member | None = None
    before: Member | None = None

    def add(self, member: Member, tree: _Tree) -> None:
        """Note the next member: of repeated keys the last is the one that is meant."""
        self.before, self.last = self.last, member
        if member.key in tree:
            self.named[member.key] = member
        if tree.get(member.key) is not REMOVED:
            self.stays = member
        elif self.before and self.runs and self.runs[-1].end == self.before.end:
            self.runs[-1] = Span(self.runs[-1].begin, member.end)
        else:
            self.runs.append(Span(member.begin, member.end))


class _Editor:
    """The edits of one text, which is valid."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._is_ascii = text.isascii()

    def edits(self, tree: _Tree) -> Iterator[_Edit]:
        """The edits that changes come to."""
        begin = after_blanks(self._text, len(BYTE_ORDER_MARK) if self._text.startswith(BYTE_ORDER_MARK) else 0)
        if self._text[begin] != "{":
            raise CheckpointError("not a JSON object", Code.INVALID_FIELD, self._name)
        return self._in_object(begin, tree, _Style())

    def _in_object(self, begin: int, tree: _Tree, around: _Style) -> Iterator[_Edit]:
        """The edits in the object that begins at `begin`; `around` is the style of new objects there."""
        found = _Found()
        for member in members_in(self._text, begin):
            found.add(member, tree)
        style = self._style(begin, found, around)
        new = [self._member(key, change, style) for key, change in tree.items() if key not in found.named]
        new = [member for member in new if member]
        for key, member in found.named.items():
            yield from self._in_member(member, tree[key], style)
        if found.stays or not new:
            yield from (_Edit(*_cut(self._text, run)) for run in found.runs)
        if not new:
            return
        if found.stays:
            yield _Edit(found.stays.end, found.stays.end, "".join(style.between + member for member in new))
        elif found.runs:
            yield _Edit(*found.runs[0], style.between.join(new))
        else:  # blanks in it stay before the members: see `_cut`
            end = after_blanks(self._text, begin + 1)
            inner = style.between.join(new)
            yield _Edit(end, end, inner if end > begin + 1 else style.object_of(inner)[1:-1])

    def _in_member(self, member: Member, change: Any, style: _Style) -> Iterator[_Edit]:
        """The edits in the value of a member; the member itself goes elsewhere."""
        if isinstance(change, _Tree):
            if self._text[member.value] == "{":
                yield from self._in_object(member.value, change, style.inside())
            elif any(True for _ in _values(change)):
                raise CheckpointError(f"{brief(member.key)} is not an object", Code.INVALID_FIELD, self._name)
        elif change is not REMOVED and not self._has(member, change):
            yield _Edit(member.value, member.end, self._render(change, style))

    def _style(self, begin: int, found: _Found, around: _Style) -> _Style:
        """The style of an object by its last two members; where it has none, as objects beside it have it."""
        text, last, before = self._text, found.last, found.before
        if not last:
            return around
        colon = text[last.key_end : last.value]
        if before:
            between = text[before.end : last.begin]
        else:
            first = text[begin + 1 : last.begin]
            between = "," + (first if "\n" in first else " " if colon[-1:].isspace() else "")
        if max(len(between), len(colon)) > _MAX_BLANKS:
            return _Style()
        if "\n" not in between:
            return _Style(between, colon)
        indent = between.rpartition("\n")[2]
        closing = text[last.end : after_blanks(text, last.end)].rpartition("\n")[2]
        unit = indent.removeprefix(closing) if indent.startswith(closing) else ""
        return _Style(between, colon, unit or around.unit or "  ")

    def _member(self, key: str, change: Any, style: _Style) -> str:
        """The text of a new member; empty where the change only removes."""
        if isinstance(change, _Tree):
            inner = style.inside()
            members = [member for name, value in change.items() if (member := self._member(name, value, inner))]
            rendered = inner.object_of(inner.between.join(members)) if members else ""
        else:
            rendered = "" if change is REMOVED else self._render(change, style)
        return f"{self._dumps(key)}{style.colon}{rendered}" if rendered else ""

    def _render(self, value: Any, style: _Style) -> str:
        """A value as the value of a member of an object of this style."""
        if line := style.line:
            return self._dumps(value, indent=style.unit, separators=(",", style.colon)).replace("\n", line)
        return self._dumps(value, separators=(style.between, style.colon))

    def _dumps(self, value: Any, **spelling: Any) -> str:
        return json.dumps(value, ensure_ascii=self._is_ascii or has_half_characters(value), **spelling)

    def _has(self, member: Member, value: Any) -> bool:
        """Whether a member has a value already, in the order of its keys."""
        there = parse_lenient(self._text[member.value : member.end].encode(), self._name).value
        return json.dumps(there) == json.dumps(value)


def _values(tree: _Tree) -> Iterator[Any]:
    """The values that changes set."""
    for change in tree.values():
        if isinstance(change, _Tree):
            yield from _values(change)
        elif change is not REMOVED:
            yield change


def _cut(text: str, run: Span) -> Span:
    """The range that goes with members of an object: these, and the comma and the blanks that came with them.

    Of an object that becomes empty blanks stay if they only stand before the members.
    """
    before = run.begin
    while text[before - 1] in " \t\n\r":
        before -= 1
    after = after_blanks(text, run.end)
    if text[before - 1] == ",":
        before -= 1
        while text[before - 1] in " \t\n\r":
            before -= 1
        return Span(before, run.end)
    if text[after] == ",":
        return Span(run.begin, after_blanks(text, after + 1))
    return Span(before, after) if after > run.end else run


def _applied(text: str, edits: Iterable[_Edit]) -> bytes:
    parts, at = [], 0
    for edit in sorted(edits):
        parts += [text[at : edit.begin], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]]).encode("utf-8")
