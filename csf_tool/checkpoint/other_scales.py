"""Scales that are no planes: every tensor that looks like a scale, with its weight and its kind.

A checkpoint whose scales are all planes, or streams, is told so by counts; nothing else is looked at then.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from csf_tool.checkpoint.names import SCALE_SUFFIXES, STREAM_MARK, module_of
from csf_tool.checkpoint.plane_tables import DenseTable, PlaneTable
from csf_tool.checkpoint.scale_kinds import BYTE_DTYPES, Looks, ScaleKind, kind_of, second_level
from csf_tool.checkpoint.stored import Located, Stored
from csf_tool.dtypes import PLAIN_DTYPES

_LIKE_A_SCALE = re.compile(r"scal(?:e|ing)|absmax", re.IGNORECASE)

_SCALE = r"(?:scales?|scaling(?:_factors?)?)"
_ENDING = re.compile(
    rf"(?:[._](?:weights?|block|group|quant))*[._][wq]?(?:{_SCALE}|absmax)"
    r"(?:_inv|_e8m0|_ue8m0|_shuffled|_swizzled|_interleaved)?$"
)
"""The ending of a scale's name; what stands before it is its weight's, or begins it."""

_SECOND_LEVEL = re.compile(rf"(?:[._]weights?)?(?:_scale_2|[._](?:global_{_SCALE}|per_tensor_scale|weight_scale_2))$")
_OF_ACTIVATIONS = re.compile(rf"(?:^|.*_)(?:input|output|act|activation|pre_quant|[kqv])_(?:global_)?{_SCALE}(?:_2)?")

_NEVER_SCALES = {"weight", "weight_packed", "qweight", "bias", "blocks"}
"""Last parts of names that are never those of scales, whatever stands beside them."""

_WEIGHTS = (
    ".weight_packed", ".weight", "", "_blocks", ".blocks", "_packed", "_weight", "_weight_packed", ".qweight",
    "_qweight", ".weight_blocks",
)  # fmt: skip
"""Endings of weights' names in place of the scale's."""

_MOST_BESIDE = 100
"""Tensors of one module among which a scale's weight is looked for."""


class OtherScale(NamedTuple):
    """A scale that is no plane, its weight if it has one, and its kind."""

    scale: Located
    weight: Located | None
    kind: ScaleKind


