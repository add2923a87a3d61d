"""What csf_tool's plug-in asks of vLLM, looked up in the sources of the versions that are at hand.

They are parsed, not imported: those for GPUs cannot be. `.ci/engines` unpacks the newest of them.
"""

import ast
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest


def roots() -> Iterator[Path]:
    """The folders of vLLM's sources: the installed one, and those that the environment names."""
    if spec := find_spec("vllm"):
        yield from map(Path, spec.submodule_search_locations or ())
    yield from map(Path, filter(None, os.environ.get("CSF_TOOL_VLLM_SOURCES", "").split(os.pathsep)))


SOURCES = [pytest.param(root, id=root.parent.name) for root in roots()]

pytestmark = [
    pytest.mark.skipif(not SOURCES, reason="no sources of vLLM are at hand; .ci/engines runs these"),
    pytest.mark.parametrize("root", SOURCES),
]

LOADER = "model_executor/model_loader/default_loader.py"
EXPERTS = "model_executor/layers/fused_moe"
QUANTISATION = "model_executor/layers/quantization"
Function = ast.FunctionDef | ast.AsyncFunctionDef

PARAMETERS = {
    (LOADER, "DefaultModelLoader._prepare_weights"): (
        "self model_name_or_path subfolder revision fall_back_to_pt allow_patterns_overrides"
    ),
    (LOADER, "DefaultModelLoader._get_weights_iterator"): "self source",
    (LOADER, "DefaultModelLoader.load_weights"): "self model model_config",
    (LOADER, "DefaultModelLoader.get_all_weights"): "self model_config model",
    ("model_executor/model_loader/base_loader.py", "BaseModelLoader.load_model"): (
        "self vllm_config model_config prefix"
    ),
    ("model_executor/model_loader/utils.py", "get_model_architecture"): "model_config",
    ("model_executor/models/utils.py", "WeightsMapper.apply_list"): "self values",
    (f"{EXPERTS}/fused_moe_method_base.py", "FusedMoEMethodBase.apply"): (
        "self layer x topk_weights topk_ids shared_experts shared_experts_input"
    ),
    (f"{EXPERTS}/fused_moe_method_base.py", "FusedMoEMethodBase.get_fused_moe_quant_config"): "self layer",
    (f"{EXPERTS}/routed_experts.py", "RoutedExperts._get_quant_method"): "self prefix quant_config moe_config",
    (LOADER, "DefaultModelLoader.__init__"): "self load_config",
    ("model_executor/model_loader/__init__.py", "register_model_loader"): "load_format",
    ("model_executor/model_loader/weight_utils.py", "download_weights_from_hf"): (
        "model_name_or_path cache_dir allow_patterns revision subfolder ignore_patterns"
    ),
    ("model_executor/model_loader/ep_weight_filter.py", "parse_expert_id"): "weight_name",
    ("model_executor/models/utils.py", "get_pp_missing_layer_names"): "model",
    ("model_executor/models/utils.py", "WeightsMapper._map_name"): "self key",
    ("transformers_utils/repo_utils.py", "file_or_path_exists"): "model config_name revision",
    ("engine/arg_utils.py", "EngineArgs.create_model_config"): "self",
    ("plugins/__init__.py", "load_general_plugins"): "",
    ("config/vllm.py", "get_current_vllm_config_or_none"): "",
}
"""Functions and methods that the plug-in calls or replaces, and their parameters."""

FIELDS = {
    (LOADER, "DefaultModelLoader.Source"): (
        "model_or_path revision subfolder prefix fall_back_to_pt allow_patterns_overrides"
    ),
    ("engine/arg_utils.py", "EngineArgs"): (
        "model revision tokenizer served_model_name speculative_config download_dir ignore_patterns"
    ),
    ("config/load.py", "LoadConfig"): "load_format download_dir ignore_patterns device model_loader_extra_config",
    ("config/parallel.py", "ParallelConfig"): (
        "enable_eplb enable_expert_parallel tensor_parallel_size data_parallel_size prefill_context_parallel_size"
    ),
    ("config/model.py", "ModelConfig"): "enable_sleep_mode runner",
    ("config/offload.py", "UVAOffloadConfig"): "cpu_offload_gb",
    ("config/offload.py", "PrefetchOffloadConfig"): "offload_group_size",
    ("config/offload.py", "OffloadConfig"): "uva prefetch",
    ("config/speculative.py", "SpeculativeConfig"): "draft_model_config",
    ("config/vllm.py", "VllmConfig"): (
        "parallel_config load_config device_config quant_config offload_config lora_config speculative_config "
        "weight_transfer_config"
    ),
    (f"{EXPERTS}/config.py", "FusedMoEParallelConfig"): "tp_size tp_rank",
}
"""Fields that it reads or sets."""


def found(root: Path, file: str, name: str) -> ast.AST:
    """A function or a class in a file, methods by their class's name before their own."""
    node: ast.AST = ast.parse((root / file).read_text())
    for part in name.split("."):
        assert isinstance(node, ast.Module | ast.ClassDef)
        node = next(n for n in node.body if isinstance(n, Function | ast.ClassDef) and n.name == part)
    return node


@pytest.mark.parametrize(("file", "name"), PARAMETERS)
def test_parameters(root: Path, file: str, name: str) -> None:
    function = found(root, file, name)
    assert isinstance(function, Function)
    assert " ".join(argument.arg for argument in function.args.args) == PARAMETERS[file, name]


@pytest.mark.parametrize(("file", "name"), FIELDS)
def test_fields(root: Path, file: str, name: str) -> None:
    node = found(root, file, name)
    assert isinstance(node, ast.ClassDef)
    fields = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    assert set(FIELDS[file, name].split()) <= fields


