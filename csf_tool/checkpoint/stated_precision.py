"""Modules that a config says are quantised, held against those that are."""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import covering_recipe, fp4_recipes, quantization_config, recipes_in_use, stated_formats
from csf_tool.checkpoint.names import Patterns, layers_of
from csf_tool.checkpoint.stored import Stored
from csf_tool.codes import Code
from csf_tool.disk.json_files import is_count
from csf_tool.dtypes import PLAIN_DTYPES

_EXCEPTIONS = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
"""Keys of lists that name what is not quantised: compressed-tensors', ModelOpt's, and those of transformers."""

MAX_EXCEPTION = 500
"""Longest name of an exception that is looked at."""

MAX_COMPARED = 1_000_000
"""Most pairs of a module and an exception that are compared: real configs come to a tenth of it."""


def compare_precision(checkpoint: Checkpoint, stored: Stored, configs: Mapping[str, Any]) -> None:
    """Warn where a config says that a module is FP4 and it is not, or the reverse; nothing is said of what it omits."""
    modules = checkpoint.modules
    if not modules:
        return
    projections = set(checkpoint.projections)
    layers = max(map(_hidden_layers, configs.values()), default=0)
    for name, config in configs.items():
        recipes, exceptions = fp4_recipes(config), _exceptions(config)
        if not recipes and not stated_formats(config):
            continue
        differences: list[tuple[str, str]] = []
        if recipes or _is_for_all(config):
            differences += _not_quantized(checkpoint, stored, projections, recipes, exceptions, layers)
        text = "is stored as FP4, but the config excludes it from quantisation"
        outright = [exception.glob for exception in exceptions if exception.is_exact]
        differences += [(text, module) for module in _excepted(modules, outright)]
        used, homeless = recipes_in_use(checkpoint.dense_table.modules, recipes) if recipes else (set(), set())
        if used and homeless:
            differences += [("is stored as FP4, but no FP4 recipe covers it", module) for module in sorted(homeless)]
        for text, module in differences:
            checkpoint.problems.warn(text, Code.CONFIG_PRECISION, name, module)


def _not_quantized(
    checkpoint: Checkpoint,
    stored: Stored,
    projections: set[str],
    recipes: set[str],
    exceptions: list["_Exception"],
    layers: int,
) -> Iterable[tuple[str, str]]:
    """Modules that are stored plain: those under a recipe that nothing FP4 is under, and siblings of FP4 ones.

    Layers past the model's own are those of a draft model, which quantisers leave alone without a word.
    """
    dtypes, shapes, modules = stored.dtypes, stored.shapes, checkpoint.modules
    plain = {
        module: dtypes[row]
        for module, row in stored.rows_of(".weight").items()
        if dtypes[row] in PLAIN_DTYPES and len(shapes[row]) == 2
    }
    unmet = recipes_in_use(list(plain), recipes)[0] if recipes else set()
    if unmet:
        unmet -= recipes_in_use(modules, recipes)[0]
    found = {module: covering_recipe(module, recipes) for module in plain}
    alike = [m for m, recipe in found.items() if m.rpartition(".")[2] in projections and (recipe or not recipes)]
    pattern_of = Patterns().of
    patterns = set(map(pattern_of, modules)) if alike else set()
    alike = [module for module in alike if pattern_of(module) in patterns]
    faulty = dict.fromkeys([module for module, recipe in found.items() if recipe in unmet] + alike)
    tails = [_tail(exception.glob) for exception in exceptions]
    tails += _around_unmet([exception.glob for exception in exceptions], [*plain, *modules])
    if len(faulty) * len(tails) <= MAX_COMPARED:
        for module in faulty:
            if not _is_of_draft(module, layers) and not _may_be_excepted(module, tails):
                yield f"is stored as {plain[module]}, but the config says that it is FP4", module


class _Exception(NamedTuple):
    """A glob for modules that are not quantised; one that is not exact may mean more than its author did."""

    glob: str
    is_exact: bool


