"""load_stack: a layer's projection for one rank decodes to the same cut of the dense tensors."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from csf_tool import CsfScales, ScaleWorkspace, decompress_csf_scales
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.errors import CheckpointError, StreamError, UsageError
from csf_tool.gpu.decode import DecodeTables
from csf_tool.gpu.slicing import RowStreams
from csf_tool.loading.stacks import load_stack
from csf_tool.look.plan import make_plan
from tests.building import MXFP4, NVFP4, Codec, Tensor, compressed, matrix, mini_container, mini_hf, write_hf
from tests.gpu.stacks import DEVICE, Bytes

PROJECTIONS = {"gate": ("gate_proj", "w1"), "up": ("up_proj", "w3"), "down": ("down_proj", "w2")}
EXPERTS = 3
GATE, DOWN = (64, 8), (32, 32)
"""Rows and columns of the planes."""


ask: Callable[..., CsfScales] = load_stack
"""For requests that no type checker would let pass, and for arguments by name in a dict."""


def layer_tensors(prefix: str, codec: Codec) -> list[Tensor]:
    """The experts of a layer, the last first: their numbers count, not their places."""
    names = [PROJECTIONS[p][codec is MXFP4] for p in ("gate", "up", "down")]
    tensors: list[Tensor] = []
    for expert in reversed(range(EXPERTS)):
        for i, name in enumerate(names):
            rows, cols = DOWN if i == 2 else GATE
            tensors += matrix(f"{prefix}.experts.{expert}.{name}", codec, 10 * expert + i, rows=rows, cols=cols)
    return tensors


def dense(tensors: list[Tensor], projection: str) -> Bytes:
    """The dense scales of a projection, `[experts, rows, cols]`."""
    planes = {}
    for tensor in tensors:
        module, _, last = tensor.name.rpartition(".")
        if last in ("weight_scale", "scale") and module.rpartition(".")[2] in PROJECTIONS[projection]:
            expert = int(module.split(".experts.")[1].split(".")[0])
            planes[expert] = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape)
    return np.stack([planes[expert] for expert in range(EXPERTS)])


def decoded(stack: CsfScales) -> Bytes:
    return decompress_csf_scales(stack).view(torch.uint8).cpu().numpy()


@pytest.fixture(params=[NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[Tensor]]:
    """A checkpoint of one layer, in the layout of its format, and its dense tensors."""
    codec = request.param
    tensors = layer_tensors("model.layers.3.mlp", codec)
    if codec is NVFP4:
        return write_hf(tmp_path / "hf", {"a.safetensors": compressed(tensors, codec)}), tensors
    return mini_container(tmp_path / "container", codec, content={"a.safetensors": tensors}), tensors


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_have_rows_of_gate_and_up_and_columns_of_down(written: tuple[Path, list[Tensor]], size: int) -> None:
    root, tensors = written
    checkpoint = open_checkpoint(root)
    for rank in range(size):
        gate = load_stack(checkpoint, 3, "gate", device=DEVICE, tp_rank=rank, tp_size=size)
        assert (gate.experts, gate.rows, gate.cols) == (EXPERTS, GATE[0] // size, GATE[1])
        assert np.array_equal(decoded(gate), np.split(dense(tensors, "gate"), size, axis=1)[rank])
        down = load_stack(checkpoint, 3, "down", device=DEVICE, tp_rank=rank, tp_size=size)
        assert np.array_equal(decoded(down), np.split(dense(tensors, "down"), size, axis=2)[rank])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4])
def test_gate_and_up_in_one_stack(written: tuple[Path, list[Tensor]], size: int) -> None:
    root, tensors = written
    rank = size - 1
    gate, up = (np.split(dense(tensors, p), size, axis=1)[rank] for p in ("gate", "up"))
    on = {"device": DEVICE, "tp_rank": rank, "tp_size": size}
    assert np.array_equal(decoded(ask(root, 3, "gate_up", **on)), np.concatenate([gate, up], 1))
    other = ask(root, 3, "gate_up", **on, order=("up", "gate"))
    assert np.array_equal(decoded(other), np.concatenate([up, gate], 1))
    turns = decoded(ask(root, 3, "gate_up", **on, interleave=True))
    assert np.array_equal(turns[:, 0::2], gate)
    assert np.array_equal(turns[:, 1::2], up)


def test_a_stack_is_prepared_once_and_whole_ones_are_not_taken_apart(
    written: tuple[Path, list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: dict[str, int] = {"tables": 0, "rows": 0}

    def counting(what: str, make: Callable[..., object]) -> Callable[..., object]:
        def count(*args: object, **options: object) -> object:
            counted[what] += 1
            return make(*args, **options)

        return count

    monkeypatch.setattr(DecodeTables, "of", counting("tables", DecodeTables.of))
    monkeypatch.setattr(RowStreams, "of", counting("rows", RowStreams.of))
    ask(written[0], 3, "down", device=DEVICE)
    assert counted == {"tables": 1, "rows": 0}
    ask(written[0], 3, "gate_up", device=DEVICE, tp_size=2)
    assert counted == {"tables": 2, "rows": 2}


@pytest.mark.slow
def test_a_workspace_for_the_stacks_of_a_layer(written: tuple[Path, list[Tensor]]) -> None:
    root, tensors = written
    stacks = {p: ask(root, 3, p, device=DEVICE) for p in PROJECTIONS}
    workspace = ScaleWorkspace(*stacks.values())
    for projection, stack in stacks.items():
        got = workspace.decompress(stack).view(torch.uint8).cpu().numpy()
        assert np.array_equal(got, dense(tensors, projection))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_plan_knows_what_the_stacks_take(tmp_path: Path, size: int) -> None:
    """To the byte, for ranks whose exceptions are as many: here the first has half of each plane's four."""
    tensors: list[Tensor] = []
    for expert in range(2):
        for i, name in enumerate(("gate_proj", "up_proj", "down_proj")):
            tensors += matrix(f"layers.0.experts.{expert}.{name}", NVFP4, i, rows=128, cols=64)
    for i, tensor in enumerate(tensors):
        if tensor.name.endswith("weight_scale"):
            tensors[i] = Tensor(tensor.name, tensor.dtype, tensor.shape, corners(tensor.shape))
    root = write_hf(tmp_path / "csf", {"a.safetensors": compressed(tensors, NVFP4)})
    plan = make_plan(open_checkpoint(root), tp=size)
    stacks = [ask(root, 0, p, device=DEVICE, tp_size=size) for p in ("gate_up", "down")]
    assert [stack.nbytes for stack in stacks] == [stack.compressed_bytes for stack in plan.stacks]
    both = sum(ScaleWorkspace(stack).nbytes for stack in stacks)  # as engines need them whose experts run in one call
    assert both == plan.workspace_bytes


