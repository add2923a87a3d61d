"""Completeness of a quantised checkpoint: scales without weights, weights without scales, scales that do not fit.

Only headers are read, and for a sound checkpoint only sets of names are compared. A name alone proves little, for there
are many ways to store a weight: a fault is proved by siblings, tensors whose names differ only in their numbers. What
no sibling proves is a warning or nothing.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.fault import Fault
from csf_tool.checkpoint.global_scales import unusable_global_scales
from csf_tool.checkpoint.missing_experts import missing_experts, missing_projections
from csf_tool.checkpoint.names import (
    GLOBAL_SCALES,
    INPUT_SCALES,
    STREAM_MARK,
    WEIGHTS_OF_SCALE,
    Patterns,
    is_stream_suffix,
)
from csf_tool.checkpoint.numbered import numbered
from csf_tool.checkpoint.plane_tables import DensePlane, Misfit
from csf_tool.checkpoint.planes import PACKED_DTYPES, weight_geometry
from csf_tool.checkpoint.problems import Severity
from csf_tool.checkpoint.scale_kinds import wrong_label
from csf_tool.checkpoint.stored import Stored
from csf_tool.codec.formats import FORMATS, NVFP4, CsfFormat, nearest_format
from csf_tool.codes import Code
from csf_tool.disk.paths import names_in
from csf_tool.disk.reader import is_file

_SCALES = tuple(WEIGHTS_OF_SCALE)
_WEIGHTS = (".weight_packed", ".weight")

_FP4_DTYPES = (*PACKED_DTYPES, "F4")
_SCALE_DTYPES = {dtype for fmt in FORMATS for dtype in fmt.dense_dtypes}
_PLAIN_DTYPES = ("BF16", "F16", "F32")

_OTHER_SCALE = re.compile(r".*weight.*scale.*|scales?|scale_inv|.*_scales|SCB|.*(absmax|zero|codebook|quant_map).*")
"""Last parts of the names of scales of other formats than FP4."""


class _Sibling(NamedTuple):
    """A weight whose scales fit: its module, and their format."""

    module: str
    fmt: CsfFormat


def check_completeness(checkpoint: Checkpoint, stored: Stored, configs: Mapping[str, Any]) -> None:
    """Note the tensors that a checkpoint lacks, and count them."""
    faults = unusable_global_scales(checkpoint, stored)
    is_all_here = not _may_lie_elsewhere(checkpoint)
    if is_all_here:
        faults += [*missing_experts(checkpoint, stored, configs), *missing_projections(checkpoint, stored)]
    if not _is_complete(checkpoint, stored):
        search = _Search(checkpoint, stored)
        faults += search.misfits()
        if is_all_here:
            faults += [*search.without_scale(), *search.orphans(), *search.without_global(), *search.without_input()]
            faults += search.halves()
    checkpoint.problems += [fault.problem(stored) for fault in faults]
    checkpoint.incomplete = dict(Counter(fault.code for fault in faults if fault.lacks))


def _is_complete(checkpoint: Checkpoint, stored: Stored) -> bool:
    """Whether all FP4 weights have the same tensors beside them, in the same order, so that no search is needed.

    This is true of sound checkpoints whose experts alone are quantised, which are the largest.
    """
    csf, dense = checkpoint.plane_table, checkpoint.dense_table
    if (dense and csf) or sum(len(stored.rows_by_last.get(ending[1:], ())) for ending in _SCALES) != len(dense):
        return False
    table = dense or csf
    numbers = set(Counter(table.projections).values())
    return len(numbers) < 2 and all(
        modules in ([], table.modules)
        for modules in (
            _packed_modules(stored),
            *(_modules_with(stored, ending) for ending in (*GLOBAL_SCALES, *INPUT_SCALES)),
        )
    )


def _packed_modules(stored: Stored) -> list[str]:
    """The modules of all weights that may hold FP4 codes."""
    names, dtypes = stored.names, stored.dtypes
    return [
        names[row][: -len(ending)]
        for ending in _WEIGHTS
        for row in stored.rows_by_last.get(ending[1:], ())
        if dtypes[row] in _FP4_DTYPES
    ]


def _modules_with(stored: Stored, ending: str) -> list[str]:
    names, length = stored.names, len(ending)
    return [names[row][:-length] for row in stored.rows_by_last.get(ending[1:], ())]


def _may_lie_elsewhere(checkpoint: Checkpoint) -> bool:
    """Whether some shards were not read, which may hold the tensors that seem to be missing."""
    if checkpoint.lacking:
        return True
    if not is_file(checkpoint.path):
        return False
    is_numbered = numbered(checkpoint.path.name) is not None
    return is_numbered or any(name.endswith(".index.json") for name in names_in(checkpoint.root))


class _Search:
    """The tensors of a checkpoint by their role in their modules, and their faults."""

    def __init__(self, checkpoint: Checkpoint, stored: Stored) -> None:
        self._checkpoint = checkpoint
        self._stored = stored
        dtypes, shapes = stored.dtypes, stored.shapes
        self._packed = {
            module: row
            for ending in reversed(_WEIGHTS)
            for module, row in stored.rows_of(ending).items()
            if dtypes[row] in _FP4_DTYPES and len(shapes[row]) == 2
        }
        self._formats: dict[str, CsfFormat] = {}
        for table in (checkpoint.plane_table, checkpoint.dense_table):
            formats = [kind.fmt for kind in table.kinds]
            self._formats |= zip(table.modules, map(formats.__getitem__, table.kind_of), strict=True)
        self._named = {problem.tensor for problem in checkpoint.problems}
        self._pattern = Patterns().of

    # What is compared

    def _unit(self, module: str) -> str:
        """The experts of a layer that a module belongs to, or else the module around it."""
        expert = self._checkpoint.experts.of(module)
        return expert.group if expert else module.rpartition(".")[0]

    @cached_property
    def _siblings(self) -> dict[tuple[object, ...], dict[CsfFormat, _Sibling]]:
        """Weights whose scales fit, one a format, by every key that one whose scales do not may share with them."""
        found: dict[tuple[object, ...], dict[CsfFormat, _Sibling]] = defaultdict(dict)
        for module, fmt in self._formats.items():
            if (row := self._packed.get(module)) is not None:
                for key in self._keys(module, row):
                    found[key].setdefault(fmt, _Sibling(module, fmt))
        return dict(found)

    def _keys(self, module: str, row: int) -> list[tuple[object, ...]]:
        """Keys that a weight shares with its siblings: those of the same projection, and those of the same block."""
        is_f4 = self._stored.dtypes[row] == "F4"  # U8 and I8 hold the same codes
        pattern = self._pattern(module)
        return [(pattern, is_f4, self._stored.shapes[row]), (pattern.rpartition(".")[0], is_f4)]

    def _siblings_of(self, module: str, row: int) -> list[_Sibling]:
        """The siblings of a weight, the likelier first."""
        return [sibling for key in self._keys(module, row) for sibling in self._siblings.get(key, {}).values()]

    def _pattern_set(self, modules: Iterable[str]) -> set[str]:
        return set(map(self._pattern, modules))

    @cached_property
    def _scaled_otherwise(self) -> set[str]:
        """Modules with scales of other kinds: of INT8, FP8, and other libraries' formats."""
        known = {ending[1:] for ending in (*_SCALES, *GLOBAL_SCALES, *INPUT_SCALES)}
        lasts = [last for last in self._stored.rows_by_last if last not in known and _OTHER_SCALE.fullmatch(last)]
        stems = (stem for last in lasts for stem in self._stored.rows_of(f".{last}"))
        return {stem.removesuffix(".weight") for stem in stems}  # `weight.absmax` is bitsandbytes'

    @cached_property
    def _in_streams(self) -> set[str]:
        """The names of scales that have a stream, whether or not it can be read."""
        lasts = [last for last in self._stored.rows_by_last if STREAM_MARK in last and is_stream_suffix(f".{last}")]
        return {scale for last in lasts for scale in self._stored.rows_of(f".{last}")}

    def _has_scale(self, module: str) -> bool:
        """Whether a module has a block scale in any form: dense, or as a stream."""
        rows_of, streams = self._stored.rows_of, self._in_streams
        return any(module in rows_of(ending) or module + ending in streams for ending in _SCALES)

    @cached_property
    def _with_global(self) -> set[str]:
        return {module for ending in GLOBAL_SCALES for module in self._stored.rows_of(ending)}

    # What is wrong

    def without_scale(self) -> Iterable[Fault]:
        """FP4 weights that have no block scale."""
        for module in sorted(self._packed.keys() - self._formats.keys()):
            row = self._packed[module]
            if self._has_scale(module) or module in self._scaled_otherwise or self._is_named(module, _SCALES):
                continue
            if siblings := self._siblings_of(module, row):
                text = f"has no block scale, but {siblings[0].module} has one: the values of this weight are lost"
                yield Fault(Code.WEIGHT_WITHOUT_SCALE, text, row)
            elif module in self._with_global:
                text = "has a global scale but no block scale: the values of this weight are lost"
                yield Fault(Code.WEIGHT_WITHOUT_SCALE, text, row)

    def misfits(self) -> Iterable[Fault]:
        """Block scales beside FP4 weights that are not of their shape or dtype."""
        for ending in _SCALES:
            rows = self._stored.rows_of(ending)
            for module in [module for module in rows if module not in self._formats]:
                weight = self._packed.get(module)
                if weight is None or not (fault := self._misfit(module, rows[module], weight)):
                    continue
                shape = self._stored.shapes[fault.row]
                lines = shape[0] if shape else 1
                elements = self._stored.nbytes(fault.row)
                fmt = nearest_format(self._stored.dtypes[fault.row])
                located = self._stored[fault.row]
                plane = DensePlane(located.tensor.name, fmt, lines, elements // max(lines, 1), located)
                self._checkpoint.misfits.append(Misfit(plane, fault.text))
                yield fault

    def _misfit(self, module: str, scale: int, weight: int) -> Fault | None:
        dtype, shape = self._stored.dtypes[scale], self._stored.shapes[scale]
        if siblings := self._siblings_of(module, weight):
            return self._beside_siblings(siblings, scale, weight)
        if dtype not in _SCALE_DTYPES or len(shape) != 2:
            return None
        rows, packed = self._stored.shapes[weight]
        k = packed if self._stored.dtypes[weight] == "F4" else 2 * packed
        group = k // shape[1] if shape[0] == rows and shape[1] and not k % shape[1] else 0
        if group in {fmt.group_size for fmt in FORMATS}:
            return Fault(Code.SCALE_LABEL, wrong_label(dtype, group), scale, Severity.WARNING)
        if group or dtype == "U8":
            return None  # it may be another tool's format
        return self._of_wrong_shape(nearest_format(dtype), scale, weight, Severity.WARNING)

    def _beside_siblings(self, siblings: list[_Sibling], scale: int, weight: int) -> Fault:
        dtype, formats = self._stored.dtypes[scale], [sibling.fmt for sibling in siblings]
        for fmt in formats:
            geometry = weight_geometry(self._stored[weight], fmt, [])
            if geometry and self._stored.shapes[scale] == (geometry.rows, geometry.cols):
                text = f"is {dtype}, but {fmt.title} scales are {'/'.join(fmt.dense_dtypes)}"
                return Fault(Code.SCALE_LABEL, text, scale)
        fmt = next((fmt for fmt in formats if dtype in fmt.dense_dtypes), formats[0])
        return self._of_wrong_shape(fmt, scale, weight, Severity.ERROR)

    def _of_wrong_shape(self, fmt: CsfFormat, scale: int, weight: int, severity: Severity) -> Fault:
        geometry = weight_geometry(self._stored[weight], fmt, [])
        shape = "x".join(map(str, self._stored.shapes[scale])) or "one number"
        wants = f"{geometry.rows}x{geometry.cols}" if geometry else f"groups of {fmt.group_size}"
        return Fault(Code.SCALE_SHAPE, f"scale is {shape}, but its weight needs {wants}", scale, severity)

    def orphans(self) -> Iterable[Fault]:
        """Block scales whose weight is missing or holds no FP4 codes, and global scales without either."""
        stored = self._stored
        table, lone = self._checkpoint.plane_table, self._formats.keys() - self._packed.keys()
        places = zip(table.modules, table.fixed, strict=True) if lone else ()
        found = {module: row for module, row in places if module in lone}
        for ending in _SCALES:
            rows = stored.rows_of(ending)
            for module in rows.keys() - self._packed.keys() if rows else ():
                if stored.dtypes[rows[module]] in _SCALE_DTYPES and len(stored.shapes[rows[module]]) == 2:
                    found.setdefault(module, rows[module])
        found |= self._lone_globals(found)
        if found:
            yield from self._of_no_weight(found)

    def _lone_globals(self, known: dict[str, int]) -> dict[str, int]:
        """Global scales of modules that have neither weight nor block scale."""
        return {
            module: rows[module]
            for ending in GLOBAL_SCALES
            if (rows := self._stored.rows_of(ending))
            for module in rows.keys() - self._packed.keys()
            if module not in known
        }

    def _of_no_weight(self, found: dict[str, int]) -> Iterable[Fault]:
        stored = self._stored
        whole = self._pattern_set(self._packed.keys() & self._formats.keys())
        for module in sorted(found):
            rows = [stored.rows_of(ending)[module] for ending in _WEIGHTS if module in stored.rows_of(ending)]
            dtype = stored.dtypes[rows[0]] if rows else ""
            is_fp8 = dtype and dtype not in _PLAIN_DTYPES
            if is_fp8 or self._is_named(module, (*_WEIGHTS, *_SCALES)):
                continue
            is_proved = self._pattern(module) in whole
            if not is_proved and (module in self._scaled_otherwise or module in self._held_otherwise):
                continue
            why = f"the tensor beside it is {dtype}, not FP4 codes" if dtype else "there is no weight beside it"
            siblings = ", although its siblings have one" if is_proved and not dtype else ""
            text = f"is a scale without a weight: {why}{siblings}"
            severity = Severity.ERROR if is_proved else Severity.WARNING
            yield Fault(Code.SCALE_WITHOUT_WEIGHT, text, found[module], severity)

    @cached_property
    def _held_otherwise(self) -> set[str]:
        """Modules with integer tensors of other names, which are weights of another library."""
        known = {ending[1:] for ending in (*_SCALES, *GLOBAL_SCALES, *INPUT_SCALES, *_WEIGHTS)}
        stored = self._stored
        lasts = [last for last in stored.rows_by_last if last not in known and STREAM_MARK not in last]
        integers = (*_FP4_DTYPES, "U32", "I32")
        return {
            module
            for last in lasts
            for module, row in stored.rows_of(f".{last}").items()
            if stored.dtypes[row] in integers
        }

    def without_global(self) -> Iterable[Fault]:
        """NVFP4 weights that have no global scale."""
        have = self._with_global
        if not have:
            return
        scaled = self._packed.keys() & (self._formats.keys() - have)
        lacking = sorted(module for module in scaled if self._formats[module] is NVFP4)
        if not lacking:
            return
        fine = [module for module in have if self._formats.get(module) is NVFP4 and module in self._packed]
        keys = {key for module in fine for key in self._keys(module, self._packed[module])}
        names = [ending for ending in GLOBAL_SCALES if self._stored.rows_of(ending)]
        for module in lacking:
            row = self._packed[module]
            is_proved = any(key in keys for key in self._keys(module, row))
            severity = Severity.ERROR if is_proved else Severity.WARNING
            whose = "its siblings" if is_proved else "other weights of this checkpoint"
            text = f"has no global scale ({' or '.join(name[1:] for name in names)}), although {whose} have one"
            if not self._is_named(module, names):
                yield Fault(Code.COMPANION_MISSING, text, row, severity)

    def without_input(self) -> Iterable[Fault]:
        """FP4 weights without an input scale, where their siblings and others in their block have one."""
        names = [ending for ending in INPUT_SCALES if self._stored.rows_of(ending)]
        have = {module for ending in names for module in self._stored.rows_of(ending)}
        whole = self._packed.keys() & self._formats.keys()
        lacking = whole - have if have else ()
        if not lacking:
            return
        units = {(self._unit(module), self._formats[module]) for module in have & whole}
        patterns = self._pattern_set(have & whole)
        for module in sorted(lacking):
            if (self._unit(module), self._formats[module]) in units and self._pattern(module) in patterns:
                text = f"has no {' or '.join(name[1:] for name in names)}, although its siblings have one"
                if not self._is_named(module, names):
                    yield Fault(Code.COMPANION_MISSING, text, self._packed[module], Severity.WARNING)

    def _is_named(self, module: str, endings: Iterable[str]) -> bool:
        return any(module + ending in self._named for ending in endings)

    def halves(self) -> Iterable[Fault]:
        """Experts that lack a projection that the others of their layer have."""
        numbers = Counter(self._checkpoint.plane_table.projections + self._checkpoint.dense_table.projections)
        if len(set(numbers.values())) < 2:
            return
        by_group: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        for ending in _WEIGHTS:
            for module, row in self._stored.rows_of(ending).items():
                expert, _, projection = module.rpartition(".")
                if (group := self._unit(module)) != expert:
                    by_group[group][expert][projection] = row
        for experts in by_group.values():
            yield from self._half_experts(experts)

    def _half_experts(self, experts: dict[str, dict[str, int]]) -> Iterable[Fault]:
        usual = Counter(projection for expert in experts.values() for projection in expert)
        wanted = {projection for projection, number in usual.items() if 2 * number > len(experts)}
        for expert, projections in experts.items():
            for projection in sorted(wanted - projections.keys()):
                module = f"{expert}.{projection}"
                if not self._is_named(module, _WEIGHTS) and not self._has_scale(module):
                    text = f"its expert has no {projection}, although the others of its layer have one"
                    yield Fault(Code.COMPANION_MISSING, text, min(projections.values()))
