"""Figures: what is drawn is what the JSON documents say, all of it can be read, and every format is written."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from typer.testing import CliRunner

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import GroupBy
from csf_tool.cli import app
from csf_tool.codec import reference
from csf_tool.codec.formats import MXFP4, NVFP4, SLAB_ROWS, CsfFormat
from csf_tool.documents.plan import plan_document
from csf_tool.look.inspection import Inspected, choose_planes, inspect_plane
from csf_tool.look.plan import Plan, Stack, make_plan
from csf_tool.look.stats import Projection, Stats, Totals, collect_stats, layers_and_projections
from csf_tool.report.figures.canvas import SUFFIXES, name_of, save
from csf_tool.report.figures.exceptions import exceptions_figure
from csf_tool.report.figures.memory import plan_figure
from csf_tool.report.figures.plane import plane_figure
from csf_tool.report.figures.stored_sizes import stats_figure
from tests.commands import document
from tests.drawn_texts import unreadable, words
from tests.fixture_types import Sample

PLANE = "model.language_model.layers.2.mlp.experts.3.down_proj"
SAMPLES = ["nvfp4-csf-hf", "mxfp4-csf-container", "two-codecs-csf-hf", "mxfp4-dense"]
CARDS = [None, 1 << 20, 3_380_000, 1 << 34]
"""Memory of a GPU: not said, too little, enough for compressed scales alone, and plenty."""


def made_up(prefixes: dict[str, int], projections: int = 3, *, csf: bool = True) -> Stats:
    """Stats of a checkpoint with so many layers of each prefix."""
    layers = [f"{prefix}{n}" for prefix, number in prefixes.items() for n in range(number)]
    kinds = [Projection(f"projection_{i}$x$", "nvfp4", 640 + i, 160) for i in range(projections)]
    stats = Stats("../folders/name", "hf", "Hugging Face layout", 39, 10, Totals(), Totals(), 1 << 40)
    for n, layer in enumerate(layers):
        for i, kind in enumerate(kinds):
            one = Totals(512, 52_428_800, 27_000_000 if csf else 0, 4 * (1000 * n + 70_000 * i) if csf else 0)
            (stats.total if csf else stats.dense_total).add(one)
            stats.by_layer.setdefault(layer, Totals()).add(one)
            stats.by_projection.setdefault(kind, Totals()).add(one)
            stats.by_layer_and_projection[layer, kind] = one
            stats.by_shard.setdefault(f"model-{n + 1:05}-of-{len(layers):05}.safetensors", Totals()).add(one)
    stats.by_format = {"nvfp4": stats.total}
    return stats


def made_up_plane(like: Inspected, fmt: CsfFormat, scales: NDArray[np.uint8]) -> Inspected:
    fixed, words = reference.encode(fmt, scales)
    rows, cols = scales.shape
    bases = fixed.reshape(-1, fmt.slab_bytes(cols))[:, :SLAB_ROWS].reshape(-1)
    return replace(
        like, format=fmt, rows=rows, cols=cols, fixed_bytes=fixed.nbytes, words=words, bases=bases, scales=scales
    )


def planes(like: Inspected) -> Iterator[Inspected]:
    random = np.random.default_rng(1)
    for fmt, rows, cols, spread in [(NVFP4, 2560, 40, 4), (MXFP4, 16, 4, 0), (MXFP4, 64, 12, 1), (NVFP4, 16, 160, 60)]:
        made = random.normal(100, spread, (rows, cols)).round().clip(0, 255).astype(np.uint8)
        yield made_up_plane(like, fmt, made)


def by_layer_and_projection(folder: Path) -> dict[tuple[str, str], list[int]]:
    """Dense bytes, CSF bytes and exceptions by layer and projection, added up from the list of all planes."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for plane in document("inspect", folder)["planes"]:
        parts = plane["name"].removesuffix(".weight_scale").removesuffix(".scale").split(".")
        layer = ".".join(parts[: parts.index("layers") + 2])
        projection = f"{parts[-1]} {plane['rows']}x{plane['cols']}"
        for i, key in enumerate(["dense_bytes", "csf_bytes", "exceptions"]):
            sums[layer, projection][i] += plane[key]
    return sums


