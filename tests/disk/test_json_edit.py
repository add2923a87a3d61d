"""Edits of JSON texts: the keys that were asked for change, in the spelling of their neighbours, and nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csf_tool.disk.json_edit import REMOVED, edit_json, remove_everywhere
from csf_tool.errors import CheckpointError
from tests.odd_json import KEYS, VALUES, spellings

DROPPED: Any = REMOVED


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ('{"a": 1}', {("b",): 2}, '{"a": 1, "b": 2}'),
        ('{"a":1}', {("b",): 2}, '{"a":1,"b":2}'),
        ('{ "a" : 1 }', {("b",): 2}, '{ "a" : 1, "b" : 2 }'),
        ('{"a": 1 , "b": 2 }', {("c",): 3}, '{"a": 1 , "b": 2 , "c": 3 }'),
        ("{}", {("b",): 2}, '{"b": 2}'),
        ("{ }\n", {("b",): 2}, '{ "b": 2}\n'),
        ('{\n  "a": 1\n}', {("b",): 2}, '{\n  "a": 1,\n  "b": 2\n}'),
        ('{\r\n\t"a": 1\r\n}\r\n', {("b",): [2]}, '{\r\n\t"a": 1,\r\n\t"b": [\r\n\t\t2\r\n\t]\r\n}\r\n'),
        ('{\n  "a": {}\n}', {("a", "b"): 2}, '{\n  "a": {\n    "b": 2\n  }\n}'),
        ('{\n  "a": 1\n}', {("b", "c"): 2}, '{\n  "a": 1,\n  "b": {\n    "c": 2\n  }\n}'),
        ('{"a":1}', {("b", "c", "d"): {"e": [1, 2]}}, '{"a":1,"b":{"c":{"d":{"e":[1,2]}}}}'),
        ('{"a": 1.50, "b": NaN}', {("a",): 2}, '{"a": 2, "b": NaN}'),
        ('{"a": 1e5, "b": 1}', {("a",): 100000.0}, '{"a": 1e5, "b": 1}'),
        ('{"a": 1}', {("a",): 1.0}, '{"a": 1.0}'),
        ('{"a": 1}', {("a",): True}, '{"a": true}'),
        ('{"a": {"x": 1}, "a": {"x": 2}}', {("a", "x"): 3}, '{"a": {"x": 1}, "a": {"x": 3}}'),
        ('{"a": 1, "b": 2, "a": 3}', {("a",): DROPPED}, '{"b": 2}'),
        ('{"a": 1, "b": 2, "c": 3}', {("a",): DROPPED, ("b",): DROPPED}, '{"c": 3}'),
        ('{"a": 1, "b": 2, "c": 3}', {("b",): DROPPED, ("c",): DROPPED}, '{"a": 1}'),
        ('{"a": 1, "b": 2}', {("b",): DROPPED, ("c",): 3}, '{"a": 1, "c": 3}'),
        ('{"a": 1, "b": 2}', {("a",): DROPPED, ("b",): DROPPED, ("c",): 3}, '{"c": 3}'),
        ('{\n  "a": 1\n}', {("a",): DROPPED}, "{}"),
        ('{"a": 1}', {("x", "y"): DROPPED, ("z",): DROPPED, ("a", "b"): DROPPED}, '{"a": 1}'),
        ('{"\\u0061": {"\\/": 1}}', {("a", "/"): 2}, '{"\\u0061": {"\\/": 2}}'),
        ('{"a": "x"}', {("b",): "é"}, '{"a": "x", "b": "\\u00e9"}'),
        ('{"a": "ü"}', {("b",): "é"}, '{"a": "ü", "b": "é"}'),
        ('{"a": "ü"}', {("b",): "\ud800"}, '{"a": "ü", "b": "\\ud800"}'),
        ('\ufeff{"a": 1}', {("b",): float("inf")}, '\ufeff{"a": 1, "b": Infinity}'),
        ('{"a": [{"b": 1}], "c": "{\\"b\\": 1}"}', {("b",): 2}, '{"a": [{"b": 1}], "c": "{\\"b\\": 1}", "b": 2}'),
    ],
)
def test_edits(before: str, changes: dict[tuple[str, ...], Any], after: str) -> None:
    assert edit_json(before.encode(), changes, "x.json").decode() == after


@pytest.mark.parametrize(
    ("raw", "reason"),
    [(b"[]", "not a JSON object"), (b'{"a": 1}', "'a' is not an object"), (b"{", "not valid JSON"), (b"\xff", "UTF-8")],
)
def test_what_cannot_be_edited(raw: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        edit_json(raw, {("a", "b"): 1}, "x.json")


def with_change(value: Any, path: tuple[str, ...], new: Any) -> Any:
    if len(path) > 1:
        return {**value, path[0]: with_change(value.get(path[0], {}), path[1:], new)}
    return {k: v for k, v in value.items() if k != path[0]} if new is REMOVED else {**value, path[0]: new}


def same(one: Any, two: Any) -> bool:
    return json.dumps(one) == json.dumps(two)


@pytest.mark.slow
@given(spellings(), st.lists(KEYS, min_size=1, max_size=3), VALUES | st.just(DROPPED))
@settings(max_examples=300)
def test_any_document_has_the_change_and_no_other(text: str, keys: list[str], new: Any) -> None:
    document, path = json.loads(text), tuple(keys)
    around: Any = document
    for key in path[:-1]:
        around = around.get(key, {}) if isinstance(around, dict) else None
    if not isinstance(around, dict):
        return
    edited = edit_json(text.encode(), {path: new}, "x.json").decode()
    if new is REMOVED and path[-1] not in around:
        assert edited == text
    else:
        assert same(json.loads(edited), with_change(document, path, new))
    if new is not REMOVED and path[0] not in document:
        assert edit_json(edited.encode(), {path[:1]: DROPPED}, "x.json").decode() == text


@pytest.mark.slow
@given(spellings(), st.lists(KEYS, unique=True, max_size=4))
def test_several_changes_at_once(text: str, keys: list[str]) -> None:
    document = json.loads(text)
    gone, new = keys[: len(keys) // 2], keys[len(keys) // 2 :]
    changes: dict[tuple[str, ...], Any] = {(key,): DROPPED if key in gone else [key] for key in keys}
    expected = {k: v for k, v in document.items() if k not in gone} | {key: [key] for key in new}
    assert same(json.loads(edit_json(text.encode(), changes, "x.json")), expected)


@pytest.mark.slow
@given(spellings())
def test_what_is_added_in_every_object_goes_everywhere(text: str) -> None:
    paths = objects_in(json.loads(text))
    marked = edit_json(text.encode(), {(*path, "mark"): "on" for path in paths}, "x.json")
    assert marked.count(b'"mark"') == len(paths)
    assert remove_everywhere(marked, "mark", "on", "x.json").decode() == text


def objects_in(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return []
    return [path] + [found for key, inner in value.items() for found in objects_in(inner, (*path, key))]


def test_megabytes_of_blanks_are_not_repeated() -> None:
    blanks = " " * 1_000_000
    gone: dict[tuple[str, ...], Any] = {(f"k{i}",): DROPPED for i in range(100)}
    for raw in (f'{{"a": 1,{blanks}"b":{blanks}2{blanks}}}', f'{{"a": 1,\n{blanks}"b": 2}}'):
        edited = edit_json(raw.encode(), {(f"k{i}",): {"x": [1, 2]} for i in range(100)}, "x.json")
        assert len(edited) < len(raw) + 10_000
        assert edit_json(edited, gone, "x.json") == raw.encode()
