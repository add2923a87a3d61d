"""Routed experts: which number in a module's name is its expert's, told by the modules beside it.

Most checkpoints call them `experts.N.`, which their names alone tell. In other orders and depths
(`mlp.expert_3.up`, `moe.gate_proj.3`) the structure does: alike modules that differ in one number, other than the
layer's, each of them a block of matrices and nothing else. Layers have norms, too; shared experts and attention's heads
are named as what they are.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from math import prod
from types import MappingProxyType
from typing import NamedTuple, Self

from csf_tool.checkpoint.names import GLOBAL_SCALES, STREAM_MARK, layer_of, module_of, parse_stream_name
from csf_tool.checkpoint.stored import Stored

_USUAL = re.compile(r"(?:.*\.)?experts\.(\d{1,9})\.")

_NUMBER = re.compile(r"(?:(?<=[._-])|^|(?<=[A-Za-z]{3}))\d{1,9}(?=[._-]|$)")
"""A number in a name, which is a part of its own or follows a word, but not the one of `w1`."""

_EXPERT = re.compile(r"experts?", re.IGNORECASE)
_ALL_EXPERTS = re.compile(r"experts(?![a-z])", re.IGNORECASE)
_NO_EXPERT = re.compile(r"shared|share(?![a-z])|attn|attention|heads?(?![a-z])", re.IGNORECASE)
_LAYER_BEFORE = re.compile(r"(?:^|[._])(?:layers?|blocks?|stages?|h)[._-]?$", re.IGNORECASE)
"""Words of modules that are alike in many copies, and no routed experts."""

_FEW = 2
_MANY = 4
"""Least number of alike siblings that are experts: where a number before theirs counts layers, and where none does."""

_MOST_PROJECTIONS = 20
"""Matrices of a block that are looked at."""

_MOST_NUMBERS = 8
"""Numbers in the name of a module that is looked at."""


class Expert(NamedTuple):
    """The place of a module among experts: the module that holds all of its layer, its number, its projection."""

    group: str
    number: int
    projection: str


class Experts:
    """The routed experts of a checkpoint, by the names of its modules.

    `slots` are modules' names with every number as `*`, each with which of its numbers is the expert's.
    """

    def __init__(self, slots: Mapping[str, int] = MappingProxyType({}), stored: Stored | None = None) -> None:
        self._slots = slots
        self._stored = stored
        self.of = cache(self._of)

    @classmethod
    def among(cls, modules: Sequence[str], kinds: Sequence[object], stored: Stored) -> Self:
        """The experts among quantised modules; those of one kind have scales of one format and shape.

        Where all are called as usual, nothing else is looked at.
        """
        found: dict[str, list[_Numbered]] = defaultdict(list)
        for module, kind in zip(modules, kinds, strict=True):
            numbers = () if _USUAL.match(f"{module}.") else tuple(_NUMBER.findall(module))
            if 0 < len(numbers) <= _MOST_NUMBERS and "*" not in module:
                found[_NUMBER.sub("*", module)].append(_Numbered(module, numbers, kind))
        search = _Search(found, stored)
        slots = {pattern: slot for pattern in found if (slot := search.slot(pattern)) is not None}
        return cls(slots, stored)

    def and_those(self, others: "Experts") -> "Experts":
        """All of these and of others."""
        return Experts({**self._slots, **others._slots}, self._stored) if others._slots else self

    def _of(self, module: str) -> Expert | None:
        """The place of a module among experts, or None for any other."""
        if usual := _USUAL.match(f"{module}."):
            return _expert(module, usual.start(1), usual.end(1))
        if not self._slots or (slot := self._slots.get(_NUMBER.sub("*", module))) is None:
            return None
        return _expert(module, *list(_NUMBER.finditer(module))[slot].span())

    def of_tensor(self, name: str) -> Expert | None:
        """The place of a tensor's module, for a weight, a scale or a stream of one."""
        stream = parse_stream_name(name)
        return self.of(module_of(stream.scale if stream else name))

    def group_of(self, name: str) -> str | None:
        """The module that holds the experts of a tensor's layer (`...mlp.experts`), or None for any other tensor."""
        expert = self.of_tensor(name)
        return expert.group if expert else None

    def are_all_in(self, scale: str, rows: int) -> bool:
        """Whether a scale has the rows of all experts, one after another: by its name, or a global scale for each."""
        module = module_of(scale)
        if _ALL_EXPERTS.search(module) and not _NO_EXPERT.search(module):
            return True
        if self._stored is None:
            return False
        found = [row for ending in GLOBAL_SCALES if (row := self._stored.row_of.get(module + ending)) is not None]
        numbers = [prod(self._stored.shapes[row]) for row in found]
        return any(1 < number < rows and rows % number == 0 for number in numbers)

    def projection_of(self, name: str) -> str:
        """The projection of a scale: `gate_proj`, `w2`, ..."""
        module = module_of(name)
        expert = self.of(module)
        return expert.projection if expert else module.rpartition(".")[2]

    def layer_of(self, name: str) -> str:
        """The layer of a tensor; an expert's number that stands before the layer's is none."""
        expert = self.of_tensor(name)
        return expert.group if expert and "*" in expert.group else layer_of(name)


