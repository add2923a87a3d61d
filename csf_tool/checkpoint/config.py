"""quantization_config: the part of a model's config that says which modules' scales are CSF."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from csf_tool.checkpoint.problems import Problems
from csf_tool.codec.formats import FORMATS, CsfFormat
from csf_tool.codes import Code
from csf_tool.disk.json_edit import KeyPath, edit_json
from csf_tool.disk.json_files import has_half_characters
from csf_tool.disk.lenient_json import Repeating, load_lenient, parse_lenient
from csf_tool.errors import CheckpointError

CONFIG_FILES = ("config.json", "hf_quant_config.json")
"""Files that hold recipes: the model's config, and ModelOpt's own."""

ENCODING_KEY = "weight_scale_encoding"
ENCODING = "csf"

LAYERS_KEY = "quantized_layers"
"""Key of the map of module to recipe."""

_ALGORITHM_KEYS = ("quant_algo", "quant_method", "format", "quant_type")
"""Keys whose values name what a module is quantised with: ModelOpt's, and those of compressed-tensors."""

_BLOCKS: tuple[KeyPath, ...] = (("quantization_config",), ("text_config", "quantization_config"))
"""Places of the quantization_config, the first that is there before the others."""

_LAYERS: tuple[KeyPath, ...] = ((LAYERS_KEY,), ("quantization", LAYERS_KEY))
"""Places of the map of module to recipe in it."""

SERVING_KEY = "checkpoint_root"
"""Key of a serving directory's quantization_config: where the container lies, as the server sees it."""


@dataclass(frozen=True)
class Recipe:
    """The quantisation of one module: its name, and whether its scales are said to be CSF."""

    module: str
    is_csf: bool


def load_config(root: Path) -> Any:
    """The config in a folder, as its readers take it; None where there is none, or none that could be read."""
    try:
        return load_lenient(root / CONFIG_FILES[0], CONFIG_FILES[0]).value
    except CheckpointError:
        return None


def block_path(config: Any) -> KeyPath | None:
    """The keys that lead to the quantization_config of a config: none where the file itself is one.

    It stands at the top, or inside text_config; None where there is none.
    """
    return next(iter(block_paths(config)), None)


def block_paths(config: Any) -> list[KeyPath]:
    """The keys that lead to each quantization_config of a config; see `block_path`."""
    if found := [path for path in _BLOCKS if isinstance(value_at(config, path), dict)]:
        return found
    is_block = isinstance(config, dict) and ("quantization" in config or LAYERS_KEY in config)
    return [()] if is_block else []


def layers_path(config: Any) -> KeyPath | None:
    """The keys that lead to the map of module to recipe, in the quantization_config or one level down; None if none."""
    block = block_path(config)
    places = [] if block is None else [(*block, *path) for path in _LAYERS]
    return next((path for path in places if isinstance(value_at(config, path), dict)), None)


def value_at(config: Any, path: KeyPath) -> Any:
    """The value at a path; None where there is none."""
    for key in path:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def quantization_config(config: Any) -> dict[str, Any]:
    """The quantization_config of a config; empty if none."""
    path = block_path(config)
    return {} if path is None else cast(dict[str, Any], value_at(config, path))


def deciding_config(configs: Mapping[str, Any]) -> str | None:
    """The name of the config that readers go by: the first that states a quantisation; None where none does."""
    return next((name for name, config in configs.items() if quantization_config(config)), None)


def warn_of_contradictions(problems: Problems, configs: Mapping[str, Any], stored: Sequence[CsfFormat]) -> None:
    """Warn where configs contradict themselves, one another, or the FP4 formats that the tensors have.

    Tensors are believed, and of two blocks the first; other readers may choose otherwise.
    """
    found = {fmt.title for fmt in stored}
    stated = {name: stated_formats(config) for name, config in configs.items()}
    for name, config in configs.items():
        blocks = [block for path in _BLOCKS if isinstance(block := value_at(config, path), dict)]
        if len(blocks) > 1 and blocks[0] != blocks[1]:
            text = "quantization_config is at the top and in text_config, and they differ: csf-tool uses the first"
            problems.warn(text, Code.CONFIG_CONTRADICTS_ITSELF, name)
        if found and stated[name] and not found & stated[name]:
            text = f"names {' and '.join(sorted(stated[name]))}, but the tensors are {' and '.join(sorted(found))}"
            problems.warn(f"{text}: csf-tool goes by the tensors", Code.CONFIG_FORMAT, name)
    named = [(name, formats) for name, formats in stated.items() if formats]
    for name, formats in named[1:]:
        if formats != named[0][1]:
            text = f"names {' and '.join(sorted(formats))}, but {named[0][0]} names {' and '.join(sorted(named[0][1]))}"
            problems.warn(f"{text}: correct one of them", Code.CONFIG_FORMAT, name)