class ScaleGroup(NamedTuple):
    """Scales of one kind and dtype."""

    kind: ScaleKind
    dtype: str
    scales: list[OtherScale]

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(other.scale.tensor.nbytes for other in self.scales)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Their shapes, each once."""
        return list(dict.fromkeys(other.scale.tensor.shape for other in self.scales))


def find_other_scales(csf: PlaneTable, dense: DenseTable) -> list[OtherScale]:
    """Every scale among the stored tensors that is no plane, in the order in which they are stored."""
    stored = dense.stored
    lasts = [last for last in stored.rows_by_last if STREAM_MARK not in last and _LIKE_A_SCALE.search(last)]
    unnamed = [last for last in stored.rows_by_last if _may_be_unnamed(last, stored)]
    firsts = [last for last in lasts if not _OF_ACTIVATIONS.fullmatch(last) and not _SECOND_LEVEL.search(f".{last}")]
    known = [last for last in firsts if f".{last}" in SCALE_SUFFIXES]
    if sum(len(stored.rows_by_last[last]) for last in known) == len(dense):
        firsts = [last for last in firsts if last not in known]
    if not firsts and not unnamed:
        return []
    search = _Search(stored, set(dense.scales))
    found = {row: other for last in firsts for row, other in search.of(last)}
    planes = {*csf.modules, *dense.modules}
    scaled = planes.union(module_of(other.weight.tensor.name) for other in found.values() if other.weight)
    found |= {row: other for last in unnamed for row, other in search.by_shape(last, scaled)}
    if found:
        found |= {row: other for last in lasts for row, other in search.second_level(last, planes)}
        found = _without_companions(found, planes)
    return [found[row] for row in sorted(found)]


def _may_be_unnamed(last: str, stored: Stored) -> bool:
    """Whether tensors whose names do not say so may be scales, by the first of them: bytes in two dimensions."""
    row = stored.rows_by_last[last][0]
    if len(stored.shapes[row]) < 2 or stored.dtypes[row] not in BYTE_DTYPES or last in _NEVER_SCALES:
        return False
    return STREAM_MARK not in last and not _LIKE_A_SCALE.search(last)


def _without_companions(found: dict[int, OtherScale], planes: set[str]) -> dict[int, OtherScale]:
    """The scales, those beside the block scales of an FP4 weight as what they are: scales of scales.

    Those beside planes are left out, as their global scales are.
    """
    fp4 = {o.weight.tensor.name: o.kind for o in found.values() if o.weight and o.kind.is_fp4 and o.kind.group_size}
    result = {}
    for row, other in found.items():
        if other.weight is None or other.kind.is_fp4:
            result[row] = other
        elif of := fp4.get(other.weight.tensor.name):
            tensor = other.scale.tensor
            result[row] = other._replace(kind=second_level(Looks(tensor.dtype, tensor.shape), of))
        elif module_of(other.weight.tensor.name) not in planes:
            result[row] = other
    return result


def grouped(scales: Iterable[OtherScale]) -> list[ScaleGroup]:
    """Scales by kind and dtype, the FP4 ones and the largest first."""
    groups: dict[tuple[ScaleKind, str], list[OtherScale]] = defaultdict(list)
    for other in scales:
        groups[other.kind, other.scale.tensor.dtype].append(other)
    result = [ScaleGroup(*key, members) for key, members in groups.items()]
    return sorted(result, key=lambda group: (not group.kind.is_fp4, -group.nbytes))


def _alike(one: str, other: str) -> int:
    """The number of characters that two names have in common at their beginning."""
    return next((i for i, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs), len(one))


class _Search:
    """The search for weights of scales, which are mostly called alike."""

    def __init__(self, stored: Stored, planes: set[int]) -> None:
        self._stored = stored
        self._planes = planes
        self._known: dict[object, ScaleKind | None] = {}
        self._kind_of_stem: dict[str, ScaleKind] = {}

    def of(self, last: str) -> Iterator[tuple[int, OtherScale]]:
        """The scales with this last part of their names, each with its row."""
        stored = self._stored
        ending = _ENDING.search(f".{last}")
        cut = len(ending[0]) if ending else len(last) + 1
        for row in stored.rows_by_last[last]:
            if row in self._planes or stored.row_of[stored.names[row]] != row:
                continue  # a name that stands twice is said to; the other of its tensors may be a plane
            stem = stored.names[row][:-cut]
            weight = self._weight(stem, row)
            if ending is None and weight is None:
                continue  # `scale_shift_table`: of nothing, and not called as a scale of something is
            if kind := self._kind(stem, row, weight):
                self._kind_of_stem[stem] = kind
                yield row, OtherScale(stored[row], None if weight is None else stored[weight], kind)

    def by_shape(self, last: str, scaled: set[str]) -> Iterator[tuple[int, OtherScale]]:
        """The tensors with this last part of their names that fit FP4 codes in their module as only block scales do.

        Weights in `scaled` modules have their scales, and what fits them are zero points or the like.
        """
        stored = self._stored
        for row in stored.rows_by_last[last]:
            module = module_of(stored.names[row])
            others = self._packed_in.get(module, [])
            if module in scaled or len(others) > _MOST_BESIDE:
                continue
            kinds = [(weight, self._kind(module, row, weight)) for weight in others if weight != row]
            fitting = {weight: kind for weight, kind in kinds if kind and kind.is_fp4 and kind.group_size}
            if fitting:
                weight = max(fitting, key=lambda beside: _alike(stored.names[beside], stored.names[row]))
                yield row, OtherScale(stored[row], stored[weight], fitting[weight])

    def second_level(self, last: str, planes: set[str]) -> Iterator[tuple[int, OtherScale]]:
        """The scales of the found scales, with this last part of their names."""
        stored = self._stored
        if not (ending := _SECOND_LEVEL.search(f".{last}")):
            return
        for row in stored.rows_by_last[last]:
            stem = stored.names[row][: -len(ending[0])]
            if stem not in planes and (of := self._kind_of_stem.get(stem)):
                kind = second_level(Looks(stored.dtypes[row], stored.shapes[row]), of)
                yield row, OtherScale(stored[row], None, kind)

    def _kind(self, stem: str, row: int, weight: int | None) -> ScaleKind | None:
        stored = self._stored
        scale = Looks(stored.dtypes[row], stored.shapes[row])
        beside = None if weight is None else Looks(stored.dtypes[weight], stored.shapes[weight])
        has_biases = beside is not None and beside.dtype == "U32" and f"{stem}.biases" in stored.row_of
        looks = scale, beside, has_biases
        if looks not in self._known:
            self._known[looks] = kind_of(scale, beside, has_biases=has_biases)
        return self._known[looks]

    def _weight(self, stem: str, scale: int) -> int | None:
        """The row of the weight of a scale: the tensor that is called so, or the only one that may be meant."""
        row_of = self._stored.row_of
        for ending in _WEIGHTS:
            if (row := row_of.get(stem + ending)) is not None and row != scale:
                return row
        if len(self._stored.shapes[scale]) < 2:
            return None
        beside = self._packed_in.get(stem) or self._packed_in.get(stem.rpartition(".")[0], [])
        if len(beside) > _MOST_BESIDE:
            return None
        meant = [row for row in beside if self._stored.names[row].startswith(stem)]
        return meant[0] if len(meant) == 1 else None

    @cached_property
    def _packed_in(self) -> dict[str, list[int]]:
        """The rows of quantised tensors that are called neither weight nor scale, by module."""
        stored = self._stored
        found: dict[str, list[int]] = defaultdict(list)
        for row, name in enumerate(stored.names):
            module, _, last = name.rpartition(".")
            is_quantised = len(stored.shapes[row]) > 1 and stored.dtypes[row] not in PLAIN_DTYPES
            if is_quantised and STREAM_MARK not in last and not _LIKE_A_SCALE.search(last):
                found[module].append(row)
        return found
