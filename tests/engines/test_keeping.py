"""Keeping scales compressed in vLLM: the choice, the situations, a layer's life, on objects that stand for vLLM's."""

import logging
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from csf_tool.engines.kept_layer import SCALES
from csf_tool.errors import UsageError
from tests.building import NVFP4
from tests.engines.test_kept_layer import DEVICE, EXPERTS, dense, groups, layer_for, raw, swizzled
from tests.engines.test_plugin import vllm as vllm_tree

vllm = vllm_tree  # the fixture: a tree of modules in vLLM's place


@pytest.fixture
def module(vllm: Path) -> Callable[[str], Any]:
    """A module of csf_tool's plug-in, imported beside that tree."""
    return lambda name: import_module(f"csf_tool.engines.vllm.{name}")


# The choice


@pytest.mark.parametrize(("variable", "extra", "kept"), [
    (None, {}, False), ("", {}, False), ("dense", {}, False), ("compressed", {}, True),
    ("Compressed", {}, True), (" DENSE ", {}, False), (" ", {}, False),
    (None, {"csf": "compressed"}, True), ("compressed", {"csf": "dense"}, False), ("dense", {"num_threads": 2}, False),
])  # fmt: skip
def test_choice(
    module: Any, monkeypatch: pytest.MonkeyPatch, variable: str | None, extra: dict[str, Any], kept: bool
) -> None:
    monkeypatch.delenv("CSF_TOOL_VLLM", raising=False)
    if variable is not None:
        monkeypatch.setenv("CSF_TOOL_VLLM", variable)
    given = SimpleNamespace(model_loader_extra_config=dict(extra), load_format="auto")
    taken, config = module("keep_choice").taken(given)
    taken.require_known()
    assert taken.may_keep is kept
    assert config.model_loader_extra_config == {key: value for key, value in extra.items() if key != "csf"}
    assert given.model_loader_extra_config == extra


NO_SUCH_CHOICE = 'must be "compressed" or "dense", not '


@pytest.mark.parametrize("value", [True, "Compressed", None, ["compressed"]])
def test_no_such_choice_for_the_model(module: Any, value: object) -> None:
    with pytest.raises(ValueError, match=NO_SUCH_CHOICE):
        module("keep_choice").taken(SimpleNamespace(model_loader_extra_config={"csf": value}))