USUAL = Experts()
"""Experts that are called `experts.N.`."""


def _expert(module: str, begin: int, end: int) -> Expert:
    """The place of a module whose expert's number lies there in its name."""
    before, number, after = module[:begin], int(module[begin:end]), module[end:]
    head, _, part = before.rpartition(".")
    middle, dot, projection = after.rpartition(".")
    if dot and _NUMBER.search(middle):  # the layer's number comes after the expert's
        return Expert(f"{before}*{middle}", number, projection)
    if dot:
        return Expert(head, number, projection)
    if own := _EXPERT.sub("", part + after).strip("._-"):  # `gate_proj_3`, `expert_3_up`
        return Expert(head, number, own)
    group, _, projection = head.rpartition(".")
    return Expert(head if _EXPERT.search(projection) else group, number, projection)


class _Numbered(NamedTuple):
    """A module with the numbers in its name, and its kind."""

    module: str
    numbers: tuple[str, ...]
    kind: object


class _Search:
    """The search for the number that is the expert's, in modules by their patterns."""

    def __init__(self, modules: Mapping[str, list[_Numbered]], stored: Stored) -> None:
        self._modules = modules
        self._stored = stored
        self._blocks: dict[str, list[str]] = defaultdict(list)
        for pattern in modules:
            pieces = pattern.split("*")
            for slot in range(len(pieces) - 1):
                self._blocks[_block(pieces, slot)].append(pattern)

    def slot(self, pattern: str) -> int | None:
        """The place of the expert's number among those of a pattern, or None."""
        pieces = pattern.split("*")
        named = [slot for slot, piece in enumerate(pieces[:-1]) if _EXPERT.search(piece)]
        candidates = [*reversed(named), *reversed(range(len(pieces) - 1))]
        return next((slot for slot in candidates if self._is_expert(pattern, pieces, slot)), None)

    def _is_expert(self, pattern: str, pieces: list[str], slot: int) -> bool:
        before, after = pieces[slot], "*".join(pieces[slot + 1 :])
        if _NO_EXPERT.search(before) or _NO_EXPERT.search(after) or _LAYER_BEFORE.search(before):
            return False
        if _EXPERT.search(before):
            return True
        least = _FEW if len(pieces) > 2 else _MANY
        return self._alike(pattern, slot) >= least and self._is_block(pattern, pieces, slot)

    def _alike(self, pattern: str, slot: int) -> int:
        """The number of siblings of one kind that differ in this number alone."""
        found: dict[object, set[str]] = defaultdict(set)
        for _, numbers, kind in self._modules[pattern]:
            found[numbers[:slot], numbers[slot + 1 :], kind].add(numbers[slot])
        return max(map(len, found.values()))

    def _is_block(self, pattern: str, pieces: list[str], slot: int) -> bool:
        """Whether each copy is a block of two matrices or more, and of nothing else, as a feed-forward block is."""
        block = _block(pieces, slot)
        if block in self._with_vectors:
            return False
        mine = self._numbers(pattern)
        return any(
            2 * len(mine & self._numbers(other)) > len(mine)
            for other in self._blocks[block][:_MOST_PROJECTIONS]
            if other != pattern
        )

    def _numbers(self, pattern: str) -> set[tuple[str, ...]]:
        return {numbers for _, numbers, _ in self._modules[pattern]}

    @cached_property
    def _with_vectors(self) -> set[str]:
        """Patterns up to a number with modules under them that hold no matrix, such as norms."""
        stored = self._stored
        dimensions: dict[str, int] = defaultdict(int)
        for name, shape in zip(stored.names, stored.shapes, strict=True):
            if STREAM_MARK not in name:
                module = module_of(name)
                dimensions[module] = max(dimensions[module], len(shape))
        vectors = {_NUMBER.sub("*", module) for module, most in dimensions.items() if most < 2}
        pieces = [pattern.split("*", _MOST_NUMBERS) for pattern in vectors]
        return {"*".join(some[:end]) + "*" for some in pieces for end in range(1, len(some))}


def _block(pieces: list[str], slot: int) -> str:
    """The pattern up to a number, or up to the projection that the number follows: what a block's matrices share."""
    begin, last = "*".join(pieces[: slot + 1]), pieces[-1]
    if slot < len(pieces) - 2 or "." in last:
        return f"{begin}*"
    head, _, part = begin.rpartition(".")
    return f"{head if _EXPERT.sub('', part + last).strip('._-') else head.rpartition('.')[0]}."


def counts_experts(layer: str) -> bool:
    """Whether the number in a layer's name may be an expert's."""
    return bool(_EXPERT.search(layer))


def projections_of(modules: Iterable[str], kinds: Sequence[object], stored: Stored) -> list[str]:
    """The projection of each module. The last parts of their names tell, unless there are numbers in these."""
    modules = list(modules)
    lasts = [module.rpartition(".")[2] for module in modules]
    if not any(map(_NUMBER.search, set(lasts))):
        return lasts
    experts = Experts.among(modules, kinds, stored)
    return [
        expert.projection if (expert := experts.of(module)) else last
        for module, last in zip(modules, lasts, strict=True)
    ]
