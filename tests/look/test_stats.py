"""stats against sums taken from the files by other means."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.documents.stats import stats_document
from csf_tool.look.stats import collect_stats
from tests.commands import run, says
from tests.fixture_types import Copied, Sample


def entries(folder: Path) -> dict[str, tuple[str, list[int], int]]:
    """dtype, shape and bytes of every tensor in a folder, read with nothing but json and struct."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        for name, entry in json.loads(raw[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = entry["dtype"], entry["shape"], end - begin
    return found


@pytest.mark.parametrize(
    ("csf", "dense", "scale"),
    [
        ("nvfp4-csf-hf", "nvfp4-dense", ".weight_scale"),
        ("nvfp4-csf-container", "nvfp4-dense", ".weight_scale"),
        ("mxfp4-csf-container", "mxfp4-dense", ".scale"),
    ],
)
def test_totals_are_those_of_the_files(sample: Sample, csf: str, dense: str, scale: str) -> None:
    stored, expanded = entries(sample(csf)), entries(sample(dense))
    scales = {name: entry for name, entry in expanded.items() if name.endswith(scale)}
    fixed = sum(n for name, (_, _, n) in stored.items() if name.endswith("_csf_fixed"))
    words = sum(n for name, (_, _, n) in stored.items() if name.endswith("_csf_exceptions"))
    report = stats_document(collect_stats(open_checkpoint(sample(csf))))
    assert report["planes"] == len(scales)
    assert report["scales"] == {
        "elements": sum(n for _, _, n in scales.values()),
        "dense_bytes": sum(n for _, _, n in scales.values()),
        "csf_bytes": fixed + words,
        "saved_bytes": sum(n for _, _, n in scales.values()) - fixed - words,
        "fixed_bytes": fixed,
        "exception_bytes": words,
        "exceptions": words // 4,
    }
    assert report["tensor_payload"] == {
        "csf_bytes": sum(n for _, _, n in stored.values()),
        "dense_bytes": sum(n for _, _, n in expanded.values()),
    }


@pytest.mark.parametrize("csf", ["nvfp4-csf-hf", "nvfp4-csf-container", "mxfp4-csf-container"])
@pytest.mark.parametrize("group", ["by_projection", "by_layer", "by_shard"])
def test_groups_add_up_to_the_totals(sample: Sample, csf: str, group: str) -> None:
    report = stats_document(collect_stats(open_checkpoint(sample(csf))))
    document: dict[str, Any] = {**report}
    for key, total in [
        ("planes", report["planes"]),
        ("dense_bytes", report["scales"]["dense_bytes"]),
        ("csf_bytes", report["scales"]["csf_bytes"]),
    ]:
        assert sum(entry[key] for entry in document[group]) == total


def test_groups_are_named_by_projection_layer_and_shard(sample: Sample) -> None:
    report = stats_document(collect_stats(open_checkpoint(sample("nvfp4-csf-hf"))))
    assert [(p["projection"], p["rows"], p["cols"]) for p in report["by_projection"]] == [
        ("down_proj", 384, 24),
        ("gate_proj", 384, 24),
        ("up_proj", 384, 24),
    ]
    assert [entry["layer"] for entry in report["by_layer"]] == [f"model.language_model.layers.{i}" for i in range(3)]
    assert [entry["shard"] for entry in report["by_shard"]] == [
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    ]


@pytest.mark.parametrize(("dense", "planes"), [("nvfp4-dense", 36), ("mxfp4-dense", 24), ("nvfp4-ct-dense", 12)])
def test_a_dense_checkpoint_has_blanks_where_csf_would_save(sample: Sample, dense: str, planes: int) -> None:
    report = stats_document(collect_stats(open_checkpoint(sample(dense))))
    assert (report["planes"], report["dense_planes"]) == (0, planes)
    assert report["scales"]["csf_bytes"] is None
    assert report["tensor_payload"]["csf_bytes"] is None
    assert report["tensor_payload"]["dense_bytes"] == sum(n for _, _, n in entries(sample(dense)).values())
    assert sum(entry["planes"] for entry in report["by_projection"]) == planes
    assert all(entry["csf_bytes"] is None for entry in report["by_projection"])


def test_no_tensor_data_are_read(copied: Copied) -> None:
    """Data replaced by holes change nothing: only the headers were looked at."""
    folder = copied("nvfp4-csf-hf")
    before = stats_document(collect_stats(open_checkpoint(folder)))
    for path in folder.glob("*.safetensors"):
        raw, size = path.read_bytes(), path.stat().st_size
        (length,) = struct.unpack("<Q", raw[:8])
        with open(path, "r+b") as file:
            file.truncate(8 + length)
            file.truncate(size)
    assert stats_document(collect_stats(open_checkpoint(folder))) == before


@pytest.mark.parametrize(
    ("left", "said"), {"*layers.0*": "12 more planes, ", "*layers.0*.0.up*": "1 more plane, "}.items()
)
def test_planes_beside_csf_ones_that_are_stored_dense(sample: Sample, tmp_path: Path, left: str, said: str) -> None:
    run("compress", sample("nvfp4-dense"), tmp_path / "out", "--to", "container", "--exclude", left)
    says(run("stats", tmp_path / "out"), f"\n{said}", " stored dense.\n")