def test_no_such_choice_in_the_variable(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told when it matters: models without streams load as ever."""
    monkeypatch.setenv("CSF_TOOL_VLLM", "yes")
    choice, _ = module("keep_choice").taken(SimpleNamespace(model_loader_extra_config={}))
    assert choice.may_keep
    with pytest.raises(ValueError, match=f"CSF_TOOL_VLLM {NO_SUCH_CHOICE}'yes'"):
        choice.require_known()


# Situations


def configs() -> tuple[Any, Any]:
    """vLLM's config in which nothing is in the way, on a GPU, and its model's."""
    parallel = SimpleNamespace(
        enable_eplb=False, enable_expert_parallel=False, use_ubatching=False, data_parallel_size=1
    )
    model = SimpleNamespace(enable_sleep_mode=False, runner="generate")
    offload = SimpleNamespace(uva=SimpleNamespace(cpu_offload_gb=0), prefetch=SimpleNamespace(offload_group_size=0))
    return SimpleNamespace(
        parallel_config=parallel,
        model_config=model,
        load_config=SimpleNamespace(device=None),
        device_config=SimpleNamespace(device=torch.device("cuda:0")),
        offload_config=offload,
        lora_config=None,
        quant_config=SimpleNamespace(online_quantization_config=None),
        speculative_config=None,
        weight_transfer_config=None,
    ), model


@pytest.mark.parametrize(("where", "value", "reason"), [
    ("parallel_config.enable_eplb", True, "EPLB"),
    ("parallel_config.enable_expert_parallel", True, "expert parallel"),
    ("parallel_config.data_parallel_size", 2, "data or context parallelism"),
    ("parallel_config.prefill_context_parallel_size", 2, "data or context parallelism"),
    ("parallel_config.use_ubatching", True, "micro-batches"),
    ("model_config.enable_sleep_mode", True, "sleep mode"),
    ("model_config.runner", "draft", "draft model"),
    ("weight_transfer_config", object(), "arrive while serving"),
    ("lora_config", object(), "LoRA"),
    ("quant_config.online_quantization_config", object(), "quantising again"),
    ("offload_config.uva.cpu_offload_gb", 4, "offloading"),
    ("offload_config.prefetch.offload_group_size", 2, "offloading"),
    ("load_config.device", "cpu", "vLLM loads weights to cpu first"),
    ("device_config.device", torch.device("xpu"), "not xpu"),
])  # fmt: skip
def test_situations(module: Any, monkeypatch: pytest.MonkeyPatch, where: str, value: object, reason: str) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    config, model = configs()
    why_not = module("situations").why_not
    assert why_not(config, model) is None
    *path, last = where.split(".")
    target = config
    for name in path:
        target = getattr(target, name)
    setattr(target, last, value)
    assert reason in why_not(config, model)


def test_a_draft_model_by_the_speculative_config(module: Any) -> None:
    config, model = configs()
    config.speculative_config = SimpleNamespace(draft_model_config=model)
    assert "draft" in module("situations").why_not(config, model)


def test_a_version_outside_the_range(module: Any, vllm: Path) -> None:
    (vllm / "version.py").write_text("__version__ = '0.99.1'")
    assert module("situations").why_not(*configs()) == (
        "vLLM 0.99.1 is outside the range that csf-tool was tested with"
    )


# A layer's life


class Backend(Enum):
    EMULATION = 1
    VLLM_CUTLASS = 2
    MARLIN = 3
    FLASHINFER_TRTLLM = 4


class ModelOptExperts:
    """A method of vLLM's: `apply` gives the bytes that its kernel would read."""

    def __init__(self, backend: Backend, shapes: Any) -> None:
        self.nvfp4_backend = backend
        self.shapes = shapes
        self.quant: Any = None

    def create_weights(self, layer: Any, **_: Any) -> None:
        vars(layer).update(vars(layer_for(self.shapes)))

    def process_weights_after_loading(self, layer: Any) -> None:
        process = swizzled if self.nvfp4_backend is Backend.VLLM_CUTLASS else (lambda scales: scales)
        for name in SCALES:
            data = process(getattr(layer, name).data.view(torch.uint8)).view(torch.float8_e4m3fn)
            setattr(layer, name, torch.nn.Parameter(data, requires_grad=False))
        self.quant = self.get_fused_moe_quant_config(layer)

    def get_fused_moe_quant_config(self, layer: Any) -> Any:
        return [getattr(layer, name) for name in SCALES]

    def apply(self, layer: Any, x: Any, topk_weights: Any, topk_ids: Any) -> list[torch.Tensor]:
        return [raw(scale).clone() for scale in self.quant]

    def apply_monolithic(self, layer: Any, x: Any, router_logits: Any) -> list[torch.Tensor]:
        return self.apply(layer, x, None, None)


def routed(layers: int = 1, ranks: int = 1) -> list[Any]:
    parallel = SimpleNamespace(tp_size=ranks, tp_rank=0)
    return [SimpleNamespace(moe_config=SimpleNamespace(moe_parallel_config=parallel)) for _ in range(layers)]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[int], list[str]]]:
    """The log's lines of a level."""
    logging.getLogger("vllm.csf_tool").propagate = True
    with caplog.at_level(logging.INFO, "vllm.csf_tool"):
        yield lambda level: [r.getMessage() for r in caplog.records if r.levelno == level]