def test_bars_are_the_sizes_of_the_projections(sample: Sample) -> None:
    stats = collect_stats(open_checkpoint(sample("nvfp4-csf-hf")))
    figure = stats_figure(stats)
    dense, csf = figure.axes[0].containers
    totals = stats.by_projection.values()
    assert [bar.get_width() * 1024 for bar in dense] == [t.dense_bytes for t in totals]
    assert [bar.get_width() * 1024 for bar in csf] == [t.csf_bytes for t in totals]
    said = words(figure)
    assert all(part in said for part in ("(KiB)", "n = 12 planes", "36 planes in 3 shards of nvfp4-csf-hf"))
    assert "CSF stores the block scales in 57.97% of their dense bytes" in said


def test_a_dense_checkpoint_has_one_bar_a_projection(sample: Sample) -> None:
    figure = stats_figure(collect_stats(open_checkpoint(sample("mxfp4-dense"))))
    assert len(figure.axes[0].containers) == 1


@pytest.mark.parametrize("name", ["nvfp4-csf-hf", "mxfp4-csf-container"])
def test_lines_are_what_the_planes_of_each_layer_and_projection_add_up_to(sample: Sample, name: str) -> None:
    figure = stats_figure(collect_stats(open_checkpoint(sample(name))), GroupBy.LAYER)
    sums = by_layer_and_projection(sample(name))
    shares, exceptions = figure.axes
    layers = sorted({layer for layer, _ in sums})
    assert {str(line.get_label()) for line in shares.lines} == {projection for _, projection in sums}
    for one, other in zip(shares.lines, exceptions.lines, strict=True):
        column = [sums[layer, str(one.get_label())] for layer in layers]
        assert np.asarray(one.get_ydata()) == pytest.approx([100 * csf / dense for dense, csf, _ in column])
        assert np.asarray(other.get_ydata()) == pytest.approx([100 * n / dense for dense, _, n in column])
    assert shares.get_ylim()[0] == exceptions.get_ylim()[0] == 0


def test_lines_do_not_join_layers_of_two_kinds() -> None:
    figure = stats_figure(made_up({"model.layers.": 3, "mtp.layers.": 2}), GroupBy.LAYER)
    for axes in figure.axes:
        assert [np.isnan(y) for y in np.asarray(axes.lines[0].get_ydata())] == [False] * 3 + [True] + [False] * 2


def test_bars_of_shards_are_those_of_the_document(sample: Sample) -> None:
    figure = stats_figure(collect_stats(open_checkpoint(sample("nvfp4-csf-hf"))), GroupBy.SHARD)
    shards = document("stats", sample("nvfp4-csf-hf"))["by_shard"]
    (dense, csf), (exceptions,) = figure.axes[0].containers, figure.axes[1].containers
    assert [bar.get_height() * 1024 for bar in dense] == [shard["dense_bytes"] for shard in shards]
    assert [bar.get_height() * 1024 for bar in csf] == [shard["csf_bytes"] for shard in shards]
    shares = [100 * shard["exceptions"] / shard["dense_bytes"] for shard in shards]
    assert [bar.get_height() for bar in exceptions] == pytest.approx(shares)


