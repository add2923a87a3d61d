"""The short ways against the general ones: what a short way gives, the general way gives."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csf_tool.disk import quick
from csf_tool.disk.headers import any_header, render_header
from csf_tool.disk.json_files import parse_json

START = 1000
HELD = {"1.safetensors": ["a", "c.weight"], "2.safetensors": ["b"]}
PLACED = {"a": "1.safetensors", "b": "2.safetensors", "c.weight": "1.safetensors"}
DOCUMENT = {"metadata": {"total_size": 7}, "weight_map": PLACED}


class Ways(NamedTuple):
    """A short way and the general one, both of a file's bytes, and texts that the short way takes."""

    short: Callable[[bytes, Path], object]
    general: Callable[[bytes], object]
    texts: list[bytes]
    pieces: list[bytes]


def short_map(text: bytes, path: Path, held: dict[str, list[str]] = HELD) -> bool:
    path.write_bytes(text)
    return quick.spells_out(path, "weight_map", held)


def general_map(text: bytes) -> bool:
    document = parse_json(text, "x")
    return isinstance(document, dict) and document.get("weight_map") == PLACED


WAYS = {
    "header": Ways(
        lambda text, _: quick.header(text, START, None),
        lambda text: any_header(text, START, "x", None),
        [
            b'{"__metadata__":{"format":"pt"},"a.weight":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},"b":{"dtype":'
            b'"F32","shape":[],"data_offsets":[6,10]},"c":{"dtype":"U8","shape":[0],"data_offsets":[10,10]}}  ',
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F4","shape":[2],"data_offsets":[1,2]}}',
        ],
        [b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},', b"__metadata__", b'":"'],
    ),
    "map": Ways(
        short_map,
        general_map,
        [json.dumps(DOCUMENT, indent=indent).encode() + end for indent in (None, 1, 2, 4) for end in (b"", b"\n")],
        [b'"b": "2.safetensors", ', b'"weight_map": {}, ', b'"\\u0061'],
    ),
}
PIECES = [
    *(b"", b'"', b"\\", b"\n", b"\t", b",", b"}", b"{", b"]", b" ", b":", b"0", b"1", b"-", b".0", b"e0", b"_", b"b"),
    *(b"\xff", b"\xc2\xa0", b"{}", b"null", b"true"),
]


def agree(ways: Ways, text: bytes, path: Path) -> bool:
    """Whether the short way gives nothing, or what the general way gives: that raises nothing, then."""
    short = ways.short(text, path)
    return short is None or short is False or short == ways.general(text)


@pytest.mark.parametrize("name", WAYS)
def test_what_known_writers_write_takes_the_short_way(tmp_path: Path, name: str) -> None:
    for text in WAYS[name].texts:
        assert WAYS[name].short(text, tmp_path / "x"), text
        assert agree(WAYS[name], text, tmp_path / "x"), text


@pytest.mark.slow
@settings(deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(WAYS)), st.data())
def test_what_a_short_way_gives_the_general_way_gives(tmp_path: Path, name: str, data: st.DataObject) -> None:
    ways = WAYS[name]
    text = data.draw(st.sampled_from(ways.texts))
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(text)))
        end = min(len(text), begin + data.draw(st.integers(0, 3)))
        text = text[:begin] + data.draw(st.sampled_from([*PIECES, *ways.pieces])) + text[end:]
    assert agree(ways, text, tmp_path / "x")


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_one_byte_more_less_or_other_is_never_misread(tmp_path: Path, name: str) -> None:
    ways = WAYS[name]
    for text in ways.texts[:2]:
        for at in range(len(text)):
            for piece in [*PIECES, *ways.pieces]:
                for changed in (text[:at] + piece + text[at:], text[:at] + piece + text[at + 1 :]):
                    assert agree(ways, changed, tmp_path / "x"), changed


ENTRIES = st.tuples(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters='"\\', min_codepoint=32), max_size=12),
    st.sampled_from([("U8", 1), ("BF16", 2), ("F32", 4), ("I64", 8)]),
    st.lists(st.integers(0, 4), max_size=3),
).filter(lambda entry: entry[0] != "__metadata__")


@settings(deadline=None, max_examples=150)
@given(
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3).filter(
        lambda metadata: json.dumps(metadata, ensure_ascii=False).isprintable()
    ),
    st.lists(ENTRIES, unique_by=lambda entry: entry[0], min_size=1, max_size=8),
)
def test_headers_that_csf_tool_writes_take_the_short_way(
    metadata: dict[str, str], made: list[tuple[str, tuple[str, int], list[int]]]
) -> None:
    entries = []
    for name, (dtype, nbytes), shape in made:
        for n in shape:
            nbytes *= n
        entries.append((name, dtype, tuple(shape), nbytes))
    raw = render_header(metadata, entries)[8:]
    assert quick.header(raw, START, None) == any_header(raw, START, "x", None)
    end = START + sum(nbytes for *_, nbytes in entries)
    assert quick.header(raw, START, end) is not None
    assert quick.header(raw, START, end + 1) is None


@pytest.mark.parametrize("name", ["x\x7f", "é", "\u2028", "a b", "{}[],:"])
def test_names_without_escapes_are_usual(name: str) -> None:
    header = quick.header(render_header({}, [(name, "U8", (1,), 1)])[8:], START, None)
    assert header is not None
    assert header.names == [name]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ('{"weight_map": {"a": "1", "b": "1"}}', {"1": ['a": "1", "b']}),
        ('{"weight_map": {"a\nb": "1"}}', {"1": ["a\nb"]}),
        ('{"weight_map": {\n "a": "1",\n "b,\n c": "1"\n}}', {"1": ["a", "b,\n c"]}),
        ('{"weight_map": {"a\\u0062": "1"}}', {"1": ["a\\u0062"]}),
        ('{"weight_map": {"a": "1", "a": "2"}}', {"1": ["a"], "2": ["a"]}),
        ('{"x": {"weight_map": {"a": "1"}}, "\\u0077eight_map": {}}', {"1": ["a"]}),
        ('{"x": {"weight_map": {"a": "1"}}, "weight_map": {}}', {"1": ["a"]}),
        ('{"weight_map": {"a": "../1"}}', {"../1": ["a"]}),
        ('{"weight_map": {"\ud800": "1"}}', {"1": ["\ud800"]}),
        ('{"weight_map": {"a": "1"}} x', {"1": ["a"]}),
        ('{"weight_map": {}}', {}),
        ('{"weight_map": {"a": "1"}}', {"1": ["a"], "2": []}),
    ],
)
def test_names_that_need_escapes_and_hidden_maps_are_not_compared_as_text(
    tmp_path: Path, text: str, held: dict[str, list[str]]
) -> None:
    assert not short_map(text.encode("utf-8", "surrogatepass"), tmp_path / "x", held)
