"""stats --markdown: tables that GitHub shows as tables, whatever names are in them."""

import re

import pytest
from typer.testing import CliRunner

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import GroupBy
from csf_tool.cli import app
from csf_tool.look.stats import Totals, collect_stats, groups_of
from csf_tool.report.markdown import stats_markdown
from tests.fixture_types import Sample


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table; a pipe behind a backslash ends none."""
    found = []
    for block in text.strip().split("\n\n")[1:]:
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        assert {len(row) for row in rows} == {len(rows[0])}
        assert all(re.fullmatch(r" ---:? ", cell) for cell in rows[1])
        found.append([[cell.strip() for cell in row] for row in (rows[0], *rows[2:])])
    return found


@pytest.mark.parametrize("by", GroupBy)
@pytest.mark.parametrize("name", ["nvfp4-csf-hf", "two-codecs-csf-hf", "mxfp4-csf-container", "nvfp4-dense"])
def test_tables_have_every_group(sample: Sample, name: str, by: GroupBy) -> None:
    result = CliRunner().invoke(app, ["stats", str(sample(name)), "--markdown", "--by", by.value])
    assert (result.exit_code, result.stderr) == (0, "")
    stats = collect_stats(open_checkpoint(sample(name)))
    whole, groups = tables(result.stdout)
    assert [row[0].strip("`") for row in groups] == [by.value, *groups_of(stats, by)]
    assert sum(int(row[1]) for row in groups[1:]) == int(whole[1][1]) == sum(t.planes for t in stats.by_format.values())
    assert ("exceptions" in groups[0]) is stats.is_csf


@pytest.mark.parametrize("name", ["a|b", "`", "``|`", "a\nb", "@someone #1 <b> [x](y) *z*", "\x1b[31m", "\\|", " "])
def test_names_are_no_markup(sample: Sample, name: str) -> None:
    stats = collect_stats(open_checkpoint(sample("nvfp4-csf-hf")))
    stats.by_layer = {name: Totals(1, 2, 3, 4)}
    stats.path = name
    text = "\n".join(stats_markdown(stats, GroupBy.LAYER))
    [_, [_, row]] = tables(text)
    assert "\x1b" not in text
    if name.strip():
        fence = re.match("`+", row[0])
        assert fence
        assert fence[0] not in row[0][len(fence[0]) : -len(fence[0])]
        assert row[0].endswith(fence[0])


def test_one_form_at_a_time(sample: Sample) -> None:
    for other in ("--json", "--scales"):
        result = CliRunner().invoke(app, ["stats", str(sample("nvfp4-csf-hf")), "--markdown", other])
        assert (result.exit_code, f"--markdown and {other}: give one of them" in result.stderr) == (2, True)