def stated_formats(config: Any) -> set[str]:
    """The titles of the FP4 formats that algorithms and formats in a config name, at any depth."""
    text = " ".join(_stated(quantization_config(config))).lower()
    return {fmt.title for fmt in FORMATS if fmt.name in text}


def _stated(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for inner in value:
            yield from _stated(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key in _ALGORITHM_KEYS and isinstance(inner, str):
                yield inner
            else:
                yield from _stated(inner)


def recipes(config: Any) -> list[Recipe]:
    """The recipes of a config."""
    return [
        Recipe(module, recipe.get(ENCODING_KEY) == ENCODING)
        for module, recipe in _quantized_layers(config).items()
        if isinstance(recipe, dict)
    ]


def fp4_recipes(config: Any) -> set[str]:
    """The modules whose recipes name an FP4 format."""
    return {
        module
        for module, recipe in _quantized_layers(config).items()
        if isinstance(recipe, dict) and any(fmt.name in " ".join(_stated(recipe)).lower() for fmt in FORMATS)
    }


def covering_recipe(module: str, recipes: set[str]) -> str | None:
    """The recipe for a module: that of its own name, or of the nearest module around it."""
    while module:
        if module in recipes:
            return module
        module = module.rpartition(".")[0]
    return None


def recipes_in_use(modules: Sequence[str], recipes: set[str]) -> tuple[set[str], set[str]]:
    """The recipes that cover at least one of `modules`, and the modules that none covers.

    There are far fewer modules around modules than modules: all of one depth are looked up together.
    """
    used = recipes.intersection(modules)
    around = {module.rpartition(".")[0] for module in modules if module not in used}
    while around - {""}:
        used |= around & recipes
        around = {module.rpartition(".")[0] for module in around - recipes}
    return used, {module for module in modules if covering_recipe(module, recipes) is None} if around else set()


def _quantized_layers(config: Any) -> dict[str, Any]:
    """The map of module to recipe; empty if none."""
    path = layers_path(config)
    return {} if path is None else cast(dict[str, Any], value_at(config, path))


def repeated_recipe(config: Any) -> str | None:
    """A module that has two recipes, of which readers may take either; None if there is none."""
    layers = _quantized_layers(config)
    return layers.key if isinstance(layers, Repeating) else None


def mentions_encoding(raw: bytes) -> bool:
    """Whether a file that is no JSON may be a config with marks, in any encoding of its letters."""
    return ENCODING_KEY.encode() in raw.replace(b"\0", b"")


def model_type(config: Any) -> str | None:
    """The `model_type` of a config, if it has one."""
    found = config.get("model_type") if isinstance(config, dict) else None
    return found if isinstance(found, str) and not has_half_characters(found) else None


def serving_config(raw: bytes, name: str, fmt: CsfFormat, checkpoint_root: str) -> bytes:
    """The config of a serving directory, which older vLLM builds want beside a container, made of a model's own.

    The source's quantization_config is kept whole under a key of its own, or its keys stay beside ours.

    Raises:
        CheckpointError: `raw` is not JSON, or no object.
    """
    config = parse_lenient(raw, name).value
    ours: dict[str, Any] = {"quant_method": fmt.serving_method, "format_version": 1, SERVING_KEY: checkpoint_root}
    source, path = quantization_config(config), block_path(config)
    if fmt.serving_nests_source:
        return edit_json(raw, {path or _BLOCKS[0]: {**ours, "source_quantization_config": source}}, name)
    if path:
        return edit_json(raw, {(*path, key): value for key, value in ours.items()}, name)
    return edit_json(raw, {_BLOCKS[0]: {**source, **ours}}, name)