def corners(shape: tuple[int, ...]) -> bytes:
    """Scales that are all alike but for an exception in each corner."""
    plane = np.full(shape, 80, np.uint8)
    plane[:: shape[0] - 1, :: shape[1] - 1] = 200
    return plane.tobytes()


@pytest.mark.parametrize("layer", [0, "model.layers.0", "model.layers.0.mlp.experts"])
def test_layers_by_number_and_by_name(tmp_path: Path, layer: int | str) -> None:
    assert load_stack(mini_hf(tmp_path / "csf"), layer, "up", device=DEVICE).experts == 1


def test_a_number_that_several_modules_count_needs_a_name(tmp_path: Path) -> None:
    both = [*layer_tensors("model.layers.0.mlp", NVFP4), *layer_tensors("mtp.layers.0.mlp", NVFP4)]
    root = write_hf(tmp_path / "csf", {"a.safetensors": compressed(both, NVFP4)})
    with pytest.raises(UsageError, match=r"0 may mean model.layers.0.mlp.experts, mtp.layers.0.mlp.experts|mtp.*model"):
        load_stack(root, 0, "gate", device=DEVICE)
    assert load_stack(root, "mtp.layers.0", "gate", device=DEVICE).experts == EXPERTS


@pytest.mark.parametrize(
    ("layer", "projection", "how", "said"),
    [
        (7, "gate", {}, "has no block scales of experts in layer 7"),
        (3, "q", {}, "projection 'q': give gate, up, down or gate_up"),
        (3, "gate_up", {"order": ("gate", "gate")}, "order"),
        (3, "gate", {"tp_rank": 2, "tp_size": 2}, "tp_rank 2 of tp_size 2: give a rank from 0 to tp_size - 1"),
        (3, "gate", {"tp_rank": -1}, "give a rank from 0 to tp_size - 1"),
        (
            3,
            "gate",
            {"tp_size": 3},
            "NVFP4 64x8 planes of gate_proj cannot be divided: 64 rows are not a multiple of 3",
        ),
        (3, "gate", {"tp_size": 8}, "8 rows are not a positive multiple of 16"),
        (3, "down", {"tp_size": 32}, "1 columns are not a positive multiple of 2"),
        (3, "gate", {"device": "tpu9000"}, "torch knows no such device"),
        (3, "gate", {"device": "meta"}, "device meta: has no memory"),
        (3, "gate_up", {"device": "meta", "tp_size": 2}, "device meta: has no memory"),
    ],
)
def test_requests_that_cannot_be_right(
    tmp_path: Path, layer: int, projection: str, how: dict[str, object], said: str
) -> None:
    tensors = layer_tensors("model.layers.3.mlp", NVFP4)
    root = write_hf(tmp_path / "csf", {"a.safetensors": compressed(tensors, NVFP4)})
    with pytest.raises(UsageError, match=said):
        ask(root, layer, projection, **{"device": DEVICE, **how})


