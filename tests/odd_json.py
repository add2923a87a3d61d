"""JSON as the world writes it: configs in the spellings of their writers, and any document in any spelling."""

import json
from typing import Any

from hypothesis import strategies as st

_RECIPE = '"quantization_config": {"quantized_layers": {"m.experts": {"quant_algo": "NVFP4", "group_size": 16}}}'

PUBLISHED: dict[str, str] = {
    "Infinity": f'{{"time_step_limit": [0.0, Infinity], {_RECIPE}}}',
    "-Infinity and NaN": f'{{"a": -Infinity, "b": [NaN], {_RECIPE}}}',
    "a key stands twice": f'{{"model_type": "x", {_RECIPE}, "model_type": "mini"}}',
    "recipes stand twice": f"{{{_RECIPE}, {_RECIPE}}}",
    "a key of a recipe stands twice": f"{{{_RECIPE}}}".replace('"group_size"', '"group_size": 32, "group_size"'),
    "past the largest double": f'{{"a": [1e400, -1e400], {_RECIPE}}}',
    "huge integers": f'{{"model_max_length": 1000000000000000019884624838656, {_RECIPE}}}',
    "an integer that Python refuses": f'{{"a": {"9" * 5000}, {_RECIPE}}}',
    "half a character": f'{{"a": "\\ud83d", "\\udc00": 1, {_RECIPE}}}',
    "deep": f'{{"a": {"[" * 300}{"]" * 300}, {_RECIPE}}}',
    "deep objects": "{" + '"a": {' * 300 + "}" * 300 + f", {_RECIPE}}}",
    "CRLF": json.dumps(json.loads(f"{{{_RECIPE}}}"), indent=2).replace("\n", "\r\n") + "\r\n",
    "tabs": json.dumps(json.loads(f"{{{_RECIPE}}}"), indent="\t") + "\n",
    "eight blanks, no final newline": json.dumps(json.loads(f"{{{_RECIPE}}}"), indent=8),
    "compact": json.dumps(json.loads(f"{{{_RECIPE}}}"), separators=(",", ":")),
    "escaped slashes": f'{{"a": "https:\\/\\/x", {_RECIPE}}}',
    "letters as escapes": f"{{{_RECIPE}}}".replace("quantized", "\\u0071uantized").replace("NVFP4", "NVFP\\u0034"),
    "escapes and letters": f'{{"a": "\\u00e9\\u20ac\\ud83d\\ude00", "b": "é😀", {_RECIPE}}}',
    "a byte order mark": f"\ufeff{{{_RECIPE}}}",
    "numbers of many kinds": f'{{"a": [1.0, 1e-05, -0.0, 1E+2, 0.1000000000000000055, 1.50, -0], {_RECIPE}}}',
    "blank lines": f"\n\n{{\n\n{_RECIPE}\n\n}}\n\n\n",
    "commas first": f'{{ "z": 1\n, "a": 2\n, {_RECIPE}\n}}',
}
"""Configs that transformers reads, and what is near to it; each with one recipe, of `m.experts`."""

TAKEN_DIFFERENTLY = [
    *("a key stands twice", "recipes stand twice", "a key of a recipe stands twice"),
    *("an integer that Python refuses", "half a character", "a byte order mark"),
]
"""Those of them that not all readers take, or that these take differently."""

UNREADABLE: dict[str, bytes] = {
    "cut off": b'{"a": 1, "quantization_config": {',
    "UTF-16": "{}".encode("utf-16"),
    "Latin-1": '{"a": "é"}'.encode("latin-1"),
    "too deep": b"[" * 5000 + b"]" * 5000,
    "a comment": b'{"a": 1} // said\n',
    "a trailing comma": b'{"a": 1,}',
    "a tab in a string": b'{"a": "\t"}',
    "single quotes": b"{'a': 1}",
    "zeros": bytes(64),
    "a web page": b"<html></html>",
    "nothing": b"",
}
"""Configs that Python does not read, nor any other reader of JSON."""

KEYS = st.sampled_from(["a", "b", "é", '"', "\\", "a\n", ", ", "}"]) | st.text(max_size=3)
NUMBERS = st.sampled_from([0, 1, 1.0, -0.0, 1e-05, 1e300, float("nan"), float("inf"), 10**30])
VALUES = st.recursive(
    KEYS | NUMBERS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
BLANKS = st.text(" \t\r\n", max_size=3)


@st.composite
def spellings(draw: st.DrawFn, values: st.SearchStrategy[Any] = OBJECTS) -> str:
    """A document in the spelling of some writer: whole indents of many kinds, or blanks anywhere."""
    value, ascii_only = draw(values), draw(st.booleans())
    if draw(st.booleans()):
        indent = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
        separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : "), (",", ": ")]))
        text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_only)
        return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"]))) + draw(BLANKS)

    def spelt(value: Any) -> str:
        if isinstance(value, dict):
            members = [f"{spelt(k)}{draw(BLANKS)}:{draw(BLANKS)}{spelt(v)}" for k, v in value.items()]
            members += members[:1] if draw(st.booleans()) else []  # a repeated key
            return joined("{", members, "}")
        if isinstance(value, list):
            return joined("[", list(map(spelt, value)), "]")
        return json.dumps(value, ensure_ascii=ascii_only)

    def joined(begin: str, items: list[str], end: str) -> str:
        between = [f"{draw(BLANKS)},{draw(BLANKS)}" for _ in items[1:]]
        parts = [part for pair in zip(items, [*between, draw(BLANKS)], strict=True) for part in pair] if items else []
        return "".join([begin, draw(BLANKS), *parts, end])

    return draw(BLANKS) + spelt(value) + draw(BLANKS)
