"""JSON held against JSON: by value and type, as strict readers tell them apart."""

import pytest

from csf_tool.prove.json_values import difference, parse_values

SAME = [
    ('{"a": 1, "b": [2]}', '{ "b" : [2],\n"a":1}'),
    ("1.50", "1.5"),
    ("1e2", "100.0"),
    ("0.1", "0.1000000000000000055"),
    ('"\\u00e9\\/"', '"é/"'),
    ("NaN", " NaN"),
    ("-Infinity", "-Infinity"),
    ("[1e999, NaN]", "[1e999,NaN]"),
    ("1" + "0" * 5000, "1" + "0" * 5000),
]

OTHER = [
    ("384.0", "384"),
    ("1", "true"),
    ("0", "false"),
    ("0", "null"),
    ("-0.0", "0.0"),
    ("-0", "0"),
    ("9007199254740993", "9007199254740992.0"),
    ("9007199254740993", "9007199254740992"),
    ("1" + "0" * 5000, "2" + "0" * 5000),
    ('"1"', "1"),
    ('"true"', "true"),
    ('"NaN"', "NaN"),
    ("NaN", "Infinity"),
    ("NaN", "null"),
    ("1e999", "Infinity"),
    ("1e998", "1e999"),
    ("Infinity", "-Infinity"),
    ("[]", "{}"),
    ("[1, 2]", "[2, 1]"),
    ('{"a": null}', "{}"),
    ('["integer", "1"]', "1"),
]


@pytest.mark.parametrize(("ours", "theirs"), SAME)
def test_the_same(ours: str, theirs: str) -> None:
    assert difference(parse_values(ours.encode()).value, parse_values(theirs.encode()).value) is None


@pytest.mark.parametrize(("ours", "theirs"), OTHER)
@pytest.mark.parametrize("around", ["{}", '{{"a": {{"b": {}}}, "c": 1}}', '{{"a": [0, {}, 2]}}', '[[{{"a": [{}]}}]]'])
def test_another(ours: str, theirs: str, around: str) -> None:
    one, two = (parse_values(around.format(text).encode()).value for text in (ours, theirs))
    assert difference(one, two) is not None
    assert difference(two, one) is not None


def test_where_they_differ_is_said_as_it_is_written() -> None:
    one, two = (parse_values(f'{{"a": {{"size": {text}}}}}'.encode()).value for text in ("384.0", "384"))
    found = difference(one, two)
    assert found
    assert found.problem == "differs from the reference at a.size: 384.0 here, 384 there"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "b": 2}', None),
        ('{"a": 1, "a": 1}', "key 'a' appears twice in one object, at its top"),
        ('{"a": {"b": [0, {"c": 1, "d": 2, "c": 3}]}}', "key 'c' appears twice in one object, at 'a.b[1]'"),
        ('{"a": {"b": 1, "b": 2}, "a": 3}', "key 'a' appears twice in one object, at its top"),
        ('[{"a": {"b": 1, "b": 2}, "a": 3}]', "key 'a' appears twice in one object, at '[0]'"),
        ('{"a": [{}, {}]}', None),
    ],
)
def test_a_key_that_stands_twice(text: str, said: str | None) -> None:
    assert parse_values(text.encode()).repeated == said


@pytest.mark.parametrize("raw", [b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"{", b"", b'{"a": \xff}', b"{}\0"])
def test_what_is_no_json(raw: bytes) -> None:
    with pytest.raises(ValueError):
        parse_values(raw)