def test_what_is_prepared(root: Path) -> None:
    function = found(root, LOADER, "DefaultModelLoader._prepare_weights")
    assert isinstance(function, Function) and function.returns
    prepared = ["tuple[str, list[str], bool]", "tuple[str, list[str], bool, str]"]
    assert ast.unparse(function.returns).strip("'") in prepared


def test_the_table_of_formats(root: Path) -> None:
    tree = ast.parse((root / "model_executor/model_loader/__init__.py").read_text())
    (table,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_LOAD_FORMAT_TO_MODEL_LOADER"
    ]
    assert isinstance(table, ast.Dict)
    loaders = {
        ast.literal_eval(key): ast.unparse(value) for key, value in zip(table.keys, table.values, strict=True) if key
    }
    assert {name for name in ("auto", "hf", "safetensors") if loaders[name] == "DefaultModelLoader"} == {
        "auto",
        "hf",
        "safetensors",
    }


def test_the_loader_goes_through_what_is_replaced(root: Path) -> None:
    text = (root / LOADER).read_text()
    assert "self._prepare_weights(" in ast.unparse(found(root, LOADER, "DefaultModelLoader._get_weights_iterator"))
    assert "self._get_weights_iterator(" in ast.unparse(found(root, LOADER, "DefaultModelLoader.get_all_weights"))
    assert "self.get_all_weights(" in ast.unparse(found(root, LOADER, "DefaultModelLoader.load_weights"))
    assert "self.local_expert_ids" in text


def test_the_group_of_plugins(root: Path) -> None:
    assert '"vllm.general_plugins"' in (root / "plugins/__init__.py").read_text()


def test_it_does_not_read_csf(root: Path) -> None:
    """When this fails, csf_tool steps aside, and docs/serving.md has to say so."""
    texts = (path.read_text(errors="replace") for path in root.rglob("*.py"))
    assert not any("nvfp4_csf" in text or "mxfp4_csf" in text for text in texts)


METHODS = {
    "modelopt.py": "ModelOptNvFp4FusedMoE",
    "compressed_tensors/compressed_tensors_moe/compressed_tensors_moe_w4a4_nvfp4.py": (
        "CompressedTensorsW4A4Nvfp4MoEMethod"
    ),
}


@pytest.mark.parametrize("file", METHODS)
def test_methods_of_experts_have_what_keeping_scales_compressed_overrides(root: Path, file: str) -> None:
    node = found(root, f"{QUANTISATION}/{file}", METHODS[file])
    assert isinstance(node, ast.ClassDef)
    functions = {function.name: function for function in node.body if isinstance(function, Function)}
    hooks = ["create_weights", "process_weights_after_loading", "get_fused_moe_quant_config", "apply"]
    assert {*hooks, "apply_monolithic"} <= functions.keys()
    text = "".join(map(ast.unparse, functions.values()))
    assert "self.get_fused_moe_quant_config(layer)" in text
    assert all(f"layer.{name}" in text for name in ("w13_weight_scale", "w2_weight_scale"))
    assert "self.nvfp4_backend" in text


def test_back_ends_have_the_names_that_are_known(root: Path) -> None:
    node = found(root, f"{EXPERTS}/oracle/nvfp4.py", "NvFp4MoeBackend")
    assert isinstance(node, ast.ClassDef)
    names = {ast.unparse(n.targets[0]) for n in node.body if isinstance(n, ast.Assign)}
    known = {"EMULATION", "VLLM_CUTLASS", "FLASHINFER_CUTLASS", "FLASHINFER_B12X", "FLASHINFER_CUTEDSL_BATCHED"}
    assert known <= names


def module_level(path: Path) -> set[str]:
    """The modules of which a file imports something when it is executed itself."""
    body = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom | ast.Import)]
    froms = {str(node.module) for node in body if isinstance(node, ast.ImportFrom)}
    return froms | {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}


def test_registering_needs_no_more_of_vllm_than_its_own_loaders_do(root: Path) -> None:
    """Any other module may be half there when the loaders are imported, and ours with them."""
    package = Path(__file__).parents[2] / "csf_tool" / "engines" / "vllm"
    mine, found = ["csf_tool.engines.vllm.formats", "csf_tool.engines.vllm.loader"], set()
    for name in mine:  # grows
        imported = module_level(package / f"{name.rpartition('.')[2]}.py")
        found |= {other for other in imported if other.startswith("vllm.")}
        mine += [other for other in imported if other.startswith("csf_tool.engines.vllm.") and other not in mine]
    assert LOADER.removesuffix(".py").replace("/", ".") in {name.removeprefix("vllm.") for name in found}
    theirs = {f"vllm.{LOADER.removesuffix('.py').replace('/', '.')}"} | module_level(root / LOADER)
    assert found <= theirs | module_level(root / "model_executor/model_loader/__init__.py")


def test_files_are_opened_as_the_mapped_ones_can_be(root: Path) -> None:
    """vLLM's reading finds `safe_open` where it can be given another, and asks no more of it than `MappedFile` has."""
    tree = ast.parse((root / "model_executor/model_loader/weight_utils.py").read_text())
    name = "safetensors_weights_iterator"
    (reading,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert reading.decorator_list == []
    opening = [node for node in ast.walk(reading) if isinstance(node, ast.With) and "safe_open(" in ast.unparse(node)]
    assert {ast.unparse(node.items[0]) for node in opening} == {"safe_open(st_file, framework='pt') as f"}
    default = opening[-1]
    asked = {
        node.attr for node in ast.walk(default) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "f"
    }
    assert asked == {"keys", "get_tensor"}
