"""Words for people: sizes, shares, and names from files made safe for a terminal."""

import re
import reprlib
import unicodedata
from collections.abc import Sequence
from typing import Any

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

# Unicode categories that move the cursor, hide text or turn its direction: controls, formats (bidirectional
# overrides, zero-width characters), surrogates, private use, unassigned, line and paragraph separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def escape(name: object) -> str:
    """A name from a file, with everything that could act on a terminal shown as its escape sequence."""
    text = str(name)
    if text.isprintable():
        return text
    return "".join(c if unicodedata.category(c) not in _UNSAFE else c.encode("unicode_escape").decode() for c in text)


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 200


def brief(value: Any) -> str:
    """A value that a file gave, as Python writes it, at a bounded length and depth: it can be megabytes long."""
    return _BRIEF.repr(value)


def size(nbytes: int) -> str:
    """Bytes in the largest binary unit that keeps the number at least 1, with two decimals."""
    return sizes([nbytes])[0]


def sizes(column: Sequence[int]) -> list[str]:
    """Sizes that stand below each other: all in the unit that suits the largest."""
    unit, factor = unit_for(max(map(abs, column), default=0))
    decimals = 2 if factor > 1 else 0
    return [f"{nbytes / factor:.{decimals}f} {unit}" for nbytes in column]


def unit_for(nbytes: int) -> tuple[str, int]:
    """The largest binary unit in which a size is at least 1, and its bytes."""
    power = next((i for i in range(len(_UNITS)) if nbytes < 1024 ** (i + 1)), len(_UNITS) - 1)
    return _UNITS[power], 1024**power


def parse_size(text: str) -> int:
    """Bytes that a user wrote: `96GiB`, `96 GB`, `100000 B`. Units with an i are binary, those without decimal.

    Raises:
        ValueError: it is no size, or has no unit.
    """
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        raise ValueError(f"needs a unit; did you mean {text.strip()}GiB?")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError("is not a size; give one like 96GiB")
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** (" KMGT".index(prefix.upper()) if prefix else 0))


def percent(part: float, whole: float) -> str:
    """`part` of `whole` in percent; blank where there is no whole."""
    return f"{100 * part / whole:.2f}%" if whole else ""


def count(n: int, noun: str) -> str:
    """`n` of a noun: "1 plane", "73,728 planes"."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{n:,} {noun if n == 1 else plural}"


def verb(n: int, one: str, several: str) -> str:
    """The form of a verb that fits `n` of a noun: "is" or "are"."""
    return one if n == 1 else several


def counted(names: Sequence[str], noun: str) -> str:
    """The number of some names, and one of them: "1 shard, a", "3 shards, for example a"."""
    return f"{count(len(names), noun)}, {'' if len(names) == 1 else 'for example '}{names[0]}"


def some(names: Sequence[str], most: int, of: int | None = None, word: str = "and") -> str:
    """Names as a list in a sentence, at most so many of them, and how many others there are: "a, b and 3 more".

    They are `of` so many in all, if there are more of them than `names`.
    """
    shown = names[:most]
    others = (len(names) if of is None else of) - len(shown)
    return f"{', '.join(shown)} {word} {others:,} more" if others > 0 else ", ".join(shown)


def first_line(error: BaseException) -> str:
    """The first line of what another package's error says; the error's name where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
