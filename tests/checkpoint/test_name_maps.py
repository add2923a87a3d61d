"""Documents with one long map: the short way against strict JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csf_tool.checkpoint.name_maps import _usual_document, load_with_map
from csf_tool.disk.json_files import parse_json
from csf_tool.errors import CheckpointError

DOCUMENT = {"schema": "x/1", "names": {"a": "1.s", "b.c": "2.s", "é": "1.s"}, "after": [1, {"k": None}]}


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("how", [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"sort_keys": True}])
def test_a_plain_map_is_read_the_short_way(tmp_path: Path, how: dict[str, Any]) -> None:
    path = written(tmp_path, json.dumps(DOCUMENT, ensure_ascii=False, **how))
    assert _usual_document(path, "names") == DOCUMENT


@pytest.mark.parametrize(
    "names", [{}, [], None, {"a": 1}, {"a": {"b": "c"}}, {'q"': "1"}, {"\\": "1"}, {"a": "}"}, {"}": "1"}, {"a\n": "1"}]
)
def test_every_other_map_is_read_all_the_same(tmp_path: Path, names: object) -> None:
    document = {**DOCUMENT, "names": names}
    assert load_with_map(written(tmp_path, json.dumps(document)), "x.json", "names") == document


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"names": {"a": "1", "a": "2"}}', "key 'a' stands twice"),
        ('{"names": {"a": "1"}, "names": {"b": "1"}}', "key 'names' stands twice"),
        ('{"names": {"a": "1"}, "n": NaN}', "NaN is not JSON"),
        ('{"names": {"a": "1",}}', "not valid JSON"),
        ('{"names": {"a": "1","}}', "not valid JSON"),
        ('{"names": {"a\n": "1"}}', "not valid JSON"),
        ('{"names": {"a": "1"}', "not valid JSON"),
        (b'{"names": {"\xff": "1"}}', "not UTF-8"),
        ("version https://git-lfs.github.com/spec/v1\n", "git-LFS pointer"),
    ],
)
def test_what_is_no_strict_json_is_refused_as_ever(tmp_path: Path, text: str | bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        load_with_map(written(tmp_path, text), "x.json", "names")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^x\.json: not there"):
        load_with_map(tmp_path / "x.json", "x.json", "names")


@settings(deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([None, 1]), st.data())
def test_what_the_short_way_takes_strict_json_takes_with_the_same_result(
    tmp_path: Path, indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(DOCUMENT, indent=indent, ensure_ascii=False)
    for _ in range(data.draw(st.integers(1, 3))):
        begin, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 2))
        pieces = ["", '"', "\\", "\n", "\t", ",", "}", "{", " ", ":", '"names"', '"names": {"a": "b"}, ', '"a": "b", ']
        text = text[:begin] + data.draw(st.sampled_from(pieces)) + text[begin + length :]
    found = _usual_document(written(tmp_path, text), "names")
    assert found is None or list(found.items()) == list(parse_json(text.encode(), "x").items())
