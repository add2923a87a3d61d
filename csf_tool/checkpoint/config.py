"""quantization_config: the part of a model's config that says which modules' scales are CSF."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from csf_tool.checkpoint.problems import Problems
from csf_tool.codec.formats import FORMATS, CsfFormat
from csf_tool.codes import Code
from csf_tool.disk.json_files import parse_json

CONFIG_FILES = ("config.json", "hf_quant_config.json")
"""Files that hold recipes: the model's config, and ModelOpt's own."""

ENCODING_KEY = "weight_scale_encoding"
ENCODING = "csf"

_ALGORITHM_KEYS = ("quant_algo", "quant_method", "format", "quant_type")
"""Keys whose values name what a module is quantised with: ModelOpt's, and those of compressed-tensors."""

SERVING_KEY = "checkpoint_root"
"""Key of a serving directory's quantization_config: where the container lies, as the server sees it."""


@dataclass(frozen=True)
class Recipe:
    """The quantisation of one module: its name, and whether its scales are said to be CSF."""

    module: str
    is_csf: bool


def quantization_config(config: Any) -> dict[str, Any]:
    """The quantization_config of a config: at the top, inside text_config, or the file itself; empty if none."""
    if blocks := _blocks(config):
        return blocks[0]
    if isinstance(config, dict) and ("quantization" in config or "quantized_layers" in config):
        return config
    return {}


def _blocks(config: Any) -> list[dict[str, Any]]:
    """The blocks that a config has under quantization_config: at the top, and inside text_config."""
    if not isinstance(config, dict):
        return []
    text_config = config.get("text_config")
    inner = text_config.get("quantization_config") if isinstance(text_config, dict) else None
    return [block for block in (config.get("quantization_config"), inner) if isinstance(block, dict)]


def warn_of_contradictions(problems: Problems, configs: Mapping[str, Any], stored: Sequence[CsfFormat]) -> None:
    """Warn where configs contradict themselves, one another, or the FP4 formats that the tensors have.

    Tensors are believed, and of two blocks the first; other readers may choose otherwise.
    """
    found = {fmt.title for fmt in stored}
    stated = {name: stated_formats(config) for name, config in configs.items()}
    for name, config in configs.items():
        blocks = _blocks(config)
        if len(blocks) > 1 and blocks[0] != blocks[1]:
            text = (
                "quantization_config stands at the top and in text_config, and they differ: the one at the top is taken"
            )
            problems.warn(text, Code.CONFIG_CONTRADICTS_ITSELF, name)
        if found and stated[name] and not found & stated[name]:
            text = f"speaks of {' and '.join(sorted(stated[name]))}, the tensors are {' and '.join(sorted(found))}"
            problems.warn(f"{text}: the tensors are believed", Code.CONFIG_FORMAT, name)
    spoken = [(name, formats) for name, formats in stated.items() if formats]
    for name, formats in spoken[1:]:
        if formats != spoken[0][1]:
            text = f"speaks of {' and '.join(sorted(formats))}, {spoken[0][0]} of {' and '.join(sorted(spoken[0][1]))}"
            problems.warn(f"{text}: mend one of them", Code.CONFIG_FORMAT, name)


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
    """The map of module to recipe, directly in the quantization_config or one level down; empty if none."""
    found = quantization_config(config)
    layers = found.get("quantized_layers")
    if layers is None and isinstance(found.get("quantization"), dict):
        layers = found["quantization"].get("quantized_layers")
    return layers if isinstance(layers, dict) else {}


def strip_encoding(raw: bytes, name: str) -> bytes:
    """A config without `weight_scale_encoding: csf`, every other byte as it was.

    The text is edited, not written anew, so that key order, indentation and number formats stay. The result
    is kept only if it parses to exactly the stripped document; otherwise (a key written with escapes, say)
    the document is written out again.

    Raises:
        CheckpointError: `raw` is not JSON.
    """
    wanted = without_encoding(parse_json(raw, name))
    entry = rf'"{ENCODING_KEY}"\s*:\s*"{ENCODING}"'
    # Blanks before a comma are looked at once, from the first of them: a file may have a megabyte of them.
    text = re.sub(rf"(?<!\s)\s*+,\s*{entry}|{entry}\s*,\s*|{entry}", "", raw.decode("utf-8"))
    try:
        if json.loads(text) == wanted:
            return text.encode("utf-8")
    except ValueError:
        pass
    return json.dumps(wanted, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"


def without_encoding(value: Any) -> Any:
    """A config's document without `weight_scale_encoding: csf`, at any depth."""
    if isinstance(value, dict):
        return {key: without_encoding(v) for key, v in value.items() if not (key == ENCODING_KEY and v == ENCODING)}
    if isinstance(value, list):
        return [without_encoding(v) for v in value]
    return value


def mark_encoding(raw: bytes, name: str, modules: set[str]) -> bytes:
    """A config whose recipes of `modules` say `weight_scale_encoding: csf`; indentation kept, order too.

    Raises:
        CheckpointError: `raw` is not JSON.
    """
    config = parse_json(raw, name)
    for module, recipe in _quantized_layers(config).items():
        if module in modules and isinstance(recipe, dict):
            recipe[ENCODING_KEY] = ENCODING
    text = raw.decode("utf-8")
    # As far as anybody indents: every line of the new text gets it, and a file may have a megabyte of blanks here.
    indent = re.match(r"\s*\{\n([ \t]{1,8})(?![ \t])", text)
    ending = text[len(text.rstrip()) :]
    if indent:
        return (json.dumps(config, indent=indent[1], ensure_ascii=False) + ending).encode("utf-8")
    return (json.dumps(config, ensure_ascii=False) + ending).encode("utf-8")


def model_type(config: Any) -> str | None:
    """The `model_type` of a config, if it has one."""
    found = config.get("model_type") if isinstance(config, dict) else None
    return found if isinstance(found, str) else None


def serving_config(config: dict[str, Any], fmt: CsfFormat, checkpoint_root: str) -> dict[str, Any]:
    """The config of a serving directory, which older vLLM builds want beside a container.

    The source's quantization_config is kept whole under a key of its own, or its keys stay beside ours.
    """
    ours: dict[str, Any] = {"quant_method": fmt.serving_method, "format_version": 1, SERVING_KEY: checkpoint_root}
    source = quantization_config(config)
    merged = {**ours, "source_quantization_config": source} if fmt.serving_nests_source else {**source, **ours}
    text_config = config.get("text_config")
    if isinstance(text_config, dict) and "quantization_config" in text_config and "quantization_config" not in config:
        return {**config, "text_config": {**text_config, "quantization_config": merged}}
    return {**config, "quantization_config": merged}
