"""Modules with FP4 weights: what lies beside each weight, and its siblings, whose names differ in numbers alone."""

import re
from collections import defaultdict
from collections.abc import Iterable, Set
from functools import cached_property
from typing import NamedTuple

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.names import (
    GLOBAL_SCALES,
    INPUT_SCALES,
    SCALE_SUFFIXES,
    STREAM_MARK,
    Patterns,
    is_stream_suffix,
)
from csf_tool.checkpoint.stored import Stored
from csf_tool.codec.formats import CsfFormat
from csf_tool.dtypes import FP4_DTYPES

WEIGHTS = (".weight_packed", ".weight")
"""Endings of the names of FP4 weights, the likelier first."""

_OTHER_SCALE = re.compile(r".*weight.*scale.*|scales?|scale_inv|.*_scales|SCB|.*(absmax|zero|codebook|quant_map).*")
"""Last parts of the names of scales of other formats than FP4."""


class Sibling(NamedTuple):
    """A weight whose scales fit: its module, and their format."""

    module: str
    fmt: CsfFormat


class Fp4Modules:
    """The tensors of a checkpoint by their role in their modules.

    `packed` has the rows of weights of FP4 codes, `formats` the formats of block scales that fit, both by module.
    """

    def __init__(self, checkpoint: Checkpoint, stored: Stored) -> None:
        self.checkpoint = checkpoint
        self.stored = stored
        dtypes, shapes = stored.dtypes, stored.shapes
        self.packed = {
            module: row
            for ending in reversed(WEIGHTS)
            for module, row in stored.rows_of(ending).items()
            if dtypes[row] in FP4_DTYPES and len(shapes[row]) == 2
        }
        self.formats: dict[str, CsfFormat] = {}
        for table in (checkpoint.plane_table, checkpoint.dense_table):
            formats = [kind.fmt for kind in table.kinds]
            self.formats |= zip(table.modules, map(formats.__getitem__, table.kind_of), strict=True)
        self._faulty = {problem.tensor for problem in checkpoint.problems}
        self.pattern = Patterns().of

    @property
    def whole(self) -> Set[str]:
        """Modules that have an FP4 weight, and a block scale that fits."""
        return self.packed.keys() & self.formats.keys()

    def unit(self, module: str) -> str:
        """The experts of a layer that a module belongs to, or else the module around it."""
        expert = self.checkpoint.experts.of(module)
        return expert.group if expert else module.rpartition(".")[0]

    @cached_property
    def _siblings(self) -> dict[tuple[object, ...], dict[CsfFormat, Sibling]]:
        """Weights whose scales fit, one a format, by every key that one whose scales do not may share with them."""
        found: dict[tuple[object, ...], dict[CsfFormat, Sibling]] = defaultdict(dict)
        for module, fmt in self.formats.items():
            if (row := self.packed.get(module)) is not None:
                for key in self.keys(module, row):
                    found[key].setdefault(fmt, Sibling(module, fmt))
        return dict(found)

    def keys(self, module: str, row: int) -> list[tuple[object, ...]]:
        """Keys that a weight shares with its siblings: those of the same projection, and those of the same block."""
        is_f4 = self.stored.dtypes[row] == "F4"  # U8 and I8 hold the same codes
        pattern = self.pattern(module)
        return [(pattern, is_f4, self.stored.shapes[row]), (pattern.rpartition(".")[0], is_f4)]

    def siblings_of(self, module: str, row: int) -> list[Sibling]:
        """The siblings of a weight, the likelier first."""
        return [sibling for key in self.keys(module, row) for sibling in self._siblings.get(key, {}).values()]

    def patterns_of(self, modules: Iterable[str]) -> set[str]:
        """The patterns of modules: siblings have the same one."""
        return set(map(self.pattern, modules))

    @cached_property
    def scaled_otherwise(self) -> set[str]:
        """Modules with scales of other kinds: of INT8, FP8, and other libraries' formats."""
        known = {ending[1:] for ending in (*SCALE_SUFFIXES, *GLOBAL_SCALES, *INPUT_SCALES)}
        lasts = [last for last in self.stored.rows_by_last if last not in known and _OTHER_SCALE.fullmatch(last)]
        stems = (stem for last in lasts for stem in self.stored.rows_of(f".{last}"))
        return {stem.removesuffix(".weight") for stem in stems}  # `weight.absmax` is bitsandbytes'

    @cached_property
    def _in_streams(self) -> set[str]:
        """The names of scales that have a stream, whether or not it can be read."""
        lasts = [last for last in self.stored.rows_by_last if STREAM_MARK in last and is_stream_suffix(f".{last}")]
        return {scale for last in lasts for scale in self.stored.rows_of(f".{last}")}

    def has_scale(self, module: str) -> bool:
        """Whether a module has a block scale in any form: dense, or as a stream."""
        rows_of, streams = self.stored.rows_of, self._in_streams
        return any(module in rows_of(ending) or module + ending in streams for ending in SCALE_SUFFIXES)

    @cached_property
    def with_global(self) -> set[str]:
        """Modules with a global scale."""
        return {module for ending in GLOBAL_SCALES for module in self.stored.rows_of(ending)}

    @cached_property
    def held_otherwise(self) -> set[str]:
        """Modules with integer tensors of other names, which are weights of another library."""
        known = {ending[1:] for ending in (*SCALE_SUFFIXES, *GLOBAL_SCALES, *INPUT_SCALES, *WEIGHTS)}
        stored = self.stored
        lasts = [last for last in stored.rows_by_last if last not in known and STREAM_MARK not in last]
        integers = (*FP4_DTYPES, "U32", "I32")
        return {
            module
            for last in lasts
            for module, row in stored.rows_of(f".{last}").items()
            if stored.dtypes[row] in integers
        }

    def has_problem(self, module: str, endings: Iterable[str]) -> bool:
        """Whether a tensor of a module with one of these endings has a problem already, whatever it is."""
        return any(module + ending in self._faulty for ending in endings)
