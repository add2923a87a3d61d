"""inspect against counts taken from the dense scales by other means."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.cli import app
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.codec.values import scale_values
from csf_tool.errors import UsageError
from csf_tool.look.inspection import Inspected, choose_planes, inspect_plane
from tests import building
from tests.building import mini_hf, write_hf
from tests.fixture_types import Sample

GATE = "model.language_model.layers.1.mlp.experts.2.gate_proj"


@pytest.mark.parametrize(
    ("fmt", "dtype"), [(NVFP4, torch.float8_e4m3fn), (MXFP4, torch.float8_e8m0fnu)], ids=["nvfp4", "mxfp4"]
)
def test_values_are_those_of_torch(fmt: CsfFormat, dtype: torch.dtype) -> None:
    torchs = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype).to(torch.float64).numpy()
    assert np.array_equal(scale_values(fmt), torchs, equal_nan=True)


def look(path: Path, pattern: str) -> Inspected:
    (plane,) = choose_planes(open_checkpoint(path), pattern)
    return inspect_plane(plane)


def dense_scale(path: Path, name: str) -> np.ndarray:
    for shard in path.glob("*.safetensors"):
        tensors = load_file(shard)
        if name in tensors:
            return tensors[name].view(torch.uint8).numpy()
    raise KeyError(name)


def lowest_best_base(row: list[int]) -> int:
    covered = [sum(base <= value < base + 16 for value in row) for base in range(241)]
    return covered.index(max(covered))


@pytest.mark.parametrize("stored", ["nvfp4-csf-hf", "nvfp4-csf-container", "nvfp4-dense"])
def test_everything_said_of_a_plane_follows_from_its_dense_scales(sample: Sample, stored: str) -> None:
    scales = dense_scale(sample("nvfp4-dense"), f"{GATE}.weight_scale").astype(int)
    found = look(sample(stored), f"{GATE}.weight_scale")
    assert found.scales.tolist() == scales.tolist()
    window = [lowest_best_base(row) for row in scales.tolist()]
    assert found.bases.tolist() == window
    strays = [
        (row, col, value - base if value < base else value - base - 15)
        for row, base in enumerate(window)
        for col, value in enumerate(scales[row])
        if not base <= value < base + 16
    ]
    assert [(p // 24, p % 24) for p in found.positions] == [(row, col) for row, col, _ in strays]
    assert found.distances.tolist() == [distance for _, _, distance in strays]
    assert found.row_exceptions.tolist() == [[row for row, _, _ in strays].count(row) for row in range(384)]
    assert found.col_exceptions.tolist() == [[col for _, col, _ in strays].count(col) for col in range(24)]
    inside = Counter(int(v) - b for row, b in zip(scales, window, strict=True) for v in row if b <= v < b + 16)
    assert found.code_counts.tolist() == [inside[code] for code in range(16)]
    assert (found.csf_bytes, found.is_dense) == (24 * 208 + 4 * len(strays), stored == "nvfp4-dense")


def test_entropy_is_that_of_single_scales(tmp_path: Path) -> None:
    scale = building.Tensor("a.experts.0.up_proj.weight_scale", "F8_E4M3", (16, 8), bytes([56, 57, 58, 58] * 32))
    weight = building.Tensor("a.experts.0.up_proj.weight", "U8", (16, 64), bytes(16 * 64))
    found = look(write_hf(tmp_path, {"model.safetensors": [weight, scale]}), "*up_proj*")
    assert found.entropy_bytes == pytest.approx(1.5 * 128 / 8)


@pytest.mark.parametrize(
    "pattern",
    [
        f"{GATE}.weight_scale",
        f"{GATE}.weight",
        f"{GATE}.weight_scale.nvfp4_csf_fixed",
        GATE,
        "*.layers.1.*.2.gate_proj",
    ],
)
def test_a_plane_is_found_by_any_of_its_names(sample: Sample, pattern: str) -> None:
    assert [p.name for p in choose_planes(open_checkpoint(sample("nvfp4-csf-hf")), pattern)] == [f"{GATE}.weight_scale"]


def test_a_name_that_means_nothing_is_refused_with_an_example(sample: Sample) -> None:
    with pytest.raises(UsageError, match=r"no plane is called 'nothing'; one of them is 'model\.language_model"):
        choose_planes(open_checkpoint(sample("nvfp4-csf-hf")), "nothing")


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["inspect", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_ranked_planes_come_by_their_exceptions(sample: Sample) -> None:
    code, out, _ = run(str(sample("nvfp4-csf-hf")), "--json")
    planes = json.loads(out)["planes"]
    shares = [p["exceptions"] / p["dense_bytes"] for p in planes]
    assert (code, len(planes)) == (0, 36)
    assert shares == sorted(shares, reverse=True)


def test_planes_that_grew_are_counted(tmp_path: Path) -> None:
    """Scales of two far values a row by turns: half of them are exceptions, at four bytes each."""
    scale = building.Tensor("m.0.experts.0.up_proj.weight_scale", "F8_E4M3", (16, 8), bytes([8, 120] * 64))
    pair = building.streams(scale, building.NVFP4)
    weight = building.Tensor("m.0.experts.0.up_proj.weight", "U8", (16, 64), bytes(16 * 64))
    other = building.compressed(building.matrix("m.0.experts.1.up_proj", building.NVFP4, 1), building.NVFP4)
    write_hf(tmp_path, {"model.safetensors": [weight, *pair, *other]})
    assert "2 planes; 1 plane larger than dense." in run(str(tmp_path))[1]


def test_broken_streams_are_named(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    shard = next(root.glob("*00001*.safetensors"))
    plane = open_checkpoint(root).planes[0]
    raw = bytearray(shard.read_bytes())
    raw[plane.fixed.tensor.begin] = 250
    shard.write_bytes(raw)
    code, _, err = run(str(root), plane.name)
    assert (code, plane.name in err) == (1, True)


def test_nothing_to_inspect(tmp_path: Path) -> None:
    root = write_hf(tmp_path, {"model.safetensors": [building.Tensor("norm", "F32", (1,), bytes(4))]})
    assert run(str(root))[0] == 2


def test_the_document_has_what_the_report_has(sample: Sample) -> None:
    """The corner that --values prints, and the numbers that are worked out for people."""
    scales = load_file(sample("nvfp4-dense") / "model-00002-of-00003.safetensors")[f"{GATE}.weight_scale"]
    document = json.loads(run(str(sample("nvfp4-csf-hf")), GATE, "--json")[1])
    assert document["corner"] == scales[:16, :8].double().tolist()
    values = scales.double()
    assert [document["values"][name] for name in ("lowest", "highest")] == [values.min(), values.max()]
    ranked = json.loads(run(str(sample("nvfp4-csf-hf")), "--json")[1])
    assert ranked["larger_than_dense"] == 0
    assert all(p["saved_bytes"] == p["dense_bytes"] - p["csf_bytes"] > 0 for p in ranked["planes"])


def test_what_is_not_a_number_is_null(tmp_path: Path) -> None:
    scale = building.Tensor("a.experts.0.up_proj.weight_scale", "F8_E4M3", (16, 8), bytes([0x7F, 0x80, 0, 0xB8] * 32))
    weight = building.Tensor("a.experts.0.up_proj.weight", "U8", (16, 64), bytes(16 * 64))
    write_hf(tmp_path, {"model.safetensors": [weight, scale]})
    document = json.loads(run(str(tmp_path), "*up_proj*", "--json")[1], parse_constant=pytest.fail)
    assert document["corner"][0][:4] == [None, 0, 0, -1]
    assert document["values"] == {"lowest": -1, "median": 0, "highest": 0, "zero": 64, "negative": 32, "NaN": 32}


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.mlp.experts.1.gate_proj",
        "language_model.layers.0.mlp.experts.1.gate_proj.weight_scale",
        "layers.0.mlp.experts.1.gate_proj.weight",
        "0.mlp.experts.1.gate_proj",
    ],
)
@pytest.mark.parametrize("sample_name", ["nvfp4-csf-hf", "nvfp4-dense", "nvfp4-csf-container"])
def test_the_end_of_a_name_that_one_plane_has(sample: Sample, sample_name: str, name: str) -> None:
    [plane] = choose_planes(open_checkpoint(sample(sample_name)), name)
    assert plane.name == "model.language_model.layers.0.mlp.experts.1.gate_proj.weight_scale"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gate_proj", r"12 planes end with 'gate_proj', for example 'model.*': give a longer name, or '\*\.gate_proj'"),
        ("layers.0", r"no plane is called 'layers.0'; did you mean '\*layers.0\*'\?"),
        ("*layers.0.mlp", r"did you mean '\*layers.0.mlp\*'\?"),
        ("model.languge_model.layers.0.mlp.experts.1.gate_proj", r"did you mean 'model.language_model.layers.0.mlp."),
    ],
)
def test_names_that_mean_no_plane_are_mended(sample: Sample, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        choose_planes(open_checkpoint(sample("nvfp4-csf-hf")), name)
