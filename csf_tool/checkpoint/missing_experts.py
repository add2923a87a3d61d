"""Experts and projections that are missing from all layers alike, so that no sibling shows it.

How many experts there are is in the config. A gated block has three projections, or two of which one is fused.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.fault import Fault
from csf_tool.checkpoint.problems import Severity
from csf_tool.checkpoint.stored import Stored
from csf_tool.codes import Code
from csf_tool.disk.json_files import is_count

_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_routed_experts")
"""Keys of configs that state the number of routed experts of a layer."""

_MOST_MISSING = 8
"""Missing experts of a layer that are listed."""

_BLOCKS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""Names of the projections of a gated block: gate, up, down. One without a gate has the other two."""

_FUSED = {"gate_up_proj": "down_proj", "w13": "w2"}
"""Names of fused gates and ups, each with that of the down projection."""


class Statement(NamedTuple):
    """The number of experts of a layer, and where it is stated."""

    number: int
    file: str
    key: str


def _stated_experts(configs: Mapping[str, Any]) -> list[Statement]:
    """The numbers of experts that configs state, at the top or in those of a model's parts."""
    return [
        Statement(block[key], name, key)
        for name, config in configs.items()
        if isinstance(config, dict)
        for block in (config, *config.values())
        if isinstance(block, dict)
        for key in _KEYS
        if is_count(block.get(key)) and block[key] > 1
    ]


def missing_experts(checkpoint: Checkpoint, stored: Stored, configs: Mapping[str, Any]) -> Iterator[Fault]:
    """Layers with FP4 experts that have not as many as configs state."""
    stated = _stated_experts(configs)
    numbers = {statement.number for statement in stated}
    if not numbers or _are_all_there(_modules(checkpoint), numbers):
        return
    place_of = checkpoint.experts.of_tensor
    quantised = {place.group for module in _modules(checkpoint) if (place := checkpoint.experts.of(module))}
    groups: dict[str, dict[int, int]] = defaultdict(dict)
    for row, name in enumerate(stored.names) if quantised else ():
        if (place := place_of(name)) and place.group in quantised:
            groups[place.group].setdefault(place.number, row)
    most = max(map(max, groups.values()), default=0)
    for group, rows in groups.items():
        yield from _of_layer(group, rows, stated, most + 1)


def _modules(checkpoint: Checkpoint) -> Iterable[str]:
    return (*checkpoint.plane_table.modules, *checkpoint.dense_table.modules)


def _are_all_there(modules: Iterable[str], numbers: set[int]) -> bool:
    """Whether each layer has as many experts as stated, told by counts; False where the names do not tell."""
    text = "\n.".join(["", *modules, ""])
    first, total = text.count(".experts.0."), text.count(".experts.")
    return any(total == first * number and text.count(f".experts.{number - 1}.") == first > 0 for number in numbers)


def _of_layer(group: str, rows: dict[int, int], stated: list[Statement], most: int) -> Iterator[Fault]:
    """The fault of a layer that has not the experts that are stated; `most` is the number in the fullest layer.

    That the last ones alone are missing from all layers is a warning: the config may be an older one.
    """
    if len(rows) in {statement.number for statement in stated}:
        return
    wanted = min(stated, key=lambda statement: (statement.number < len(rows), abs(statement.number - len(rows))))
    said = f"{wanted.file} states {wanted.number:,} ({wanted.key})"
    first = rows[min(rows)]
    if len(rows) > wanted.number:
        text = f"{group} has {len(rows):,} experts, but {said}"
        yield Fault(Code.EXPERT_MISSING, text, first, Severity.WARNING, lacks=False)
        return
    missing = [number for number in range(wanted.number) if number not in rows]
    listed = ", ".join(map(str, missing[:_MOST_MISSING])) + (", …" if len(missing) > _MOST_MISSING else "")
    is_proved = most == wanted.number
    text = f"{group} has {len(rows):,} experts, but {said}: {listed} {'is' if len(missing) == 1 else 'are'} missing"
    yield Fault(Code.EXPERT_MISSING, text, first, Severity.ERROR if is_proved else Severity.WARNING)


def missing_projections(checkpoint: Checkpoint, stored: Stored) -> Iterator[Fault]:
    """Gated blocks with FP4 weights of which one projection is nowhere: a warning, for no sibling proves it.

    Where another expert of the layer has it, that is the proof, and `completeness` names those that lack it.
    """
    numbers = Counter((*checkpoint.plane_table.projections, *checkpoint.dense_table.projections))
    wanted = dict(_incomplete_kinds(numbers))
    if not wanted:
        return
    quantised = {module.rpartition(".")[0] for module in _modules(checkpoint)}
    inside: dict[str, dict[str, int]] = defaultdict(dict)
    for row, name in enumerate(stored.names):
        parts = name.split(".")
        for depth in (1, 2):
            if (block := ".".join(parts[:-depth])) in quantised:
                inside[block].setdefault(parts[-depth], row)
    places = ((block, checkpoint.experts.of(f"{block}.x")) for block in inside)
    layer_of = {block: place.group if place else block for block, place in places}
    of_layer: dict[str, set[str]] = defaultdict(set)
    for block, rows in inside.items():
        of_layer[layer_of[block]] |= rows.keys()
    for block, rows in inside.items():
        for present, lacking in wanted.items():
            if rows.keys() >= set(present) and not any(name.startswith(lacking) for name in of_layer[layer_of[block]]):
                there = " and ".join(present)
                text = (
                    f"its block {block} has no {lacking}, although {there} {'is' if len(present) == 1 else 'are'} there"
                )
                yield Fault(Code.COMPANION_MISSING, text, rows[present[0]], Severity.WARNING)


def _incomplete_kinds(numbers: Counter[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The projections that stand together, and the one that some of them lack, by the numbers of each."""
    for gate, up, down in _BLOCKS:
        if numbers[gate] and numbers[up] > numbers[down]:
            yield (gate, up), down
        if numbers[gate] > numbers[up] and numbers[down]:
            yield (gate, down), up
    for fused, down in _FUSED.items():
        if numbers[fused] > numbers[down]:
            yield (fused,), down