@pytest.mark.parametrize("memory", CARDS)
def test_bars_of_a_plan_are_the_parts_of_the_document(sample: Sample, memory: int | None) -> None:
    plan = make_plan(open_checkpoint(sample("nvfp4-csf-hf")), gpu_memory=memory)
    figure = plan_figure(plan)
    bars, said = figure.axes[0], plan_document(plan)
    factor = {"M": 1 << 20, "G": 1 << 30}[bars.get_xlabel().split("(")[1][0]]
    drawn: dict[int, list[int]] = {0: [], 1: []}
    for container in bars.containers:
        for bar in container:
            assert isinstance(bar, Rectangle)
            drawn[round(bar.get_y() + bar.get_height() / 2)].append(round(bar.get_width() * factor))
    left = said["left_bytes"] or {"expanded": 0, "compressed": 0}
    decoded = [said["other_tensor_bytes"], said["expanded_bytes"], left["expanded"]]
    kept = [said["other_tensor_bytes"], said["compressed_bytes"], said["workspace_bytes"], left["compressed"]]
    assert drawn == {0: [n for n in decoded if n > 0], 1: [n for n in kept if n > 0]}
    lines = [np.asarray(line.get_xdata())[0] * factor for line in bars.lines]
    assert lines == ([pytest.approx(memory)] if memory else [])


def test_the_lines_of_a_plan_cross_where_it_says(sample: Sample) -> None:
    plan = make_plan(open_checkpoint(sample("nvfp4-csf-hf")))
    growth = plan_figure(plan).axes[1]
    dense, kept, wins = growth.lines
    below = np.asarray(kept.get_ydata()) < np.asarray(dense.get_ydata())
    assert below.argmax() == plan.wins_from
    assert below[plan.wins_from :].all()
    assert np.asarray(wins.get_xdata()).tolist() == [np.asarray(dense.get_xdata())[plan.wins_from]] * 2
    assert wins.get_label() == "less memory from 5 resident stacks on"
    assert np.asarray(dense.get_xdata())[[0, 2, -1]].tolist() == [0, 1, 3]
    ends = plan_document(plan)["growth"][-1]
    drawn = [np.asarray(line.get_ydata())[-1] * 1024 for line in (dense, kept)]
    assert drawn == [ends["expanded_bytes"], ends["compressed_bytes"]]


def test_of_many_layers_only_whole_ones_are_drawn() -> None:
    figure = plan_figure(many_stacks(48))
    assert np.asarray(figure.axes[1].lines[0].get_xdata()).tolist() == list(range(49))


def many_stacks(layers: int) -> Plan:
    stacks = [
        Stack(f"layers.{layer}", name, NVFP4, 512, rows, 160, compressed)
        for layer in range(layers)
        for name, rows, compressed in [("gate_proj and up_proj", 1280, 60 << 20), ("down_proj", 640, 31 << 20)]
    ]
    return Plan("../x/y", "NVFP4", 4, stacks, len(stacks), 20 << 30, 24 << 30)


def test_cells_are_the_exceptions_of_the_document(sample: Sample) -> None:
    checkpoint = open_checkpoint(sample("nvfp4-csf-hf"))
    figure = exceptions_figure(layers_and_projections(checkpoint, checkpoint.planes), checkpoint.label)
    sums = by_layer_and_projection(sample("nvfp4-csf-hf"))
    cells = np.asarray(figure.axes[0].collections[0].get_array())
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    layers = sorted({layer for layer, _ in sums})
    want = [[100 * sums[layer, name][2] / sums[layer, name][0] for layer in layers] for name in names]
    assert cells == pytest.approx(np.array(want))


@pytest.mark.slow
@pytest.mark.parametrize("name", [PLANE, "layers.1.ffn.experts.2.w2.scale"])
def test_a_plane_is_drawn_as_the_document_has_it(sample: Sample, name: str) -> None:
    folder = sample("nvfp4-csf-hf" if name == PLANE else "mxfp4-csf-container")
    plane = inspect_plane(choose_planes(open_checkpoint(folder), name)[0])
    figure = plane_figure(plane, str(folder))
    said = document("inspect", folder, name)
    titles = {axes.get_title(): axes for axes in figure.axes}
    every, apart = (axes for axes in figure.axes if axes.get_ylabel() in ("all scales", "exceptions"))
    [image] = titles["scales"].images
    assert np.array_equal(np.asarray(image.get_array()), plane.scales)
    dots = titles[f"its {said['exceptions']} exceptions"].collections
    marks = np.concatenate([np.asarray(some.get_offsets()) for some in dots]).astype(int)
    assert sorted((marks[:, 1] * said["cols"] + marks[:, 0]).tolist()) == sorted(said["exception_positions"])
    assert np.asarray(titles["base of each row"].lines[0].get_xdata()).tolist() == said["bases"]
    assert heights(every) == said["byte_counts"]
    assert sum(heights(apart)) == said["exceptions"]
    assert f"{said['exceptions']} exceptions; a row's window" in figure.get_supxlabel().replace("\n", " ")


