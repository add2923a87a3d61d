"""Comparison of all lists of names in a checkpoint: shards, index, manifest, contract, receipts and config."""

from typing import Any

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.completeness import check_completeness
from csf_tool.checkpoint.config import (
    CONFIG_FILES,
    Recipe,
    covering_recipe,
    deciding_config,
    load_config,
    recipes,
    recipes_in_use,
    repeated_recipe,
    warn_of_contradictions,
)
from csf_tool.checkpoint.names import module_of
from csf_tool.checkpoint.problems import Problem, Problems, errors
from csf_tool.checkpoint.scale_warnings import doubtful_scales, warn_of_doubtful, warn_of_stacked
from csf_tool.checkpoint.stated_precision import compare_precision
from csf_tool.checkpoint.stored import Shard, Stored
from csf_tool.checkpoint.tied import TIED_KEY, tied_names
from csf_tool.codes import Code
from csf_tool.disk.lenient_json import load_lenient
from csf_tool.disk.reader import exists, is_folder
from csf_tool.errors import CheckpointError


def cross_check(checkpoint: Checkpoint, stored: Stored, *, index_agrees: bool = False) -> Checkpoint:
    """Compare every list of names with every other; the index is left out if it is known to agree."""
    checkpoint.problems += checkpoint.hub.problems if checkpoint.hub else []
    warn_of_stacked(checkpoint.problems, checkpoint.other_scales)
    if checkpoint.dense_table:
        checkpoint.doubtful = doubtful_scales(checkpoint.dense_table, checkpoint.shards)
        warn_of_doubtful(checkpoint.problems, checkpoint.doubtful)
    if checkpoint.index and not index_agrees:
        _compare_index(checkpoint, stored)
    checkpoint.layout.cross_check(checkpoint, stored)
    # The config beside a single file describes other files as well.
    configs: dict[str, Any] = {}
    if checkpoint.layout.keeps_dense_files:
        configs = {CONFIG_FILES[0]: load_config(checkpoint.layout.model_root)}
    elif is_folder(checkpoint.path):
        configs = _compare_recipes(checkpoint, stored)
    check_completeness(checkpoint, stored, configs)
    return checkpoint


def note_stored_twice(problems: Problems, shards: list[Shard], *, is_listed: bool) -> None:
    """Note tensors whose names are in two shards; a sentence for each pair of shards says it of all of these."""
    home: dict[str, str] = {}
    remedy = "remove one of the two files" if is_listed else "remove one set of shards, or add the index of the other"
    for shard in shards:
        twice: dict[str, list[str]] = {}
        for name in shard.header.names:
            if name in home:
                twice.setdefault(home[name], []).append(name)
            home[name] = shard.name
        for other, names in twice.items():
            number, there = len(names), len(shard.header)
            which = f"all {there:,} tensors" if number == there else f"{number:,} of its {there:,} tensors"
            summary = f"{which} are also in {other}: {remedy}" if number > 1 else ""
            text = f"is also in {other}: {remedy}"
            problems += [Problem(text, Code.TENSOR_IN_TWO_SHARDS, shard.name, n, summary=summary) for n in names]


def _compare_index(checkpoint: Checkpoint, stored: Stored) -> None:
    """Compare the index with the shards, in both directions."""
    index, problems = checkpoint.index, checkpoint.problems
    assert index is not None
    readable = {shard.name for shard in checkpoint.shards}
    tied = tied_names(index.root, index.weight_map.keys() - stored.row_of.keys())
    not_held = f"{index.name} places it here, but this shard does not hold it"
    for name, shard in index.weight_map.items():
        row = stored.row_of.get(name)
        if row is None and name in tied and shard in readable:
            text = f"{index.name} places it here, but no shard holds it; the config explains that with {TIED_KEY}"
            problems.warn(text, Code.INDEX_NAMES_MISSING_TENSOR, shard, name)
        elif row is None and shard in readable:
            problems.error(not_held, Code.INDEX_NAMES_MISSING_TENSOR, shard, name)
        elif row is not None and stored.shards[row].name != shard:
            text = f"is here, but {index.name} places it in {shard}"
            problems.error(text, Code.INDEX_NAMES_OTHER_SHARD, stored.shards[row].name, name)
    for shard in sorted(readable - index.shards):
        problems.warn(f"{index.name} does not list this shard", Code.INDEX_LACKS_SHARD, shard)
    not_listed = f"{index.name} does not list this tensor"
    for name, row in stored.row_of.items():
        if stored.shards[row].name in index.shards and name not in index.weight_map:
            problems.warn(not_listed, Code.INDEX_LACKS_TENSOR, stored.shards[row].name, name)


def _compare_recipes(checkpoint: Checkpoint, stored: Stored) -> dict[str, Any]:
    """Compare the config's recipes with the streams: a reader finds CSF planes by the recipes alone.

    Returns:
        The configs.
    """
    csf_modules = checkpoint.plane_table.modules
    configs = {}
    for name in CONFIG_FILES:
        if not exists(checkpoint.root / name):
            continue
        try:
            config = load_lenient(checkpoint.root / name, name)
        except CheckpointError as error:
            checkpoint.problems.append(Problem.of(error))
            continue
        if (module := repeated_recipe(config.value)) is not None:
            text = "appears twice among the recipes: the name of one is wrong, or the two differ"
            checkpoint.problems.error(text, Code.INVALID_JSON, name, module)
        elif config.oddities:
            checkpoint.problems.warn("; ".join(config.oddities), Code.ODD_JSON, name)
        configs[name] = config.value
    decides = deciding_config(configs) or next(iter(configs), None)
    for name, value in configs.items():
        if (found := recipes(value)) or name == decides:
            _compare_recipe_file(checkpoint, name, found, csf_modules)
    warn_of_contradictions(checkpoint.problems, configs, checkpoint.formats)
    compare_precision(checkpoint, stored, configs)
    return configs


def _compare_recipe_file(checkpoint: Checkpoint, name: str, found: list[Recipe], csf_modules: list[str]) -> None:
    marked = {recipe.module for recipe in found if recipe.is_csf}
    unmarked = {recipe.module for recipe in found if not recipe.is_csf}
    used, homeless = recipes_in_use(csf_modules, marked | unmarked)
    problems = checkpoint.problems
    missing_shards = any(not p.tensor for p in errors(problems))
    for module in sorted(marked - used) if not missing_shards else ():
        text = "is marked weight_scale_encoding: csf, but no shard holds CSF streams of it"
        problems.error(text, Code.RECIPE_WITHOUT_STREAMS, name, module)
    for module in sorted(unmarked & used):
        text = "has CSF streams, but its recipe is not marked weight_scale_encoding: csf"
        problems.error(text, Code.RECIPE_NOT_MARKED, name, module)
    for scale in checkpoint.dense_table.names:
        if (recipe := covering_recipe(module_of(scale), marked)) is not None:
            text = f"is stored dense, but {recipe} is marked weight_scale_encoding: csf"
            problems.error(text, Code.RECIPE_WITHOUT_STREAMS, name, scale)
    for module in sorted(homeless):
        text = "has CSF streams, but no recipe covers it: readers would not find them"
        problems.warn(text, Code.RECIPE_NOT_MARKED, name, module)
