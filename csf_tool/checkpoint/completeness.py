"""Completeness of a quantised checkpoint: scales without weights, weights without scales, scales that do not fit.

Only headers are read, and for a sound checkpoint only sets of names are compared. A name alone proves little, for there
are many ways to store a weight: a fault is proved by siblings, tensors whose names differ only in their numbers. What
no sibling proves is a warning or nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.fault import Fault
from csf_tool.checkpoint.fp4_modules import WEIGHTS, Fp4Modules, Sibling
from csf_tool.checkpoint.global_scales import unusable_global_scales
from csf_tool.checkpoint.missing_experts import missing_experts
from csf_tool.checkpoint.missing_projections import projections_missing_from_all, projections_missing_from_some
from csf_tool.checkpoint.names import GLOBAL_SCALES, INPUT_SCALES, SCALE_SUFFIXES
from csf_tool.checkpoint.numbered import numbered
from csf_tool.checkpoint.plane_tables import DensePlane, Misfit
from csf_tool.checkpoint.planes import weight_geometry
from csf_tool.checkpoint.problems import Severity
from csf_tool.checkpoint.scale_kinds import wrong_label
from csf_tool.checkpoint.stored import Stored
from csf_tool.codec.formats import FORMATS, NVFP4, CsfFormat, nearest_format
from csf_tool.codes import Code
from csf_tool.disk.paths import names_in
from csf_tool.disk.reader import is_file
from csf_tool.dtypes import FP4_DTYPES, PLAIN_DTYPES

_SCALE_DTYPES = {dtype for fmt in FORMATS for dtype in fmt.dense_dtypes}


def check_completeness(checkpoint: Checkpoint, stored: Stored, configs: Mapping[str, Any]) -> None:
    """Note the tensors that a checkpoint lacks, and count them."""
    faults = unusable_global_scales(checkpoint, stored)
    is_all_here = not _may_lie_elsewhere(checkpoint)
    if is_all_here:
        faults += [*missing_experts(checkpoint, stored, configs), *projections_missing_from_all(checkpoint, stored)]
    if not _is_complete(checkpoint, stored):
        modules = Fp4Modules(checkpoint, stored)
        faults += _misfits(modules)
        if is_all_here:
            faults += [*_without_scale(modules), *_orphans(modules), *_without_global(modules)]
            faults += [*_without_input(modules), *projections_missing_from_some(modules)]
    checkpoint.problems += [fault.problem(stored) for fault in faults]
    checkpoint.incomplete = dict(Counter(fault.code for fault in faults if fault.lacks))


def _is_complete(checkpoint: Checkpoint, stored: Stored) -> bool:
    """Whether all FP4 weights have the same tensors beside them, in the same order, so that no search is needed.

    This is true of sound checkpoints whose experts alone are quantised, which are the largest.
    """
    csf, dense = checkpoint.plane_table, checkpoint.dense_table
    if (dense and csf) or sum(len(stored.rows_by_last.get(ending[1:], ())) for ending in SCALE_SUFFIXES) != len(dense):
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
        for ending in WEIGHTS
        for row in stored.rows_by_last.get(ending[1:], ())
        if dtypes[row] in FP4_DTYPES
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


def _without_scale(m: Fp4Modules) -> Iterable[Fault]:
    """FP4 weights that have no block scale."""
    for module in sorted(m.packed.keys() - m.formats.keys()):
        row = m.packed[module]
        if m.has_scale(module) or module in m.scaled_otherwise or m.has_problem(module, SCALE_SUFFIXES):
            continue
        if siblings := m.siblings_of(module, row):
            text = f"has no block scale, but {siblings[0].module} has one: the values of this weight are lost"
            yield Fault(Code.WEIGHT_WITHOUT_SCALE, text, row)
        elif module in m.with_global:
            text = "has a global scale but no block scale: the values of this weight are lost"
            yield Fault(Code.WEIGHT_WITHOUT_SCALE, text, row)


def _misfits(m: Fp4Modules) -> Iterable[Fault]:
    """Block scales beside FP4 weights that are not of their shape or dtype."""
    for ending in SCALE_SUFFIXES:
        rows = m.stored.rows_of(ending)
        for module in [module for module in rows if module not in m.formats]:
            weight = m.packed.get(module)
            if weight is None or not (fault := _misfit(m, module, rows[module], weight)):
                continue
            shape = m.stored.shapes[fault.row]
            lines = shape[0] if shape else 1
            elements = m.stored.nbytes(fault.row)
            fmt = nearest_format(m.stored.dtypes[fault.row])
            located = m.stored[fault.row]
            plane = DensePlane(located.tensor.name, fmt, lines, elements // max(lines, 1), located)
            m.checkpoint.misfits.append(Misfit(plane, fault.text))
            yield fault


def _misfit(m: Fp4Modules, module: str, scale: int, weight: int) -> Fault | None:
    dtype, shape = m.stored.dtypes[scale], m.stored.shapes[scale]
    if siblings := m.siblings_of(module, weight):
        return _beside_siblings(m, siblings, scale, weight)
    if dtype not in _SCALE_DTYPES or len(shape) != 2:
        return None
    rows, packed = m.stored.shapes[weight]
    k = packed if m.stored.dtypes[weight] == "F4" else 2 * packed
    group = k // shape[1] if shape[0] == rows and shape[1] and not k % shape[1] else 0
    if group in {fmt.group_size for fmt in FORMATS}:
        return Fault(Code.SCALE_LABEL, wrong_label(dtype, group), scale, Severity.WARNING)
    if group or dtype == "U8":
        return None  # it may be another tool's format
    return _of_wrong_shape(m, nearest_format(dtype), scale, weight, Severity.WARNING)


def _beside_siblings(m: Fp4Modules, siblings: list[Sibling], scale: int, weight: int) -> Fault:
    dtype, formats = m.stored.dtypes[scale], [sibling.fmt for sibling in siblings]
    for fmt in formats:
        geometry = weight_geometry(m.stored[weight], fmt, [])
        if geometry and m.stored.shapes[scale] == (geometry.rows, geometry.cols):
            text = f"is {dtype}, but {fmt.title} scales are {'/'.join(fmt.dense_dtypes)}"
            return Fault(Code.SCALE_LABEL, text, scale)
    fmt = next((fmt for fmt in formats if dtype in fmt.dense_dtypes), formats[0])
    return _of_wrong_shape(m, fmt, scale, weight, Severity.ERROR)


def _of_wrong_shape(m: Fp4Modules, fmt: CsfFormat, scale: int, weight: int, severity: Severity) -> Fault:
    geometry = weight_geometry(m.stored[weight], fmt, [])
    shape = "x".join(map(str, m.stored.shapes[scale])) or "one number"
    wants = f"{geometry.rows}x{geometry.cols}" if geometry else f"groups of {fmt.group_size}"
    return Fault(Code.SCALE_SHAPE, f"scale is {shape}, but its weight needs {wants}", scale, severity)


def _orphans(m: Fp4Modules) -> Iterable[Fault]:
    """Block scales whose weight is missing or holds no FP4 codes, and global scales without either."""
    stored = m.stored
    table, lone = m.checkpoint.plane_table, m.formats.keys() - m.packed.keys()
    places = zip(table.modules, table.fixed, strict=True) if lone else ()
    found = {module: row for module, row in places if module in lone}
    for ending in SCALE_SUFFIXES:
        rows = stored.rows_of(ending)
        for module in rows.keys() - m.packed.keys() if rows else ():
            if stored.dtypes[rows[module]] in _SCALE_DTYPES and len(stored.shapes[rows[module]]) == 2:
                found.setdefault(module, rows[module])
    found |= _lone_globals(m, found)
    if found:
        yield from _of_no_weight(m, found)


def _lone_globals(m: Fp4Modules, known: dict[str, int]) -> dict[str, int]:
    """Global scales of modules that have neither weight nor block scale."""
    return {
        module: rows[module]
        for ending in GLOBAL_SCALES
        if (rows := m.stored.rows_of(ending))
        for module in rows.keys() - m.packed.keys()
        if module not in known
    }


def _of_no_weight(m: Fp4Modules, found: dict[str, int]) -> Iterable[Fault]:
    stored = m.stored
    whole = m.patterns_of(m.whole)
    for module in sorted(found):
        rows = [stored.rows_of(ending)[module] for ending in WEIGHTS if module in stored.rows_of(ending)]
        dtype = stored.dtypes[rows[0]] if rows else ""
        is_fp8 = dtype and dtype not in PLAIN_DTYPES
        if is_fp8 or m.has_problem(module, (*WEIGHTS, *SCALE_SUFFIXES)):
            continue
        is_proved = m.pattern(module) in whole
        if not is_proved and (module in m.scaled_otherwise or module in m.held_otherwise):
            continue
        why = f"the tensor beside it is {dtype}, not FP4 codes" if dtype else "there is no weight beside it"
        siblings = ", although its siblings have one" if is_proved and not dtype else ""
        text = f"is a scale without a weight: {why}{siblings}"
        severity = Severity.ERROR if is_proved else Severity.WARNING
        yield Fault(Code.SCALE_WITHOUT_WEIGHT, text, found[module], severity)


def _without_global(m: Fp4Modules) -> Iterable[Fault]:
    """NVFP4 weights that have no global scale."""
    have = m.with_global
    if not have:
        return
    scaled = m.packed.keys() & (m.formats.keys() - have)
    lacking = sorted(module for module in scaled if m.formats[module] is NVFP4)
    if not lacking:
        return
    fine = [module for module in have if m.formats.get(module) is NVFP4 and module in m.packed]
    keys = {key for module in fine for key in m.keys(module, m.packed[module])}
    names = [ending for ending in GLOBAL_SCALES if m.stored.rows_of(ending)]
    for module in lacking:
        row = m.packed[module]
        is_proved = any(key in keys for key in m.keys(module, row))
        severity = Severity.ERROR if is_proved else Severity.WARNING
        whose = "its siblings" if is_proved else "other weights of this checkpoint"
        text = f"has no global scale ({' or '.join(name[1:] for name in names)}), although {whose} have one"
        if not m.has_problem(module, names):
            yield Fault(Code.COMPANION_MISSING, text, row, severity)


def _without_input(m: Fp4Modules) -> Iterable[Fault]:
    """FP4 weights without an input scale, where their siblings and others in their block have one."""
    names = [ending for ending in INPUT_SCALES if m.stored.rows_of(ending)]
    have = {module for ending in names for module in m.stored.rows_of(ending)}
    whole = m.whole
    lacking = whole - have if have else ()
    if not lacking:
        return
    units = {(m.unit(module), m.formats[module]) for module in have & whole}
    patterns = m.patterns_of(have & whole)
    for module in sorted(lacking):
        if (m.unit(module), m.formats[module]) in units and m.pattern(module) in patterns:
            text = f"has no {' or '.join(name[1:] for name in names)}, although its siblings have one"
            if not m.has_problem(module, names):
                yield Fault(Code.COMPANION_MISSING, text, m.packed[module], Severity.WARNING)
