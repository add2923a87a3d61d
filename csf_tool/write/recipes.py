"""Recipes as readers of the Hugging Face layout need them: they find the CSF planes of a module by its mark alone."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES, covering_recipe, deciding_config, quantization_config, recipes
from csf_tool.checkpoint.experts import USUAL
from csf_tool.checkpoint.logical import logical_tensors
from csf_tool.checkpoint.marks import states_one_algorithm
from csf_tool.checkpoint.names import module_of
from csf_tool.checkpoint.side_files import config_files
from csf_tool.disk.lenient_json import load_lenient
from csf_tool.errors import CheckpointError

_BLOCK_SCALES = "weight_scale"
"""Ending of the names that ModelOpt gives block scales, those of stacked experts included."""

_BLOCK_SCALE_DTYPES = ("F8_E4M3", "U8")

_NO_CONFIG = f"there is no {CONFIG_FILES[0]}"


def read_configs(checkpoint: Checkpoint) -> dict[str, Any]:
    """The configs by file name. One that no reader takes is a fault of the checkpoint, and left out."""
    configs = {}
    for file in config_files(checkpoint):
        with suppress(CheckpointError):
            configs[file.name] = load_lenient(file.path, file.name).value
    return configs


def recipes_to_write(configs: Mapping[str, Any], checkpoint: Checkpoint) -> list[str]:
    """The modules that get a recipe because a config states one algorithm for all: those with block scales."""
    name = deciding_config(configs)
    if name is None or not states_one_algorithm(configs[name]):
        return []
    tensors = logical_tensors(checkpoint).values()
    scales = (t.name for t in tensors if t.name.endswith(_BLOCK_SCALES) and t.dtype in _BLOCK_SCALE_DTYPES)
    return list(dict.fromkeys(map(_own_module, scales)))


def _own_module(scale: str) -> str:
    """The module that a recipe of its own for a scale names."""
    return USUAL.group_of(scale) or module_of(scale)


@dataclass(frozen=True)
class Recipes:
    """The modules that have a recipe or get one, in the config that readers go by; `instead` says what it states else.

    `by_file` are those of every config; `written`, those that are not there yet.
    """

    modules: set[str]
    by_file: list[set[str]]
    written: list[str]
    instead: str

    @classmethod
    def of(cls, configs: Mapping[str, Any], written: list[str]) -> "Recipes":
        """The recipes of configs by file name, and those that are `written` into them."""
        by_file = {name: {recipe.module for recipe in recipes(config)} for name, config in configs.items()}
        for name, config in configs.items():
            by_file[name].update(written if states_one_algorithm(config) else ())
        decides = deciding_config(configs)
        if decides is None:
            instead = f"{' and '.join(configs)} has no quantization" if configs else _NO_CONFIG
        else:
            instead = _statement(decides, configs[decides])
        return cls(by_file[decides] if decides else set(), list(by_file.values()), written, instead)

    def cover(self, scale: str) -> bool:
        """Whether readers find the plane of this name."""
        return covering_recipe(module_of(scale), self.modules) is not None

    def whole_of(self, scale: str) -> str:
        """The module that is CSF as a whole, or not at all: the widest with a recipe in any file, or group of experts.

        Some configs have a recipe for every expert, and readers take one of them for all.
        """
        found = [covering_recipe(module_of(scale), known) for known in self.by_file]
        return min([_own_module(scale), *filter(None, found)], key=len)

    def unfound(self, scales: Iterable[str]) -> str:
        """The planes of these names that readers will not find, and why; empty where they find all."""
        modules = sorted({_own_module(scale) for scale in scales if not self.cover(scale)})
        if not modules:
            return ""
        of = modules[0] + (f" (of {len(modules)} modules)" if len(modules) > 1 else "")
        return f"readers that go by recipes will not find its CSF planes, such as those of {of}: {self.instead}"


def _statement(name: str, config: Any) -> str:
    if recipes(config):
        return f"no recipe of {name} covers them"
    block = quantization_config(config)
    stated = [f"{key} {block[key]}" for key in ("quant_method", "quant_algo") if isinstance(block.get(key), str)]
    return f"{name} has {' and '.join(stated) or 'a quantization'}, but no recipe that could be marked"
