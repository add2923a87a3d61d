"""plan against sizes taken from the tensors themselves, and against the arithmetic of the two strategies."""

import struct
from pathlib import Path

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.documents.plan import plan_document
from csf_tool.errors import UsageError
from csf_tool.look.plan import Plan, make_plan
from csf_tool.report.plan import plan_report
from tests.building import MXFP4, NVFP4, Codec, matrix, mini_dense, write_hf
from tests.building import compressed as csf
from tests.commands import run
from tests.fixture_types import Sample


def moe(root: Path, codec: Codec = NVFP4, rows: int = 64, cols: int = 8) -> Path:
    """A checkpoint of two layers with three experts: gate and up `[rows, cols]`, down `[cols * 8, rows / 8]`."""
    tensors = []
    for layer in range(2):
        for expert in range(3):
            stem = f"model.layers.{layer}.mlp.experts.{expert}"
            for i, name in enumerate(("down_proj", "gate_proj", "up_proj")):
                shape = (cols * 8, rows // 8) if name == "down_proj" else (rows, cols)
                tensors += matrix(f"{stem}.{name}", codec, 10 * expert + i, rows=shape[0], cols=shape[1])
    return write_hf(root, {"model.safetensors": csf(tensors, codec)})


def plan(path: Path, resident: int | None = None, gpu_memory: int | None = None, tp: int = 1) -> Plan:
    return make_plan(open_checkpoint(path), resident, gpu_memory, tp)


def test_stacks_are_those_that_a_layer_decodes_together_in_its_order(tmp_path: Path) -> None:
    found = [(s.layer, s.projection, s.experts, s.rows, s.cols) for s in plan(moe(tmp_path)).stacks]
    assert found == [
        ("model.layers.0", "gate_proj and up_proj", 3, 128, 8),
        ("model.layers.0", "down_proj", 3, 64, 8),
        ("model.layers.1", "gate_proj and up_proj", 3, 128, 8),
        ("model.layers.1", "down_proj", 3, 64, 8),
    ]


@pytest.mark.parametrize(("csf_name", "dense_name"), [
    ("nvfp4-csf-hf", "nvfp4-dense"), ("mxfp4-csf-container", "mxfp4-dense"),
])  # fmt: skip
def test_all_tensors_are_accounted_for(sample: Sample, csf_name: str, dense_name: str) -> None:
    """Expanded, the model's memory is the dense checkpoint's data, read with struct alone."""
    payload = 0
    for path in sample(dense_name).rglob("*.safetensors"):
        (length,) = struct.unpack("<Q", path.read_bytes()[:8])
        payload += path.stat().st_size - 8 - length
    found = plan(sample(csf_name))
    assert found.tensor_bytes + found.dense_bytes == payload


def test_staging_pays_from_the_crossing_on(tmp_path: Path) -> None:
    found = plan(moe(tmp_path))
    dense = [3 * 128 * 8, 3 * 64 * 8] * 2
    kept = [stack.compressed_bytes for stack in found.stacks]
    workspace = [dense[0]] + 3 * [dense[0] + dense[1]]  # both stacks of a layer
    totals = [(sum(dense[:n]), sum(kept[:n]) + workspace[n - 1]) for n in range(1, 5)]
    assert [plan(tmp_path, n).workspace_bytes for n in range(1, 5)] == workspace
    assert found.growth() == [(n, *total) for n, total in enumerate(totals, 1)]
    assert found.wins_from == next((n for n in range(1, 5) if all(k < d for d, k in totals[n - 1 :])), None)
    assert [plan(tmp_path, n).saved_bytes for n in range(1, 5)] == [d - k for d, k in totals]


def test_a_single_stack_never_pays(tmp_path: Path) -> None:
    one = csf(matrix("model.layers.0.mlp.experts.0.gate_proj", NVFP4, 1, rows=64, cols=8), NVFP4)
    assert plan(write_hf(tmp_path, {"model.safetensors": one})).wins_from is None


def test_stacks_are_divided_as_the_format_allows(tmp_path: Path) -> None:
    found = plan(moe(tmp_path), tp=4)
    assert [(s.rows, s.cols, s.divided) for s in found.stacks[:2]] == [(32, 8, True), (64, 2, True)]
    found = plan(tmp_path, tp=8)
    assert [(s.rows, s.cols, s.divided) for s in found.stacks[:2]] == [(128, 8, False), (64, 8, False)]
    assert found.undivided == [
        "down_proj 64x8: 1 columns are not a positive multiple of 2",
        "gate_proj and up_proj 64x8: 8 rows are not a positive multiple of 16",
    ]
    assert plan(tmp_path, tp=3).undivided[0] == "down_proj 64x8: 8 columns are not a multiple of 3"


def test_an_mxfp4_down_projection_may_be_cut_to_odd_columns(tmp_path: Path) -> None:
    found = plan(moe(tmp_path, MXFP4), tp=8)
    assert (found.stacks[1].cols, found.stacks[1].divided) == (1, True)


@pytest.mark.parametrize("codec", [NVFP4, MXFP4], ids=lambda codec: codec.name)
@pytest.mark.parametrize("kept_dense", ["experts.1.", "down_proj", "gate_proj", "1.mlp.experts.2.down_proj"])
def test_planes_that_are_dense_beside_compressed_ones_are_in_their_stacks(
    tmp_path: Path, codec: Codec, kept_dense: str
) -> None:
    """As `load_stack` encodes them. The whole checkpoint compressed says what that takes."""
    stored_dense, whole = [], []
    for layer, number in enumerate((2, 3)):
        for expert in range(number):
            for i, name in enumerate(("down_proj", "gate_proj", "up_proj")):
                stem = f"model.layers.{layer}.mlp.experts.{expert}.{name}"
                tensors = matrix(stem, codec, 10 * expert + i, rows=64, cols=8)
                whole += csf(tensors, codec)
                stored_dense += tensors if kept_dense in stem else csf(tensors, codec)
    want = plan(write_hf(tmp_path / "whole", {"model.safetensors": whole}))
    found = plan(write_hf(tmp_path / "part", {"model.safetensors": stored_dense}))
    assert (found.stacks, found.tensor_bytes) == (want.stacks, want.tensor_bytes)
    assert found.workspace_bytes == want.workspace_bytes == 3 * 3 * 64 * 8


def test_a_layer_without_compressed_planes_has_no_stacks(tmp_path: Path) -> None:
    """Engines leave it as it is."""
    dense, compressed = (
        matrix(f"model.layers.{layer}.mlp.experts.0.down_proj", NVFP4, 1, rows=64, cols=8) for layer in range(2)
    )
    found = plan(write_hf(tmp_path, {"model.safetensors": dense + csf(compressed, NVFP4)}))
    assert [stack.layer for stack in found.stacks] == ["model.layers.1"]
    payload = sum(len(tensor.data) for tensor in dense + compressed)
    assert found.tensor_bytes + found.dense_bytes == payload


def test_what_is_left_of_a_gpu(tmp_path: Path) -> None:
    found = plan(moe(tmp_path), gpu_memory=1_000_000)
    report = plan_document(found)
    used = found.tensor_bytes + found.compressed_bytes + found.workspace_bytes
    assert report["left_bytes"] == {
        "expanded": 1_000_000 - found.tensor_bytes - found.dense_bytes,
        "compressed": 1_000_000 - used,
    }


def test_a_dense_checkpoint_has_nothing_to_keep_compressed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no CSF planes"):
        plan(mini_dense(tmp_path))


def test_more_stacks_than_there_are_cannot_be_resident(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has only 4 stacks, so 5 cannot stay in GPU memory"):
        plan(moe(tmp_path), resident=5)


@pytest.mark.parametrize(
    ("spare", "said"),
    [
        (0, None),
        (-1, "Kept compressed, it fits as it is; decoded when loading, from --tp 2 on."),
        (None, "It fits with no --tp up to 64."),
    ],
)
def test_what_does_not_fit_says_with_how_many_gpus_it_does(sample: Sample, spare: int | None, said: str | None) -> None:
    root = sample("nvfp4-csf-hf")
    all_of_it = plan(root)
    assert all_of_it.saved_bytes > 0
    memory = 1 if spare is None else all_of_it.tensor_bytes + all_of_it.dense_bytes + spare
    lines = [line for line in plan_report(plan(root, gpu_memory=memory)) if isinstance(line, str)]
    assert [line for line in lines if "fits" in line] == ([said] if said else [])


def test_what_is_left_is_never_negative_in_words(sample: Sample) -> None:
    root = sample("nvfp4-csf-hf")
    result = run("plan", root, "--gpu-memory", "1000B")
    assert "-" not in next(line for line in result.stdout.splitlines() if line.startswith("left of "))
    assert (result.exit_code, result.stdout.count(" too much")) == (0, 2)
    found = plan(root, gpu_memory=1000)
    assert plan_document(found)["left_bytes"] == dict(zip(("expanded", "compressed"), found.left_bytes, strict=True))
    assert found.fits_from == (None, None)
    assert max(found.left_bytes) < 0
