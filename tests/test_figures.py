"""Figures: what is drawn is what was counted, and every figure says units, sample size and source."""

import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from typer.testing import CliRunner

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.cli import app
from csf_tool.look.inspection import choose_planes, inspect_plane
from csf_tool.look.plan import make_plan
from csf_tool.look.stats import collect_stats
from csf_tool.report.figures import plan_figure, plane_figure, stats_figure

Sample = Callable[[str], Path]
PLANE = "model.language_model.layers.2.mlp.experts.3.down_proj"


def words(figure: Figure) -> str:
    figure.draw_without_rendering()
    return "\n".join(t.get_text() for t in figure.findobj(Text) if isinstance(t, Text))


def test_bars_are_the_sizes_of_the_projections(sample: Sample) -> None:
    stats = collect_stats(open_checkpoint(sample("nvfp4-csf-hf")))
    figure = stats_figure(stats)
    dense, csf = figure.axes[0].containers
    totals = stats.by_projection.values()
    assert [bar.get_width() * 1024 for bar in dense] == [t.dense_bytes for t in totals]
    assert [bar.get_width() * 1024 for bar in csf] == [t.csf_bytes for t in totals]
    assert all(part in words(figure) for part in ("(KiB)", "n = 12 planes", "36 planes in 3 shards", "nvfp4-csf-hf"))


def test_a_dense_checkpoint_has_one_bar_a_projection(sample: Sample) -> None:
    figure = stats_figure(collect_stats(open_checkpoint(sample("mxfp4-dense"))))
    assert len(figure.axes[0].containers) == 1


def test_the_lines_of_a_plan_cross_where_it_says(sample: Sample) -> None:
    plan = make_plan(open_checkpoint(sample("nvfp4-csf-hf")))
    figure = plan_figure(plan)
    dense, kept, *_ = figure.axes[0].lines
    below = np.asarray(kept.get_ydata()) < np.asarray(dense.get_ydata())
    assert below.argmax() == plan.wins_from
    assert below[plan.wins_from :].all()
    assert "less memory from 3 resident stacks on" in words(figure)
    assert "(KiB)" in words(figure)


@pytest.mark.slow
def test_the_map_of_a_plane_marks_its_exceptions(sample: Sample) -> None:
    checkpoint = open_checkpoint(sample("nvfp4-csf-hf"))
    plane = inspect_plane(choose_planes(checkpoint, PLANE)[0])
    figure = plane_figure(plane, "somewhere $x$")
    scales = figure.axes[0]
    assert np.array_equal(np.asarray(scales.images[0].get_array()), plane.scales)
    marks = {(int(row), int(col)) for col, row in np.asarray(scales.collections[0].get_offsets())}
    assert marks == {(int(p) // plane.cols, int(p) % plane.cols) for p in plane.positions}
    said = words(figure)
    assert all(part in said for part in ("E4M3 byte", "296 exceptions", PLANE, r"\$x\$"))


@pytest.mark.slow
@pytest.mark.parametrize("command", [["stats"], ["plan"], ["inspect", PLANE]])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_commands_write_figures(sample: Sample, tmp_path: Path, command: list[str], suffix: str) -> None:
    path = tmp_path / f"figure.{suffix}"
    name, *rest = command
    result = CliRunner().invoke(app, [name, str(sample("nvfp4-csf-hf")), *rest, "--figure", str(path)])
    assert result.exit_code == 0, result.stderr
    if suffix == "png":
        assert path.read_bytes().startswith(b"\x89PNG\r\n")
    else:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("figure.gif", 2, "ends with .png or .svg"), ("nowhere/figure.png", 3, "no file can be made in")],
)
def test_figures_that_cannot_be(sample: Sample, tmp_path: Path, name: str, code: int, said: str) -> None:
    result = CliRunner().invoke(app, ["stats", str(sample("nvfp4-csf-hf")), "--figure", str(tmp_path / name)])
    assert (result.exit_code, said in result.stderr) == (code, True)


def test_several_planes_are_no_figure(sample: Sample, tmp_path: Path) -> None:
    arguments = ["inspect", str(sample("nvfp4-csf-hf")), "--figure", str(tmp_path / "x.png")]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, "36 are meant" in result.stderr) == (2, True)


def test_without_matplotlib_the_extra_is_named(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["stats", str(sample("nvfp4-csf-hf")), "--figure", str(tmp_path / "x.png")])
    assert (result.exit_code, "csf-tool[plot]" in result.stderr) == (3, True)