@pytest.mark.slow
@pytest.mark.parametrize("backend", [Backend.EMULATION, Backend.VLLM_CUTLASS])
def test_the_life_of_two_layers(tmp_path: Path, module: Any, said: Any, backend: Backend) -> None:
    both = groups(tmp_path, layers=2)
    model = module("keeping").KeptModel(opened(tmp_path))
    layers, methods = routed(2), []
    for i, layer in enumerate(layers):
        method = model.method_of(lambda *_, i=i: ModelOptExperts(backend, both[i]), layer, both[i].name)
        assert type(method).__name__ == "ModelOptExperts"
        assert isinstance(method, ModelOptExperts)
        method.create_weights(layer)
        methods.append(method)
    assert model.loads("model.layers.1.mlp.experts.3.up_proj.weight_scale")
    assert not model.loads("model.layers.1.mlp.experts.3.up_proj.weight_scale_2")
    module("kept_experts").refuse_reloading(holder(methods))
    for method, layer in zip(methods, layers, strict=True):
        method.process_weights_after_loading(layer)
    model.require_in_use(holder(methods))
    with pytest.raises(UsageError, match=rf"{both[1].name}: vLLM has another method for these experts"):
        model.require_in_use(holder([methods[0], ModelOptExperts(backend, both[1])]))
    model.finish()
    (line,) = said(logging.INFO)
    assert "csf-tool keeps the block scales of 2 layers compressed" in line
    if backend is Backend.EMULATION:
        assert "+0." in line
    wanted = [
        [swizzled(scales) if backend is Backend.VLLM_CUTLASS else scales for scales in dense(group)] for group in both
    ]
    every = torch.arange(EXPERTS, dtype=torch.int32, device=DEVICE).view(1, -1)
    for i, apply in (
        (0, lambda: methods[0].apply(layers[0], None, topk_weights=None, topk_ids=every)),
        (1, lambda: methods[1].apply_monolithic(layers[1], None, None)),
        (0, lambda: methods[0].apply(layers[0], None, None, every)),
    ):
        assert all(torch.equal(one, other) for one, other in zip(apply(), wanted[i], strict=True))
    assert not said(logging.WARNING)
    with pytest.raises(UsageError, match="cannot be loaded again"):
        module("kept_experts").refuse_reloading(holder(methods))
    with pytest.raises(UsageError, match="cannot be loaded again"):
        methods[0].process_weights_after_loading(layers[0])


def opened(folder: Path) -> Any:
    from csf_tool.checkpoint.open import open_checkpoint

    return open_checkpoint(folder)


def holder(methods: list[Any]) -> torch.nn.Module:
    model = torch.nn.Module()
    for i, method in enumerate(methods):
        child = torch.nn.Module()
        child.quant_method = method
        model.add_module(str(i), child)
    return model


def test_a_back_end_of_another_layout_is_one_warning(tmp_path: Path, module: Any, said: Any) -> None:
    both = groups(tmp_path, layers=2)
    model = module("keeping").KeptModel(opened(tmp_path))
    for group in both:
        method = ModelOptExperts(Backend.FLASHINFER_TRTLLM, group)
        assert model.method_of(lambda *_, method=method: method, routed()[0], group.name) is method
        assert not model.loads(group.planes[0].name)
    model.finish()
    (line,) = said(logging.WARNING)
    assert "not kept compressed: csf-tool does not write the layout of the back end FLASHINFER_TRTLLM" in line
    assert not said(logging.INFO)


def test_the_prediction_has_planes_that_are_stored_dense(tmp_path: Path, module: Any) -> None:
    """They are encoded when their layer is kept."""
    from csf_tool.look.plan import make_plan

    (whole,) = groups(tmp_path / "whole")
    mixed = groups(tmp_path / "mixed", keep=lambda name: ".1.down_proj" not in name)
    assert [len(group.part.dense_planes) for group in mixed] == [1]
    model = module("keeping").KeptModel(opened(tmp_path / "mixed"))
    assert make_plan(model.part(mixed)).stacks == make_plan(whole.part).stacks


def test_a_method_without_the_hooks_is_left(tmp_path: Path, module: Any, said: Any) -> None:
    (group,) = groups(tmp_path)
    model = module("keeping").KeptModel(opened(tmp_path))
    method = SimpleNamespace(nvfp4_backend=Backend.EMULATION)
    assert model.method_of(lambda *_: method, routed()[0], group.name) is method
    assert "does not have the functions" in said(logging.WARNING)[0]


