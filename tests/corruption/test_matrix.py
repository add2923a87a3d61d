"""Every damage at every place of every layout, what each command makes of it, and docs/damages.md, which says so.

CSF_TOOL_UPDATE_SNAPSHOTS=1 rewrites the tables, and the summary in docs/corruption.md.
"""

import os
from collections.abc import Iterator

import pytest

from tests.corruption.damages import Case
from tests.corruption.document import DAMAGES, Rows, pages_of, read_rows
from tests.corruption.matrix import TABLES, Bench, Table


def _params() -> Iterator[object]:
    """All rows; in the quick lane the first of every table and the first of every place."""
    seen: set[str] = set()
    for table in TABLES:
        for case in table.cases:
            marks = [pytest.mark.slow] if case.place in seen and case is not table.cases[0] else []
            yield pytest.param(table, case, marks=marks, id=f"{table.title}-{case.place}-{case.damage}")
            seen.add(case.place)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)  # what expand writes is gone in a moment
        yield Bench(tmp_path_factory.mktemp("matrix"))


@pytest.fixture(scope="module")
def documented(bench: Bench) -> Rows:
    """The rows of the document, rewritten first where that was asked for."""
    if os.environ.get("CSF_TOOL_UPDATE_SNAPSHOTS"):
        rows = {(t.title, c.place, c.damage): bench.row(t, c)[0] for t in TABLES for c in t.cases}
        for page, text in pages_of(rows).items():
            page.write_text(text)
    return read_rows(DAMAGES.read_text())


@pytest.mark.parametrize(("table", "case"), list(_params()))
def test_damage(bench: Bench, documented: Rows, table: Table, case: Case) -> None:
    words, tried = bench.row(table, case)
    assert [promise for one in tried for promise in one.broken_promises()] == []
    assert documented[table.title, case.place, case.damage] == words


def test_the_document_has_these_rows_and_no_others_and_adds_them_up(documented: Rows) -> None:
    assert documented.keys() == {(table.title, case.place, case.damage) for table in TABLES for case in table.cases}
    assert {page: page.read_text() for page in pages_of(documented)} == pages_of(documented)