def heights(axes: Axes) -> list[float]:
    """The height of the bar of each byte."""
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    found = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in bars}
    return [found.get(byte, 0) for byte in range(256)]


@pytest.mark.slow
def test_ticks_of_bytes_are_whole_and_their_values_stand_above(sample: Sample) -> None:
    [plane] = choose_planes(open_checkpoint(sample("mxfp4-csf-container")), "layers.1.ffn.experts.2.w2.scale")
    said = words(plane_figure(inspect_plane(plane), "x"))
    assert "121 (2⁻⁶)" in said
    assert "UE8M0 value" in said
    assert "121.5" not in said


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("by", GroupBy)
def test_all_texts_of_stats_can_be_read(sample: Sample, name: str, by: GroupBy) -> None:
    assert unreadable(stats_figure(collect_stats(open_checkpoint(sample(name))), by)) == []


@pytest.mark.slow
@pytest.mark.parametrize("csf", [True, False])
@pytest.mark.parametrize("by", GroupBy)
@pytest.mark.parametrize(
    ("prefixes", "projections"),
    [
        ({}, 0),
        ({"model.layers.": 1}, 1),
        ({"model.language_model.layers.": 48}, 3),
        ({"model.layers.": 61, "mtp.layers.": 1}, 6),
        ({"a": 9, "b": 9, "c": 9, "d": 9, "e": 9}, 30),
        ({"layers" * 40: 1000}, 3),
        ({f"{chr(97 + i)}." * 20: 1 for i in range(26)}, 60),
    ],
)
def test_all_texts_of_few_and_many_layers_can_be_read(
    prefixes: dict[str, int], projections: int, by: GroupBy, csf: bool
) -> None:
    stats = made_up(prefixes, projections, csf=csf)
    assert unreadable(stats_figure(stats, by)) == []
    if csf and prefixes:
        assert unreadable(exceptions_figure(stats.by_layer_and_projection, stats.path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("memory", CARDS)
def test_all_texts_of_a_plan_can_be_read(sample: Sample, memory: int | None, tp: int) -> None:
    checkpoint = open_checkpoint(sample("nvfp4-csf-hf"))
    for resident in (None, 1):
        assert unreadable(plan_figure(make_plan(checkpoint, resident, memory, tp))) == []
    assert unreadable(plan_figure(replace(many_stacks(61), gpu_memory=memory, tp=tp, resident=61))) == []


@pytest.mark.slow
def test_all_texts_of_a_plane_can_be_read(sample: Sample) -> None:
    like = inspect_plane(choose_planes(open_checkpoint(sample("nvfp4-csf-hf")), PLANE)[0])
    for plane in (like, *planes(like), replace(like, name="model.$x$." + 40 * "layers.7.")):
        assert unreadable(plane_figure(plane, "../x/y")) == []


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("../x/y", "y"),
        ("x/y/", "y"),
        (".", Path.cwd().name),
        ("x/one.safetensors", "one.safetensors"),
        ("org/name@0123abc", "org/name@0123abc"),
        ("/c/models--org--name/snapshots/0123abc", "org/name@0123abc"),
    ],
)
def test_a_checkpoint_is_called_by_its_name(label: str, name: str) -> None:
    assert name_of(label) == name


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["stats"],
        ["stats", "--by", "layer"],
        ["stats", "--by", "shard"],
        ["plan", "--gpu-memory", "4MiB"],
        ["inspect"],
        ["inspect", "*down_proj"],
        ["inspect", PLANE],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_commands_write_figures_and_say_so(sample: Sample, tmp_path: Path, command: list[str], suffix: str) -> None:
    name, *rest = command
    written = []
    for path in (tmp_path / f"one{suffix}", tmp_path / f"again{suffix}"):
        result = CliRunner().invoke(app, [name, str(sample("nvfp4-csf-hf")), *rest, "--figure", str(path)])
        assert result.exit_code == 0, result.stderr
        assert result.stderr.splitlines() == [f"Wrote {path}"]
        written.append(path.read_bytes())
    assert written[0] == written[1]
    if suffix == ".svg":
        assert ElementTree.fromstring(written[0]).tag.endswith("svg")
    else:
        assert written[0].startswith({".png": b"\x89PNG\r\n", ".pdf": b"%PDF-"}[suffix])