def test_experts_that_are_missing_or_unlike(tmp_path: Path) -> None:
    tensors = compressed(layer_tensors("model.layers.3.mlp", NVFP4), NVFP4)
    fewer = [t for t in tensors if "experts.1.gate_proj" not in t.name]
    root = write_hf(tmp_path / "fewer", {"a.safetensors": fewer})
    with pytest.raises(
        CheckpointError, match="layer 3, gate: 1 of 3 experts has no block scales, for example expert 1"
    ):
        load_stack(root, 3, "gate", device=DEVICE)
    assert load_stack(root, 3, "up", device=DEVICE).experts == EXPERTS
    other = compressed(matrix("model.layers.3.mlp.experts.1.gate_proj", NVFP4, 1, rows=32, cols=8), NVFP4)
    root = write_hf(tmp_path / "unlike", {"a.safetensors": fewer + other})
    with pytest.raises(
        CheckpointError, match=r"experts\.1\.gate_proj.weight_scale is NVFP4 32x8, .* 64x8: they cannot form a stack"
    ):
        load_stack(root, 3, "gate", device=DEVICE)


def test_gate_and_up_that_do_not_go_together(tmp_path: Path) -> None:
    tensors = [*matrix("m.0.mlp.experts.0.gate_proj", NVFP4, 1), *matrix("m.0.mlp.experts.0.up_proj", NVFP4, 2, cols=6)]
    root = write_hf(tmp_path / "csf", {"a.safetensors": compressed(tensors, NVFP4)})
    with pytest.raises(CheckpointError, match=r"layer 0: gate_up: .* of 16x6 cannot be joined to .* of 16x4"):
        load_stack(root, 0, "gate_up", device=DEVICE)


@pytest.mark.parametrize("dense_experts", [[1], [0, 1, 2]])
def test_planes_that_are_stored_dense_are_encoded(tmp_path: Path, dense_experts: list[int]) -> None:
    """compress leaves planes dense that would grow, and a checkpoint may be dense altogether."""
    tensors = layer_tensors("model.layers.3.mlp", NVFP4)
    left = [t for t in tensors if any(f".experts.{e}." in t.name for e in dense_experts)]
    stored = compressed([t for t in tensors if t not in left], NVFP4) + left
    root = write_hf(tmp_path / "csf", {"a.safetensors": stored})
    stack = load_stack(root, 3, "gate_up", device=DEVICE, tp_rank=1, tp_size=2)
    want = np.concatenate([np.split(dense(tensors, p), 2, axis=1)[1] for p in ("gate", "up")], 1)
    assert np.array_equal(decoded(stack), want)


def test_broken_streams_of_the_part_that_is_cut_away_are_refused_too(written: tuple[Path, list[Tensor]]) -> None:
    root, _ = written
    plane = next(p for p in open_checkpoint(root).planes if ".1." in p.name and p.exception_count > 1)
    with open(plane.exceptions.shard.path, "r+b") as file:
        file.seek(plane.exceptions.tensor.end - 4)
        file.write(b"\x00\xff\xff\x00")  # a position past the plane
    projection = next(p for p, names in PROJECTIONS.items() if plane.name.split(".")[-2] in names)
    with pytest.raises(StreamError, match=f"{plane.name}: exception .* is outside the plane"):
        ask(root, 3, projection, device=DEVICE, tp_rank=0, tp_size=2)