def _exceptions(config: Any) -> list[_Exception]:
    """The modules that a config says are not quantised: names, globs, and regular expressions as globs."""
    found = quantization_config(config)
    inner = found.get("quantization")
    blocks = [found, inner] if isinstance(inner, dict) else [found]
    lists = [block[key] for block in blocks for key in _EXCEPTIONS if isinstance(block.get(key), list)]
    names = [name for names in lists for name in names if isinstance(name, str) and 0 < len(name) <= MAX_EXCEPTION]
    return [_as_glob(name) for name in names]


def _as_glob(name: str) -> _Exception:
    """A regular expression of compressed-tensors as a glob; whatever a glob cannot say becomes a `*`.

    It is never run as it is: one that a config's author chose could take for ever.
    """
    if not name.startswith("re:"):
        return _Exception(name, is_exact=True)
    plain = re.sub(r"\.[*+]\??", "*", name[3:].removeprefix("^"))
    glob = re.sub(r"\\d[*+]?|\[[^\]]*\][*+]?|\([^)]*\)[*+?]?", "*", plain).replace("\\.", ".")
    glob = re.sub(r"[][(){}|+?\\]", "*", glob)
    is_exact = not re.search(r"[][(){}|+?]|\\[^.]", plain)
    return _Exception(glob[:-1] if glob.endswith("$") else f"{glob}*", is_exact)


def _is_for_all(config: Any) -> bool:
    """Whether a config quantises all modules of a class, and none by their names alone."""
    groups = quantization_config(config).get("config_groups")
    groups = groups.values() if isinstance(groups, dict) else ()
    lists = [group.get("targets") for group in groups if isinstance(group, dict)]
    targets = [target for targets in lists if isinstance(targets, list) for target in targets]
    return all(isinstance(target, str) and target.isidentifier() for target in targets)


def _hidden_layers(config: Any) -> int:
    """The number of a model's own layers, at the top of a config or in those of its parts; 0 where it has none."""
    found = config if isinstance(config, dict) else {}
    numbers = [block.get("num_hidden_layers") for block in (found, *found.values()) if isinstance(block, dict)]
    return max((number for number in numbers if is_count(number)), default=0)


def _is_of_draft(module: str, layers: int) -> bool:
    """Whether a module's layer is past those of the model."""
    number = re.search(r"(?:^|\.)layers\.(\d{1,9})(?:\.|$)", module)
    return bool(number and layers and int(number[1]) >= layers)


def _tail(exception: str) -> str:
    """An exception from its layers on: what is before may be an engine's name for what the file calls otherwise."""
    found = re.search(r"[^.*]+\.\d", exception)
    return exception[found.start() :] if found else exception


def _around_unmet(exceptions: list[str], modules: list[str]) -> list[str]:
    """Globs for all that is beside a module that is an exception and not there: engines fuse what files have apart."""
    names = {name for name in exceptions if not re.search(r"[*?[]", name) and re.search(r"\.\d+\..*\.", name)}
    met = recipes_in_use(modules, names)[0] if names else set()
    return [f"{_tail(name.rpartition('.')[0])}." for name in names - met]


def _may_be_excepted(module: str, exceptions: list[str]) -> bool:
    """Whether an exception could mean a module, by any reader's rules: as a part of its name, or a glob."""
    return any(fnmatchcase(module, f"*{exception}*") for exception in exceptions)


def _excepted(modules: list[str], exceptions: list[str]) -> list[str]:
    """Modules that exceptions name outright: themselves, a module around them, or with a glob.

    Globs are held against one module of each layer and projection first, and against the others if it is named.
    """
    names = {exception for exception in exceptions if not re.search(r"[*?[]", exception)}
    globs = [exception for exception in exceptions if exception not in names and exception.strip("*")]
    used, _ = recipes_in_use(modules, names) if names else (set(), set())
    found = [module for module in modules if covering_recipe(module, used)] if used else []
    if globs:
        kinds: dict[tuple[str, str], list[str]] = {}
        for module, layer, pattern in zip(modules, layers_of(modules), map(Patterns().of, modules), strict=True):
            kinds.setdefault((layer, pattern), []).append(module)
        if len(kinds) * len(globs) <= MAX_COMPARED:
            for alike in kinds.values():
                if met := [glob for glob in globs if fnmatchcase(alike[-1], glob)]:
                    found += [module for module in alike if any(fnmatchcase(module, glob) for glob in met)]
    return list(dict.fromkeys(found))
