"""A layer whose scales are kept compressed, beside an engine's layer that is made of nothing but parameters."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import csf_tool
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.codec import tiles
from csf_tool.engines.expert_groups import ExpertGroup, expert_groups
from csf_tool.engines.kept_layer import SCALES, KeptLayer
from csf_tool.engines.layer_workspace import LayerWorkspace
from csf_tool.errors import StreamError
from tests.building import MXFP4, NVFP4, Codec, Tensor, compressed, matrix, overwrite, write_hf

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERTS, WIDTH, HIDDEN = 4, 32, 16
"""Experts, rows of gate and up, rows of down."""

Process = Callable[[torch.Tensor], torch.Tensor]


def stem(layer: int, expert: int) -> str:
    return f"model.layers.{layer}.mlp.experts.{expert}"


def tensors(codec: Codec, layers: int, keep: Callable[[str], bool], width: int = WIDTH) -> list[Tensor]:
    """The matrices of layers of experts, compressed where `keep` says so of the module."""
    found: list[Tensor] = []
    for layer in range(layers):
        for expert in range(EXPERTS):
            for i, name in enumerate(("down_proj", "gate_proj", "up_proj")):
                rows, cols = (HIDDEN, 4) if name == "down_proj" else (width * (layer + 1), 8)
                module = f"{stem(layer, expert)}.{name}"
                one = matrix(module, codec, 100 * layer + 10 * expert + i, rows=rows, cols=cols)
                found += compressed(one, codec) if keep(module) else one
    return found


def groups(
    root: Path, codec: Codec = NVFP4, layers: int = 1, keep: Callable[[str], bool] = lambda _: True
) -> list[ExpertGroup]:
    folder = write_hf(root, {"model.safetensors": tensors(codec, layers, keep)})
    return list(expert_groups(open_checkpoint(folder)).values())


def dense(group: ExpertGroup) -> list[torch.Tensor]:
    """The scales that vLLM would have loaded, by csf_tool's mode for loading."""
    scales = dict(csf_tool.iter_tensors(group.part.path, device="cpu"))
    kind = "weight_scale" if f"{group.name}.0.down_proj.weight_scale" in scales else "scale"

    def of(projection: str) -> torch.Tensor:
        planes = [scales[f"{group.name}.{e}.{projection}.{kind}"] for e in range(EXPERTS)]
        return torch.stack([plane.view(torch.uint8) for plane in planes])

    return [torch.cat([of("gate_proj"), of("up_proj")], 1), of("down_proj")]


def layer_for(group: ExpertGroup, dtype: torch.dtype = torch.float8_e4m3fn) -> Any:
    shapes = group.shapes()
    return SimpleNamespace(**{
        name: torch.nn.Parameter(torch.zeros(shape, dtype=torch.uint8, device=DEVICE).view(dtype), requires_grad=False)
        for name, shape in zip(SCALES, shapes, strict=True)
    })  # fmt: skip


