"""Experts that are missing, also from all layers alike: how many there are is in the config."""

from collections import defaultdict
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
    if not numbers or _are_all_there(checkpoint.modules, numbers):
        return
    place_of = checkpoint.experts.of_tensor
    quantised = {place.group for module in checkpoint.modules if (place := checkpoint.experts.of(module))}
    groups: dict[str, dict[int, int]] = defaultdict(dict)
    for row, name in enumerate(stored.names) if quantised else ():
        if (place := place_of(name)) and place.group in quantised:
            groups[place.group].setdefault(place.number, row)
    most = max(map(max, groups.values()), default=0)
    for group, rows in groups.items():
        yield from _of_layer(group, rows, stated, most + 1)


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
