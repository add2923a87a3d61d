"""Experts are told by the modules beside them, in whatever order and depth their names have."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from csf_tool.checkpoint.experts import Expert, Experts
from csf_tool.checkpoint.open import open_checkpoint
from tests.building import NVFP4, Tensor, matrix, write_hf
from tests.commands import run

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def found(tmp_path: Path, modules: Iterable[str], others: Iterable[Tensor] = ()) -> Experts:
    tensors = [t for i, module in enumerate(modules) for t in matrix(module, NVFP4, i)]
    return open_checkpoint(write_hf(tmp_path, {"model.safetensors": [*tensors, *others]}, index=False)).experts


@pytest.mark.parametrize(
    ("pattern", "group"),
    [
        ("model.layers.{0}.mlp.experts.{1}.{2}", "model.layers.{0}.mlp.experts"),
        ("model.layers.{0}.block_sparse_moe.experts.{1}.{2}", "model.layers.{0}.block_sparse_moe.experts"),
        ("model.layers.{0}.mlp.expert_{1}.{2}", "model.layers.{0}.mlp"),
        ("model.layers.{0}.mlp.expert{1}.{2}", "model.layers.{0}.mlp"),
        ("layers.{0}.ffn.experts_{1}.{2}", "layers.{0}.ffn"),
        ("layers.{0}.ffn.experts-{1}.{2}", "layers.{0}.ffn"),
        ("layers.{0}.moe.{2}.{1}", "layers.{0}.moe"),
        ("layers.{0}.moe.{2}_{1}", "layers.{0}.moe"),
        ("layers.{0}.moe.{1}.{2}", "layers.{0}.moe"),
        ("layers.{0}.moe.{1}.ffn.{2}", "layers.{0}.moe"),
        ("layers.{0}.moe.switch.{1}.{2}", "layers.{0}.moe.switch"),
        ("layers.{0}.mlp.experts.{2}.{1}", "layers.{0}.mlp.experts"),
        ("layers.{0}.mlp.experts.{2}_{1}", "layers.{0}.mlp.experts"),
        ("layers.{0}.mlp.{2}.expert_{1}", "layers.{0}.mlp"),
        ("layers.{0}.mlp.expert_{1}_{2}", "layers.{0}.mlp"),
        ("layers.{0}.ffn.experts.{1}.mlp.{2}", "layers.{0}.ffn.experts"),
        ("expert_{1}.layers.{0}.mlp.{2}", "expert_*.layers.{0}.mlp"),
        ("experts.{1}.layers.{0}.{2}", "experts.*.layers.{0}"),
        ("layers_{0}.moe.{1}.{2}", "layers_{0}.moe"),
        ("{0}.moe.{1}.{2}", "{0}.moe"),
        ("mtp.1.layers.{0}.moe.{1}.{2}", "mtp.1.layers.{0}.moe"),
    ],
)
def test_experts_in_any_order_and_depth(pattern: str, group: str, tmp_path: Path) -> None:
    names = {(layer, e, p): pattern.format(layer, e, p) for layer in range(2) for e in range(3) for p in PROJECTIONS}
    norms = [Tensor(f"layers.{layer}.norm.weight", "BF16", (5,), bytes(10)) for layer in range(2)]
    experts = found(tmp_path, names.values(), norms)
    assert {module: experts.of(module) for module in names.values()} == {
        module: Expert(group.format(layer), expert, projection) for (layer, expert, projection), module in names.items()
    }
    for suffix in ("weight", "weight_scale", "weight_scale.nvfp4_csf_fixed"):
        assert experts.group_of(f"{names[1, 2, 'up_proj']}.{suffix}") == group.format(1)


@pytest.mark.parametrize("pattern", ["moe.{2}.{1}", "mlp.expert_{1}.{2}", "moe.{1}.{2}", "mlp.experts.{2}.{1}"])
def test_experts_of_the_only_layer(pattern: str, tmp_path: Path) -> None:
    experts = found(tmp_path, [pattern.format(0, e, p) for e in range(4) for p in PROJECTIONS])
    place = experts.of(pattern.format(0, 3, "up_proj"))
    assert place == Expert(pattern.split(".{")[0].removesuffix(".expert_{1}").removesuffix(".expert_"), 3, "up_proj")


@pytest.mark.parametrize(
    "pattern",
    [
        "model.layers.{1}.mlp.{2}",
        "model.layers.{0}.self_attn.heads.{1}.{2}",
        "model.layers.{0}.attn.{1}.{2}",
        "model.layers.{0}.mlp.shared_expert.{2}",
        "model.layers.{0}.mlp.shared_experts.{1}.{2}",
        "model.layers.{0}.mlp.shared.{1}.{2}",
        "model.stages.{0}.blocks.{1}.mlp.{2}",
        "transformer.h.{1}.mlp.{2}",
        "stack.{0}.part.{1}.{2}",  # each has a norm
        "part.{1}.{2}",
        "model.layers.{0}.mlp.w{1}",
        "model.layers.{0}.mlp.{1}",  # layers of one matrix each
    ],
)
def test_what_else_is_alike_in_many_copies_is_no_expert(pattern: str, tmp_path: Path) -> None:
    modules = dict.fromkeys(pattern.format(layer, e, p) for layer in range(2) for e in range(6) for p in PROJECTIONS)
    norms = [
        Tensor(f"stack.{layer}.part.{e}.norm.weight", "BF16", (5,), bytes(10)) for layer in range(2) for e in range(6)
    ]
    norms += [Tensor(f"part.{e}.norm.weight", "BF16", (5,), bytes(10)) for e in range(6)]
    experts = found(tmp_path, modules, norms)
    assert [module for module in modules if experts.of(module)] == []


@pytest.mark.parametrize(
    "pattern",
    ["model.layers.{0}.mlp.expert_{1}.{2}", "model.layers.{0}.moe.{2}.{1}", "model.layers.{0}.mlp.experts.{2}.{1}"],
)
def test_every_command_takes_them_as_experts(pattern: str, tmp_path: Path) -> None:
    names = [pattern.format(layer, e, p) for layer in range(2) for e in range(4) for p in PROJECTIONS]
    tensors = [t for i, name in enumerate(names) for t in matrix(name, NVFP4, i)]
    shared = matrix("model.layers.0.mlp.shared_expert.up_proj", NVFP4, 99)
    dense = write_hf(tmp_path / "dense", {"model.safetensors": [*tensors, *shared]}, config={"model_type": "mini"})
    by = json.loads(run("stats", dense, "--json").stdout)["by_projection"]
    assert [(row["projection"], row["planes"]) for row in by] == [("down_proj", 8), ("gate_proj", 8), ("up_proj", 9)]
    done = run("compress", dense, tmp_path / "csf", "--keep-larger", "--json")
    assert [entry["reason"] for entry in json.loads(done.stdout)["left_dense"]] == ["not the scale of a routed expert"]
    plan = json.loads(run("plan", tmp_path / "csf", "--json").stdout)
    assert {(stack["layer"], stack["experts"]) for stack in plan["stacks"]} == {
        (f"model.layers.{i}", 4) for i in (0, 1)
    }
    assert len(plan["stacks"]) == 4
    lost = [t for t in tensors if t.name not in (f"{names[3]}.weight_scale", f"{names[6]}.weight_scale")]
    said = [p for p in open_checkpoint(write_hf(tmp_path / "lost", {"model.safetensors": lost})).problems if p.tensor]
    assert [p.tensor for p in said] == [f"{name}.weight" for name in sorted((names[3], names[6]))]


def test_a_stack_is_loaded_by_its_layer(tmp_path: Path) -> None:
    stacks = pytest.importorskip("csf_tool.loading.stacks")
    names = [f"layers.{layer}.moe.{p}.{e}" for layer in range(2) for p in ("gate", "up", "down") for e in range(4)]
    tensors = [t for i, name in enumerate(names) for t in matrix(name, NVFP4, i)]
    root = write_hf(tmp_path, {"model.safetensors": tensors}, index=False)
    streams = stacks.read_stack(root, 1, "up", device="cpu")
    assert (streams.experts, streams.rows, streams.cols) == (4, 16, 4)