def raw(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.detach().view(torch.uint8).cpu()


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """Planes in the 128x4 layout, written from its definition."""
    rows, cols = tiles.padded_shape(*scales.shape[1:])
    padded = torch.zeros(len(scales), rows, cols, dtype=torch.uint8, device=scales.device)
    padded[:, : scales.shape[1], : scales.shape[2]] = scales
    tiled = padded.view(len(scales), rows // 128, 4, 32, cols // 4, 4).permute(0, 1, 4, 3, 2, 5)
    return tiled.reshape(len(scales), rows, cols)


def up_first(scales: torch.Tensor) -> torch.Tensor:
    gate, up = scales.chunk(2, 1)
    return torch.cat([up, gate], 1) if scales.shape[2] == 8 else scales


def same(scales: torch.Tensor) -> torch.Tensor:
    return scales


PROCESSES = {
    "as they are": same,
    "128x4": swizzled,
    "up first": up_first,
    "128x4, up first": lambda scales: swizzled(up_first(scales)),
}


def processed(layer: Any, process: Process) -> list[torch.Tensor]:
    """Have an engine process a layer's scales, and give what its kernel wants."""
    for name in SCALES:
        parameter = getattr(layer, name)
        new = process(parameter.data.view(torch.uint8)).view(parameter.dtype)
        setattr(layer, name, torch.nn.Parameter(new, requires_grad=False))
    return [raw(getattr(layer, name)).clone() for name in SCALES]


@pytest.mark.parametrize("codec", [NVFP4, MXFP4], ids=lambda codec: codec.name)
@pytest.mark.parametrize("process", PROCESSES)
def test_scales_are_decoded_as_the_engine_processed_them(tmp_path: Path, codec: Codec, process: str) -> None:
    (group,) = groups(tmp_path, codec)
    dtype = torch.float8_e4m3fn if codec is NVFP4 else torch.uint8
    workspace, layer = LayerWorkspace(DEVICE), layer_for(group, dtype)
    kept = KeptLayer(group, workspace, padded="128x4" in process)
    assert kept.lay(layer) is None
    kept.fill(layer)
    for name, expected in zip(SCALES, dense(group), strict=True):
        assert torch.equal(raw(getattr(layer, name)), expected)
    wanted = processed(layer, PROCESSES[process])
    assert kept.settle(layer) is None
    assert kept.finish(layer)
    assert all(workspace.holds(getattr(layer, name)) for name in SCALES)
    assert all(getattr(layer, name).dtype == dtype for name in SCALES)
    workspace.buffer.fill_(0xA5)
    kept.decode()
    for name, expected in zip(SCALES, wanted, strict=True):
        assert torch.equal(raw(getattr(layer, name)), expected)
    assert kept.nbytes > 0


def test_only_the_chosen_experts_are_decoded_where_that_is_less_work(tmp_path: Path) -> None:
    (group,) = groups(tmp_path)
    workspace, layer = LayerWorkspace(DEVICE), layer_for(group)
    kept = ready(group, workspace, layer)
    workspace.buffer.fill_(0xA5)
    for dtype in (torch.int32, torch.int64, torch.uint32):  # engines have all three
        workspace.buffer.fill_(0xA5)
        kept.decode(torch.tensor([[2], [-1], [0]], dtype=torch.int32, device=DEVICE).to(dtype))
        for name, expected in zip(SCALES, dense(group), strict=True):
            found = raw(getattr(layer, name))
            assert torch.equal(found[[0, 2]], expected[[0, 2]])
            assert (found[[1, 3]] == 0xA5).all()
    for everyone in (
        torch.zeros(3, 2, dtype=torch.int64, device=DEVICE),  # more choices than experts
        torch.zeros(2, 2, dtype=torch.int32, device=DEVICE).T,
        torch.zeros(2, dtype=torch.int16, device=DEVICE),
    ):
        workspace.buffer.fill_(0xA5)
        kept.decode(everyone)
        for name, expected in zip(SCALES, dense(group), strict=True):
            assert torch.equal(raw(getattr(layer, name)), expected)


def ready(group: ExpertGroup, workspace: LayerWorkspace, layer: Any) -> KeptLayer:
    kept = KeptLayer(group, workspace)
    assert kept.lay(layer) is None
    kept.fill(layer)
    assert kept.settle(layer) is None
    return kept


def test_layers_of_several_sizes_share_the_workspace_of_the_largest(tmp_path: Path) -> None:
    """The first layer is laid when the workspace is smaller yet, and moves with it."""
    both = groups(tmp_path, layers=2)
    workspace = LayerWorkspace(DEVICE)
    layers = [layer_for(group) for group in both]
    kept = [KeptLayer(group, workspace) for group in both]
    assert [one.lay(layer) for one, layer in zip(kept, layers, strict=True)] == [None, None]
    for one, layer in zip(kept, layers, strict=True):
        one.fill(layer)
        assert one.settle(layer) is None
    assert len(workspace.buffer) == EXPERTS * (4 * WIDTH * 8 + HIDDEN * 4)
    for i in (1, 0, 1):
        kept[i].decode()
        for name, expected in zip(SCALES, dense(both[i]), strict=True):
            assert torch.equal(raw(getattr(layers[i], name)), expected)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_layout_that_csf_tool_does_not_write_stays_dense(tmp_path: Path, in_place: bool) -> None:
    (group,) = groups(tmp_path)
    workspace, layer = LayerWorkspace(DEVICE), layer_for(group)
    kept = KeptLayer(group, workspace)
    kept.lay(layer)
    kept.fill(layer)
    if in_place:
        for name in SCALES:
            data = getattr(layer, name).data.view(torch.uint8)
            data.copy_(data.flip(1))
        wanted = [raw(getattr(layer, name)).clone() for name in SCALES]
    else:
        wanted = processed(layer, lambda scales: scales.transpose(1, 2).contiguous())
    assert kept.settle(layer) == "its scales are in a layout that csf-tool does not write"
    workspace.buffer.fill_(0xA5)
    kept.decode(torch.tensor([1], device=DEVICE))
    assert kept.nbytes == 0
    for name, expected in zip(SCALES, wanted, strict=True):
        assert not workspace.holds(getattr(layer, name))
        assert torch.equal(raw(getattr(layer, name)), expected)


def moved(*names: str) -> Callable[[Any], list[torch.Tensor]]:
    """An engine that gives parameters other memory when their layout has been found."""

    def move(layer: Any) -> list[torch.Tensor]:
        for name in names:
            getattr(layer, name).data = getattr(layer, name).data.clone()
        return []

    return move


def turned(layer: Any) -> list[torch.Tensor]:
    return [getattr(layer, name).data.view(torch.int32).permute(2, 0, 1) for name in SCALES]


TAKEN: dict[str, tuple[Callable[[Any], list[torch.Tensor]], bool]] = {
    "the parameters": (lambda layer: [getattr(layer, name) for name in SCALES], True),
    "views of them": (turned, True),
    "something small as well": (lambda layer: [layer.w13_weight_scale, torch.zeros(EXPERTS)], True),
    "nothing but copies": (lambda layer: [getattr(layer, name).data.clone() for name in SCALES], False),
    "a copy in another dtype": (lambda layer: [layer.w2_weight_scale.data.view(torch.uint8).int()], False),
    "views and a copy": (lambda layer: [*turned(layer), layer.w13_weight_scale.data.clone()], False),
    "gate and up from their place": (moved("w13_weight_scale"), False),
    "down from its place": (moved("w2_weight_scale"), False),
    "both from their place": (moved(*SCALES), False),
}
"""What an engine's kernel takes of scales whose layout has been found, and whether decoding reaches all of it."""


@pytest.mark.parametrize("taken", TAKEN)
def test_scales_that_decoding_does_not_reach_are_the_engines_own(tmp_path: Path, taken: str) -> None:
    (group,) = groups(tmp_path)
    workspace, layer = LayerWorkspace(DEVICE), layer_for(group)
    kept = ready(group, workspace, layer)
    take, is_reached = TAKEN[taken]
    kernel = take(layer)
    tensors = [*(getattr(layer, name) for name in SCALES), *kernel]
    wanted = [raw(tensor.contiguous()).clone() for tensor in tensors]
    assert kept.finish(layer, kernel) is is_reached
    assert (kept.nbytes > 0) is is_reached
    assert any(map(workspace.holds, tensors)) is is_reached
    workspace.buffer.fill_(0xA5)  # another layer's
    kept.decode()
    for found, expected in zip(tensors, wanted, strict=True):
        assert torch.equal(raw(found.contiguous()), expected)


def test_what_the_engine_took_of_the_parameters_is_in_its_place_when_the_layout_is_known(tmp_path: Path) -> None:
    """Also where the 128x4 layout was to be expected, and more room was made."""
    (group,) = groups(tmp_path)
    layer = layer_for(group)
    kept = KeptLayer(group, LayerWorkspace(DEVICE), padded=True)
    assert kept.lay(layer) is None
    kept.fill(layer)
    early = [getattr(layer, name).data for name in SCALES]
    assert kept.settle(layer) is None
    assert kept.finish(layer, early)


def test_a_layout_that_needs_more_room_than_was_made_stays_dense(tmp_path: Path) -> None:
    (group,) = groups(tmp_path)
    workspace, layer = LayerWorkspace(DEVICE), layer_for(group)
    kept = KeptLayer(group, workspace)  # padding was not foreseen
    kept.lay(layer)
    kept.fill(layer)
    wanted = processed(layer, swizzled)
    assert kept.settle(layer) is not None
    assert [torch.equal(raw(getattr(layer, name)), own) for name, own in zip(SCALES, wanted, strict=True)] == [True] * 2


def test_planes_that_are_stored_dense_are_in_the_stack(tmp_path: Path) -> None:
    (group,) = groups(tmp_path, keep=lambda module: "experts.1.gate" not in module and "experts.3.down" not in module)
    assert len(group.part.dense_planes) == 2
    workspace, layer = LayerWorkspace(DEVICE), layer_for(group)
    kept = ready(group, workspace, layer)
    workspace.buffer.fill_(0xA5)
    kept.decode()
    for name, expected in zip(SCALES, dense(group), strict=True):
        assert torch.equal(raw(getattr(layer, name)), expected)


def test_a_rank_has_its_part(tmp_path: Path) -> None:
    (group,) = groups(tmp_path)
    gate_up, down = dense(group)
    for rank in range(2):
        layer = SimpleNamespace(
            w13_weight_scale=torch.nn.Parameter(torch.zeros(EXPERTS, WIDTH, 8, device=DEVICE).to(torch.uint8), False),
            w2_weight_scale=torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN, 2, device=DEVICE).to(torch.uint8), False),
        )
        kept = KeptLayer(group, LayerWorkspace(DEVICE), rank, 2)
        assert kept.lay(layer) is None
        kept.fill(layer)
        assert kept.settle(layer) is None
        kept.decode()
        rows = WIDTH // 2
        own = [part[:, rank * rows : (rank + 1) * rows] for part in gate_up.chunk(2, 1)]
        assert torch.equal(raw(layer.w13_weight_scale), torch.cat(own, 1))
        assert torch.equal(raw(layer.w2_weight_scale), down[:, :, 2 * rank : 2 * rank + 2])


