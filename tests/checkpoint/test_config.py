"""quantization_config in its four places, and taking the CSF encoding out of a config without touching the rest."""

import functools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csf_tool.checkpoint.config import Recipe, mark_encoding, quantization_config, recipes, strip_encoding
from csf_tool.disk.lenient_json import parse_lenient
from csf_tool.errors import CheckpointError
from tests.odd_json import OBJECTS, PUBLISHED, spellings

LAYERS = {
    "model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16, "weight_scale_encoding": "csf"},
    "model.layers.0.self_attn": {"quant_algo": "MXFP8"},
}
FOUND = [Recipe("model.layers.0.mlp.experts", True), Recipe("model.layers.0.self_attn", False)]


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"quantized_layers": LAYERS}},
        {"quantization_config": {"quantization": {"quantized_layers": LAYERS}}},
        {"text_config": {"quantization_config": {"quantized_layers": LAYERS}}},
        {"text_config": {"quantization_config": {"quantization": {"quantized_layers": LAYERS}}}},
        {"quantized_layers": LAYERS},
        {"producer": {"name": "modelopt"}, "quantization": {"quantized_layers": LAYERS}},
    ],
    ids=["top", "top nested", "text_config", "text_config nested", "hf_quant_config flat", "hf_quant_config nested"],
)
def test_recipes_are_found_in_every_place(config: Any) -> None:
    assert recipes(config) == FOUND


@pytest.mark.parametrize(
    "config",
    [
        {},
        [],
        None,
        "x",
        {"quantization_config": None},
        {"quantization_config": []},
        {"quantization_config": {"quantized_layers": None}},
        {"quantization_config": {"quantized_layers": ["a"]}},
        {"quantization_config": {"quantization": "NVFP4"}},
        {"text_config": 5},
        {"quantization_config": {"quantized_layers": {"a": "NVFP4", "b": None}}},
    ],
)
def test_configs_without_recipes(config: Any) -> None:
    assert recipes(config) == []


def test_only_csf_counts_as_csf() -> None:
    layers = {"a": {"weight_scale_encoding": "other"}, "b": {"weight_scale_encoding": None}, "c": {}}
    assert [recipe.is_csf for recipe in recipes({"quantized_layers": layers})] == [False, False, False]


def test_the_top_comes_before_text_config() -> None:
    config = {"quantization_config": {"a": 1}, "text_config": {"quantization_config": {"b": 2}}}
    assert quantization_config(config) == {"a": 1}


ENTRY = '"weight_scale_encoding": "csf"'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f'{{"q": {{{ENTRY}, "a": 1}}}}', '{"q": {"a": 1}}'),
        (f'{{"q": {{"a": 1, {ENTRY}}}}}', '{"q": {"a": 1}}'),
        (f'{{"q": {{"a": 1, {ENTRY}, "b": 2}}}}', '{"q": {"a": 1, "b": 2}}'),
        (f'{{"q": {{{ENTRY}}}}}', '{"q": {}}'),
        ('{"q":{"a":1,"weight_scale_encoding":"csf","b":2}}', '{"q":{"a":1,"b":2}}'),
        (
            '{\n  "q": {\n    "a": 1,\n    "weight_scale_encoding" : "csf"\n  }\n}\n',
            '{\n  "q": {\n    "a": 1\n  }\n}\n',
        ),
        (
            '{\r\n\t"q": {\r\n\t\t"weight_scale_encoding": "csf",\r\n\t\t"a": 1\r\n\t}\r\n}',
            '{\r\n\t"q": {\r\n\t\t"a": 1\r\n\t}\r\n}',
        ),
        (f'{{"x": [{{{ENTRY}, "a": 1}}, {{"a": 1, {ENTRY}}}]}}', '{"x": [{"a": 1}, {"a": 1}]}'),
    ],
    ids=["first", "last", "middle", "only", "compact", "indented", "tabs and CRLF", "in a list"],
)
def test_the_encoding_goes_and_every_other_byte_stays(before: str, after: str) -> None:
    assert strip_encoding(before.encode(), "config.json").decode() == after


@pytest.mark.parametrize(
    "text",
    [
        '{"b": 1.50, "a": 1e5, "c": 100000000000000000000000, "d": "\\u00e9", "e": "é", "f": "\\/"}',
        '{"weight_scale_encoding": "other"}',
        '{"weight_scale_encoding": null, "x": {"weight_scale_encoding": ["csf"]}}',
        '{"note": "\\"weight_scale_encoding\\": \\"csf\\""}',
        '{"note": "weight_scale_encoding: csf", "csf": "weight_scale_encoding"}',
        '{"my_weight_scale_encoding": "csf"}',
        "{}",
        "[]",
        " { }\n\n",
    ],
)
def test_a_config_without_the_encoding_stays_byte_for_byte(text: str) -> None:
    assert strip_encoding(text.encode(), "config.json") == text.encode()


def test_the_entry_in_a_string_stays_where_a_real_one_goes() -> None:
    note = '"note": "say \\"weight_scale_encoding\\": \\"csf\\" here"'
    raw = f'{{{note}, "q": {{{ENTRY}, "é": 1.0}}}}'.encode()
    assert strip_encoding(raw, "config.json") == f'{{{note}, "q": {{"é": 1.0}}}}'.encode()


