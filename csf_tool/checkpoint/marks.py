"""Marks of CSF in a config: put in where readers look for them, and taken out again to the byte.

A recipe is marked by a key of its own. A config that states one algorithm for all modules has no recipes: it gets one
for each quantised module, and keeps under `SOURCE_KEY` what stood there before. Every other byte stays.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from csf_tool.checkpoint.config import ENCODING, ENCODING_KEY, LAYERS_KEY, block_paths, recipes_in_use, value_at
from csf_tool.disk.json_edit import REMOVED, KeyPath, edit_json, remove_everywhere
from csf_tool.disk.lenient_json import parse_lenient

SOURCE_KEY = "csf_tool_source"
"""Key beside recipes that csf-tool has written: the keys that it changed, as they were."""

_ALGORITHM = "quant_algo"
_BY_RECIPES = "MIXED_PRECISION"
_FOR_ALL = ("NVFP4", "W4A16_NVFP4")
"""Algorithms for all modules that readers of recipes know as those of a single one, too."""

_GROUP_SIZE = 16

_CHANGED = (_ALGORITHM, LAYERS_KEY)
"""Keys that change where recipes are written."""


class _Place(NamedTuple):
    """An object of a config that states recipes, or one algorithm: the keys that lead there, and its quant_method."""

    path: KeyPath
    stated: dict[str, Any]
    method: Any

    @property
    def recipes(self) -> dict[str, Any]:
        """The recipes by module."""
        found = self.stated.get(LAYERS_KEY)
        return found if isinstance(found, dict) else {}

    @property
    def algorithm(self) -> str | None:
        """The algorithm for all modules, if readers of recipes know it."""
        found = self.stated.get(_ALGORITHM)
        is_modelopt = self.method is None or str(self.method).lower().startswith("modelopt")
        is_known = isinstance(found, str) and found.upper() in _FOR_ALL
        return found if is_known and is_modelopt and not self.recipes else None

    def restored(self) -> dict[str, Any]:
        """The values of the keys that csf-tool changed here, as they were."""
        source = self.stated.get(SOURCE_KEY)
        if not isinstance(source, dict):
            return {}
        return {key: source.get(key, REMOVED) for key in _CHANGED} | {SOURCE_KEY: REMOVED}


def _places(config: Any) -> Iterator[_Place]:
    """The places of a config, the one first that `csf_tool.checkpoint.config` reads."""
    for path in block_paths(config):
        block = value_at(config, path)
        inner = block.get("quantization")
        if isinstance(inner, dict) and not isinstance(block.get(LAYERS_KEY), dict):
            yield _Place((*path, "quantization"), inner, block.get("quant_method"))
        else:
            yield _Place(path, block, block.get("quant_method"))


def states_one_algorithm(config: Any) -> bool:
    """Whether a config states one algorithm for all modules that can be written as a recipe for each."""
    first = next(_places(config), None)
    return bool(first and first.algorithm)


def mark_encoding(raw: bytes, name: str, modules: Collection[str], written: Sequence[str] = ()) -> bytes:
    """A config whose recipes for `modules` say `weight_scale_encoding: csf`: each the nearest of its place.

    `written` are the modules that get a recipe where the config states one algorithm for all.

    Raises:
        CheckpointError: `raw` is not JSON.
    """
    mark = {ENCODING_KEY: ENCODING}
    changes: dict[KeyPath, Any] = {}
    for place in _places(parse_lenient(raw, name).value):
        known = {module for module, recipe in place.recipes.items() if isinstance(recipe, dict)}
        for module in recipes_in_use(list(modules), known)[0]:
            changes[*place.path, LAYERS_KEY, module, ENCODING_KEY] = ENCODING
        if place.algorithm and written:
            recipe = {_ALGORITHM: place.algorithm, "group_size": place.stated.get("group_size") or _GROUP_SIZE}
            used, _ = recipes_in_use(list(modules), set(written))
            changes[*place.path, _ALGORITHM] = _BY_RECIPES
            changes[*place.path, LAYERS_KEY] = {m: recipe | (mark if m in used else {}) for m in written}
            changes[*place.path, SOURCE_KEY] = {key: place.stated[key] for key in _CHANGED if key in place.stated}
    return edit_json(raw, changes, name) if changes else raw


def strip_encoding(raw: bytes, name: str) -> bytes:
    """A config as it was before it was marked; marks go at any depth.

    Raises:
        CheckpointError: `raw` is not JSON.
    """
    places = _places(parse_lenient(raw, name).value)
    changes = {(*place.path, key): value for place in places for key, value in place.restored().items()}
    return remove_everywhere(edit_json(raw, changes, name) if changes else raw, ENCODING_KEY, ENCODING, name)