def test_a_broken_stream_is_found_when_it_is_loaded(tmp_path: Path) -> None:
    (group,) = groups(tmp_path)
    plane = group.part.planes[3]
    overwrite(tmp_path / plane.fixed.shard.name, plane.fixed.tensor.begin, b"\xff")
    (group,) = expert_groups(open_checkpoint(tmp_path)).values()
    layer = layer_for(group)
    kept = KeptLayer(group, LayerWorkspace(DEVICE))
    kept.lay(layer)
    with pytest.raises(StreamError, match=r"model\.safetensors: model\.layers\.0\.mlp\.experts\.1\.down_proj"):
        kept.fill(layer)


def without(name: str) -> Callable[[Any], None]:
    return lambda layer: delattr(layer, name)


def of_another_shape(layer: Any) -> None:
    layer.w2_weight_scale = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN, 8, dtype=torch.uint8), False)


def of_another_dtype(layer: Any) -> None:
    layer.w13_weight_scale = torch.nn.Parameter(layer.w13_weight_scale.data.float(), False)


@pytest.mark.parametrize(("change", "reason"), [
    (without("w13_weight_scale"), "the layer has no byte tensor w13_weight_scale"),
    (of_another_dtype, "the layer has no byte tensor w13_weight_scale"),
    (of_another_shape, "its w2_weight_scale is [4, 16, 8], but the checkpoint has [4, 16, 4]"),
])  # fmt: skip
def test_a_layer_of_another_kind_is_not_kept(tmp_path: Path, change: Callable[[Any], None], reason: str) -> None:
    (group,) = groups(tmp_path)
    layer = layer_for(group)
    change(layer)
    before = dict(vars(layer))
    assert KeptLayer(group, LayerWorkspace(DEVICE)).lay(layer) == reason
    assert vars(layer) == before


