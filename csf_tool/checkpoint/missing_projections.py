"""Projections that are missing: from some experts of a layer, as their siblings prove, or from all blocks alike.

A gated block has three projections, or two of which one is fused.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.fault import Fault
from csf_tool.checkpoint.fp4_modules import WEIGHTS, Fp4Modules
from csf_tool.checkpoint.problems import Severity
from csf_tool.checkpoint.stored import Stored
from csf_tool.codes import Code

_BLOCKS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""Names of the projections of a gated block: gate, up, down. One without a gate has the other two."""

_FUSED = {"gate_up_proj": "down_proj", "w13": "w2"}
"""Names of fused gates and ups, each with that of the down projection."""


def projections_missing_from_some(m: Fp4Modules) -> Iterable[Fault]:
    """Experts that lack a projection that the others of their layer have."""
    numbers = Counter(m.checkpoint.projections)
    if len(set(numbers.values())) < 2:
        return
    by_group: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for ending in WEIGHTS:
        for module, row in m.stored.rows_of(ending).items():
            expert, _, projection = module.rpartition(".")
            if (group := m.unit(module)) != expert:
                by_group[group][expert][projection] = row
    for experts in by_group.values():
        yield from _half_experts(m, experts)


def _half_experts(m: Fp4Modules, experts: dict[str, dict[str, int]]) -> Iterable[Fault]:
    usual = Counter(projection for expert in experts.values() for projection in expert)
    wanted = {projection for projection, number in usual.items() if 2 * number > len(experts)}
    for expert, projections in experts.items():
        for projection in sorted(wanted - projections.keys()):
            module = f"{expert}.{projection}"
            if not m.has_problem(module, WEIGHTS) and not m.has_scale(module):
                text = f"its expert has no {projection}, although the others of its layer have one"
                yield Fault(Code.COMPANION_MISSING, text, min(projections.values()))


def projections_missing_from_all(checkpoint: Checkpoint, stored: Stored) -> Iterator[Fault]:
    """Gated blocks with FP4 weights of which one projection is nowhere: a warning, for no sibling proves it.

    Where another expert of the layer has it, that is the proof: see `projections_missing_from_some`.
    """
    numbers = Counter(checkpoint.projections)
    wanted = dict(_incomplete_kinds(numbers))
    if not wanted:
        return
    quantised = {module.rpartition(".")[0] for module in checkpoint.modules}
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