@pytest.mark.slow
def test_a_layer_of_another_shape_is_dense_and_its_scales_are_given_to_it(
    tmp_path: Path, module: Any, said: Any
) -> None:
    first, second = groups(tmp_path, layers=2)
    model = module("keeping").KeptModel(opened(tmp_path))
    (layer,) = routed()
    method = model.method_of(lambda *_: ModelOptExperts(Backend.EMULATION, second), layer, first.name)
    method.create_weights(layer)
    (line,) = said(logging.WARNING)
    assert line.startswith(f"{tmp_path}: {first.name}, and perhaps others: ")
    assert ", but the checkpoint has " in line
    assert not model.loads(first.planes[0].name)
    for name, scales in zip(SCALES, dense(second), strict=True):
        getattr(layer, name).data.view(torch.uint8).copy_(scales)  # as vLLM's loader does
    method.process_weights_after_loading(layer)
    found = method.apply(layer, None, None, torch.zeros(1, 1, dtype=torch.int32))
    assert all(torch.equal(one, other) for one, other in zip(found, dense(second), strict=True))


class Mapper:
    """vLLM's, for a model that is the language part of another."""

    def apply_list(self, names: list[str]) -> list[str]:
        return [name.replace("model.", "language_model.model.", 1) for name in names]


def test_names_are_mapped_as_vllm_maps_them(tmp_path: Path, module: Any, said: Any) -> None:
    (group,) = groups(tmp_path)
    model = module("keeping").KeptModel(opened(tmp_path), Mapper())
    asked = [group.name, f"language_model.{group.name}"]
    kinds = [
        type(model.method_of(lambda *_: ModelOptExperts(Backend.EMULATION, group), routed()[0], name)) for name in asked
    ]
    assert kinds[0] is ModelOptExperts
    assert kinds[1] is not ModelOptExperts
    assert not said(logging.WARNING)


def test_a_model_of_other_names_is_a_warning(tmp_path: Path, module: Any, said: Any) -> None:
    groups(tmp_path, NVFP4)
    model = module("keeping").KeptModel(opened(tmp_path))
    model.method_of(lambda *_: None, routed()[0], "model.layers.0.experts")
    model.finish()
    (line,) = said(logging.WARNING)
    assert "no layer of the model has the name of the checkpoint's experts (model.layers.0.mlp.experts)" in line


def test_experts_that_vllm_has_not_processed_end_the_load(tmp_path: Path, module: Any) -> None:
    """Their scales are nowhere: vLLM was not to load them."""
    (group,) = groups(tmp_path)
    model = module("keeping").KeptModel(opened(tmp_path))
    (layer,) = routed()
    method = model.method_of(lambda *_: ModelOptExperts(Backend.EMULATION, group), layer, group.name)
    method.create_weights(layer)
    with pytest.raises(UsageError, match="vLLM has another method for these experts"):
        model.require_in_use(holder([method]))


def test_a_model_without_a_quantisation_config_is_one_warning(tmp_path: Path, module: Any, said: Any) -> None:
    groups(tmp_path)
    keeping = module("keeping")
    with keeping.keeping(opened(tmp_path), SimpleNamespace(quant_config=None), None) as kept:
        assert kept is None
    (line,) = said(logging.WARNING)
    assert line.endswith("not kept compressed: vLLM has no quantisation config for it")


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_the_config_is_afterwards_as_it_was(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch, is_wrapped: bool
) -> None:
    """Also where another plug-in has put a function of its own in that place."""
    groups(tmp_path)
    keeping = module("keeping")
    monkeypatch.setattr(keeping, "_kept_model", lambda checkpoint, *_: keeping.KeptModel(checkpoint))

    class Config:
        def get_quant_method(self, layer: Any, prefix: str) -> Any:
            return None

    config = Config()
    if is_wrapped:
        config.get_quant_method = lambda *_: None  # type: ignore[method-assign]
    before = dict(vars(config))
    with pytest.raises(KeyError), keeping.keeping(opened(tmp_path), SimpleNamespace(quant_config=config), None):
        assert vars(config) != before
        raise KeyError
    assert vars(config) == before