def test_ranks_that_the_format_cannot_serve_are_a_reason(tmp_path: Path) -> None:
    (group,) = groups(tmp_path)
    fault = KeptLayer(group, LayerWorkspace(DEVICE), 0, 4).lay(layer_for(group))
    assert fault == "the format cannot divide down among 4 ranks: 1 columns are not a positive multiple of 2"


def faulty(root: Path, change: Callable[[list[Tensor]], list[Tensor]]) -> str | None:
    folder = write_hf(root, {"model.safetensors": change(tensors(NVFP4, 1, lambda _: True))})
    (group,) = expert_groups(open_checkpoint(folder)).values()
    return group.fault()


def test_experts_that_are_no_stacks_are_a_reason(tmp_path: Path) -> None:
    def but(*names: str) -> Callable[[list[Tensor]], list[Tensor]]:
        return lambda found: [tensor for tensor in found if not any(name in tensor.name for name in names)]

    def odd(found: list[Tensor]) -> list[Tensor]:
        larger = compressed(matrix(f"{stem(0, 1)}.up_proj", NVFP4, 1, rows=64, cols=8), NVFP4)
        return [tensor for tensor in found if "experts.1.up" not in tensor.name] + larger

    assert faulty(tmp_path / "a", but("gate_proj")) == "the checkpoint has no block scales of gate"
    assert faulty(tmp_path / "b", but("experts.2.up_proj")) == "not every expert has block scales of up"
    assert faulty(tmp_path / "c", odd) == "the experts' scales of up differ in shape or format"
    assert faulty(tmp_path / "d", but("nothing")) is None


def test_a_layer_that_is_dense_is_no_group(tmp_path: Path) -> None:
    found = groups(tmp_path, layers=2, keep=lambda module: "layers.1" in module)
    assert [group.name for group in found] == ["model.layers.1.mlp.experts"]


@pytest.mark.skipif(DEVICE.type != "cuda", reason="CUDA graphs need a GPU")
def test_a_graph_decodes_what_is_chosen_when_it_runs(tmp_path: Path) -> None:
    (group,) = groups(tmp_path)
    workspace, layer = LayerWorkspace(DEVICE), layer_for(group)
    kept = ready(group, workspace, layer)
    chosen = torch.zeros(2, 1, dtype=torch.int32, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept.decode(chosen)
    before = torch.cuda.memory_allocated()
    for experts in ([1, 1], [0, 3], [2, -1]):
        workspace.buffer.fill_(0xA5)
        chosen.copy_(torch.tensor(experts, device=DEVICE).view(2, 1))
        graph.replay()
        for name, expected in zip(SCALES, dense(group), strict=True):
            found = raw(getattr(layer, name))
            for expert in range(EXPERTS):
                wanted = expected[expert] if expert in experts else torch.full_like(expected[expert], 0xA5)
                assert torch.equal(found[expert], wanted)
    assert torch.cuda.memory_allocated() == before
