"""docs/damages.md and the summary in docs/corruption.md: tables, written from the matrix and read back."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.corruption import checkpoints as kinds
from tests.corruption.matrix import TABLES, Table
from tests.corruption.runs import AGAINST, STATS, VERIFY, is_found

DOCS = Path(__file__).parent.parent.parent / "docs"
DAMAGES = DOCS / "damages.md"
SUMMARY = DOCS / "corruption.md"

Rows = dict[tuple[str, str, str], tuple[str, ...]]
"""The words of a row by the table's title, place and damage."""

_BETWEEN = "; "


def read_rows(text: str) -> Rows:
    """Every row of the tables in a document, damages that share one taken apart again."""
    rows: Rows = {}
    for table in TABLES:
        for line in _block(text, table.title)[0].splitlines()[2:]:
            place, damages, *words = (cell.strip() for cell in line.strip("|").split("|"))
            for damage in damages.split(_BETWEEN):
                rows[table.title, place, damage] = tuple(words)
    return rows


def pages_of(rows: Rows) -> dict[Path, str]:
    """Both pages, with the tables as `rows` give them, and the summary that they add up to."""
    damages = DAMAGES.read_text()
    for table in TABLES:
        damages = _replaced(damages, table.title, _lines(table, rows))
    return {DAMAGES: damages, SUMMARY: _replaced(SUMMARY.read_text(), "summary", summary(rows))}


def _block(text: str, name: str) -> re.Match[str]:
    """What stands between a table's two marks."""
    found = re.search(rf"(?<=<!-- {re.escape(name)} -->\n).*?(?=<!-- end -->)", text, re.DOTALL)
    assert found, f"the document has no marks for {name}"
    return found


def _replaced(text: str, name: str, lines: Iterable[str]) -> str:
    old = _block(text, name)
    return text[: old.start()] + "".join(f"{line}\n" for line in lines) + text[old.end() :]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _lines(table: Table, rows: Rows) -> Iterator[str]:
    """A table: damages at one place that every command takes alike share a row."""
    yield from _head(["place", "damage", *table.columns])
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for case in table.cases:
        together.setdefault((case.place, rows[table.title, case.place, case.damage]), []).append(case.damage)
    for (place, words), damages in together.items():
        yield _line([place, _BETWEEN.join(damages), *words])


def _head(columns: list[str]) -> Iterator[str]:
    yield _line(columns)
    yield _line(["---"] * len(columns))


_GROUPS = {
    "CSF streams": ("row bases", "codes", "fixed stream", "exceptions", "both streams"),
    "weights, scalars, dense scales, other tensors": (
        "dense scales", "FP4 weight", "`weight_scale_2`", "`input_scale`", "other tensor (BF16 norm)",
    ),
    "safetensors headers": ("safetensors header",),
    "whole shards": ("whole shard",),
    "the index": (f"`{kinds.INDEX}`",),
    "`config.json`, `hf_quant_config.json`": ("`config.json`", "`hf_quant_config.json`"),
    "`tokenizer.json`, `generation_config.json`": ("`tokenizer.json`", "`generation_config.json`"),
    "code, nested checkpoints, files that were added": (
        f"`{kinds.CODE}`", f"`{kinds.DRAFT}`", "`draft/config.json`", "a file that the original lacks",
    ),
    "`README.md`, which no runtime reads": ("`README.md`",),
    "a container's own files": ("`manifest.json`", "`build-contract.json`", "a receipt", "`verification.json`"),
    "the hashes beside a checkpoint": ("links of a Hub cache", "a note of `hf download`", f"`{kinds.SUMS}`"),
}  # fmt: skip
"""What the summary puts together: places by their names in the tables."""


def summary(rows: Rows) -> Iterator[str]:
    """How many damages of each group end with exit code 1, by command and by the evidence there is."""
    evidence = ("no hashes", "hashes", "receipts")
    yield from _head(["damage to", "`stats`", *(f"`verify`, {what}" for what in evidence), "`verify --against`"])
    for group, places in _GROUPS.items():
        counts = [(0, 0)] * 5
        for table in TABLES:
            for case in table.cases:
                if case.place in places:
                    row = dict(zip(table.columns, rows[table.title, case.place, case.damage], strict=True))
                    for i, words in _by_evidence(table, row):
                        counts[i] = counts[i][0] + is_found(words), counts[i][1] + 1
        yield _line([group, *map(_share, counts)])


def _by_evidence(table: Table, row: dict[str, str]) -> Iterator[tuple[int, str]]:
    """The words of a row, each with the number of its column in the summary."""
    yield 0, row[STATS]
    kind = table.kind
    has_hashes = kind.evidence or kind is kinds.BARE_CONTAINER
    yield 3 if kind.has_receipts else 2 if has_hashes else 1, row[VERIFY]
    for hashed in table.hashed:
        yield 2, row[f"{VERIFY}, {hashed.name}"]
    yield 4, row[AGAINST]


def _share(found_of: tuple[int, int]) -> str:
    found, total = found_of
    if not total:
        return ""
    return "all" if found == total else "none" if not found else f"{found} of {total}"