@pytest.mark.parametrize("key", ['"weight_scale_\\u0065ncoding": "csf"', '"weight_scale_encoding": "\\u0063sf"'])
def test_an_entry_written_with_escapes_goes_too(key: str) -> None:
    stripped = strip_encoding(f'{{"z": 1, "q": {{{key}, "a": "é"}}}}'.encode(), "config.json")
    assert json.loads(stripped) == {"z": 1, "q": {"a": "é"}}
    assert list(json.loads(stripped)) == ["z", "q"]


def test_a_mixed_config_loses_one_key_of_one_recipe() -> None:
    config = {
        "b": 1,
        "quantization_config": {
            "quantized_layers": {
                "experts": {"quant_algo": "NVFP4", "weight_scale_encoding": "csf", "group_size": 16},
                "attn": {"quant_algo": "MXFP8", "group_size": 32},
                "vision": {"quant_algo": "FP8"},
            }
        },
        "a": 2,
    }
    raw = json.dumps(config, indent=4).encode()
    lost = b'\n                "weight_scale_encoding": "csf",'
    assert strip_encoding(raw, "config.json") == raw.replace(lost, b"")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{", "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b'{"a":' * 600 + b"1" + b"}" * 600, "nested too deeply"),
        (b'{"a": 01}', "not valid JSON"),
        (b'{"a": "\t"}', "not valid JSON"),
        ("{}".encode("utf-16"), "not UTF-8 at byte 0"),
    ],
)
def test_a_config_that_is_no_json_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        strip_encoding(raw, "config.json")


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without(v) for k, v in value.items() if (k, v) != ("weight_scale_encoding", "csf")}
    return [without(v) for v in value] if isinstance(value, list) else value


RECIPES = st.dictionaries(st.sampled_from(["m.experts", "é", "\\", '"']), OBJECTS, min_size=1, max_size=3)
LAYERED = st.builds(
    lambda recipes, beside, place: functools.reduce(lambda inner, key: {**beside, key: inner}, place, recipes),
    RECIPES,
    OBJECTS.filter(lambda beside: beside.keys().isdisjoint({"quantized_layers", "quantization"})),
    st.sampled_from(
        [
            ["quantized_layers"],
            ["quantized_layers", "quantization"],
            ["quantized_layers", "quantization_config"],
            ["quantized_layers", "quantization", "quantization_config", "text_config"],
        ]
    ),
)

STRINGS = st.sampled_from(["weight_scale_encoding", "csf", "a", '"csf"', "\\", '"weight_scale_encoding": "csf"', ", "])
VALUES = st.recursive(
    STRINGS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, 0, 2, "\t"]), st.booleans())
def test_stripping_any_document_takes_only_the_entries(value: Any, indent: Any, compact: bool) -> None:
    separators = (",", ":") if compact else None
    raw = json.dumps(value, indent=indent, separators=separators).encode()
    stripped = strip_encoding(raw, "config.json")
    assert json.loads(stripped) == without(value)
    if without(value) == value:
        assert stripped == raw


@pytest.mark.slow
@given(spellings(LAYERED), st.data())
def test_marks_come_and_go_and_no_other_byte_changes(text: str, data: st.DataObject) -> None:
    document = json.loads(text)
    found = [recipe.module for recipe in recipes(document)]
    modules = set(data.draw(st.lists(st.sampled_from(found), unique=True))) if found else set()
    marked = mark_encoding(text.encode(), "config.json", modules)
    assert {recipe.module for recipe in recipes(json.loads(marked)) if recipe.is_csf} == modules
    assert json.dumps(without(json.loads(marked))) == json.dumps(document)
    assert strip_encoding(marked, "config.json").decode() == text
    assert (marked.decode() == text) == (not modules)


@pytest.mark.parametrize("text", PUBLISHED.values(), ids=PUBLISHED)
def test_published_spellings_are_marked_in_place(text: str) -> None:
    raw = text.encode()
    marked = mark_encoding(raw, "config.json", {"m.experts"})
    assert [recipe.is_csf for recipe in recipes(parse_lenient(marked, "config.json").value)] == [True]
    assert strip_encoding(marked, "config.json") == raw
    at = next(i for i, pair in enumerate(zip(raw, marked, strict=False)) if pair[0] != pair[1])
    assert marked.endswith(raw[at:])  # all that is new stands in one place


def test_a_recipe_of_another_encoding_gets_ours() -> None:
    raw = b'{"quantized_layers": {"m": {"weight_scale_encoding": null, "a": 1.50}}}'
    assert mark_encoding(raw, "x", {"m"}) == raw.replace(b"null", b'"csf"')


def test_a_megabyte_of_blanks_takes_no_quadratic_step() -> None:
    blanks = " " * 1_000_000
    raw = f'{{"a": {blanks}1{blanks}, "weight_scale_encoding": "csf", "b": "{blanks}"}}'.encode()
    assert strip_encoding(raw, "config.json") == f'{{"a": {blanks}1, "b": "{blanks}"}}'.encode()


def test_marks_look_as_json_dumps_writes_them() -> None:
    for indent in (" ", "  ", "\t", " " * 8):
        text = json.dumps({"quantized_layers": {"m": {}}}, indent=indent)
        marked = json.dumps({"quantized_layers": {"m": {"weight_scale_encoding": "csf"}}}, indent=indent)
        assert mark_encoding(text.encode(), "config.json", {"m"}).decode() == marked
