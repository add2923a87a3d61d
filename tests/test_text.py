"""Names made safe for a terminal, and words for people."""

import pytest

from csf_tool.text import count, escape, parse_size, percent, size, some


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("model.layers.0.mlp", "model.layers.0.mlp"),
        ("é 日本 😀", "é 日本 😀"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("bell\a\b\x7f\x9b", "bell\\x07\\x08\\x7f\\x9b"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066x\u2069\u200f", "\\u2066x\\u2069\\u200f"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("line\u2028par\u2029", "line\\u2028par\\u2029"),
        ("\ud800", "\\ud800"),
        ("\ue000\U0010ffff", "\\ue000\\U0010ffff"),
        ("\x00", "\\x00"),
        ("", ""),
    ],
)
def test_what_acts_on_a_terminal_is_shown_as_its_escape(name: str, shown: str) -> None:
    assert escape(name) == shown


def test_an_escaped_name_can_be_encoded_and_stands_on_one_line() -> None:
    every = escape("".join(map(chr, range(0x3000))) + "\ud800")
    assert len(every.encode().splitlines()) == 1
    assert all(c.isprintable() or c.isspace() for c in every)


def test_other_objects_are_shown_by_their_string() -> None:
    assert escape(17) == "17"


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3_960_000_000, "3.69 GiB"),
        (1 << 40, "1.00 TiB"),
        (5 << 50, "5120.00 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_sizes_are_in_binary_units(nbytes: int, shown: str) -> None:
    assert size(nbytes) == shown


def test_percent_is_blank_without_a_whole() -> None:
    assert percent(1, 8) == "12.50%"
    assert percent(1, 0) == ""


@pytest.mark.parametrize(
    ("n", "noun", "shown"),
    [(1, "plane", "1 plane"), (0, "plane", "0 planes"), (73_728, "plane", "73,728 planes"), (2, "entry", "2 entries")],
)
def test_counts(n: int, noun: str, shown: str) -> None:
    assert count(n, noun) == shown


@pytest.mark.parametrize(
    ("written", "nbytes"),
    [("96GiB", 96 << 30), ("96 GB", 96 * 10**9), ("1.5k", 1500), ("0 B", 0), ("512 b", 512), ("2TiB", 2 << 40)],
)
def test_sizes_as_users_write_them(written: str, nbytes: int) -> None:
    assert parse_size(written) == nbytes


@pytest.mark.parametrize("written", ["", "GiB", "-1", "1 XB", "1e9", "1,5G", "nan"])
def test_what_is_no_size(written: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(written)


@pytest.mark.parametrize("written", ["96", " 96 ", "0", "1.5", "100000"])
def test_a_size_needs_a_unit(written: str) -> None:
    with pytest.raises(ValueError, match=rf"^needs a unit; did you mean {written.strip()}GiB\?$"):
        parse_size(written)


def test_some_names_and_the_number_of_the_others() -> None:
    names = ["a", "b", "c"]
    assert some(names, 3) == some(names, 10) == "a, b, c"
    assert some(names, 2) == "a, b and 1 more" and some(names, 1, word="or") == "a or 2 more"
    assert some(names, 2, 1201) == "a, b and 1,199 more" and some(names, 3, 3) == "a, b, c"
    assert some([], 3) == ""