@pytest.mark.slow
def test_quiet_writes_without_a_word(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    result = CliRunner().invoke(app, ["stats", str(sample("nvfp4-csf-hf")), "-q", "--figure", str(path)])
    assert (result.exit_code, result.stderr, path.exists()) == (0, "", True)


@pytest.mark.slow
def test_each_grouping_has_a_figure_of_its_own(sample: Sample, tmp_path: Path) -> None:
    written = set()
    for by in GroupBy:
        path = tmp_path / f"{by}.png"
        arguments = ["stats", str(sample("nvfp4-csf-hf")), "--by", by, "--figure", str(path)]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        written.add(path.read_bytes())
    assert len(written) == len(GroupBy)


@pytest.mark.slow
def test_a_user_s_settings_change_nothing(sample: Sample, tmp_path: Path) -> None:
    import matplotlib

    stats = collect_stats(open_checkpoint(sample("nvfp4-csf-hf")))
    with matplotlib.rc_context():
        save(stats_figure(stats), tmp_path / "plain.svg")
        matplotlib.rcParams.update({"font.size": 20, "axes.facecolor": "red", "svg.hashsalt": None})
        save(stats_figure(stats), tmp_path / "set.svg")
    assert (tmp_path / "plain.svg").read_bytes() == (tmp_path / "set.svg").read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_names_in_any_script_are_drawn_without_a_warning(tmp_path: Path) -> None:
    stats = replace(made_up({"层.": 3}), path="x/模型 $a$ \x1b[31m")
    for by in GroupBy:
        figure = stats_figure(stats, by)
        save(figure, tmp_path / "figure.svg")
        assert "模型 $a$ \\x1b[31m" in figure.get_supxlabel().replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("figure.gif", 2, "ends with .png, .svg or .pdf"), ("nowhere/figure.png", 3, "no file can be made in")],
)
def test_figures_that_cannot_be(sample: Sample, tmp_path: Path, name: str, code: int, said: str) -> None:
    result = CliRunner().invoke(app, ["stats", str(sample("nvfp4-csf-hf")), "--figure", str(tmp_path / name)])
    assert (result.exit_code, said in result.stderr) == (code, True)


def test_a_figure_that_cannot_be_written_is_not_said_to_be(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.mkdir()
    result = CliRunner().invoke(app, ["stats", str(sample("nvfp4-csf-hf")), "--figure", str(path)])
    assert (result.exit_code, "cannot be written" in result.stderr, "Wrote" in result.stderr) == (3, True, False)


@pytest.mark.parametrize(
    ("name", "pattern", "said"), [("mxfp4-dense", None, "name one of them"), ("nvfp4-csf-hf", "no.such", "no plane")]
)
def test_planes_that_cannot_be_drawn(sample: Sample, tmp_path: Path, name: str, pattern: str | None, said: str) -> None:
    arguments = ["inspect", str(sample(name)), *([pattern] if pattern else []), "--figure", str(tmp_path / "x.png")]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, said in result.stderr, "Wrote" in result.stderr) == (2, True, False)


def test_without_matplotlib_it_is_named(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["stats", str(sample("nvfp4-csf-hf")), "--figure", str(tmp_path / "x.png")])
    assert (result.exit_code, "pip install matplotlib" in result.stderr) == (3, True)
