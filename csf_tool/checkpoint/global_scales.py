"""Global scales and input scales that readers cannot use: no value in them, integers, one too many.

One is a floating-point number of shape [] or [1]. Weights that were joined have several: one for each expert or part.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from math import prod

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.fault import Fault
from csf_tool.checkpoint.names import GLOBAL_SCALES, INPUT_SCALES, Patterns
from csf_tool.checkpoint.problems import Severity
from csf_tool.checkpoint.stored import Stored
from csf_tool.codes import Code

_USUAL_SHAPES = {(), (1,)}
_FLOATS = ("F", "BF")
"""Beginnings of dtypes."""


def unusable_global_scales(checkpoint: Checkpoint, stored: Stored) -> list[Fault]:
    """The global scales and input scales of FP4 weights that readers cannot use, or take for another."""
    endings = [ending for ending in (*GLOBAL_SCALES, *INPUT_SCALES) if ending[1:] in stored.rows_by_last]
    odd = [ending for ending in endings if not _are_usual(stored, stored.rows_by_last[ending[1:]])]
    pairs = [pair for pair in (GLOBAL_SCALES, INPUT_SCALES) if set(pair) <= set(endings)]
    if not odd and not pairs:
        return []
    rows = _rows_of_planes(checkpoint)
    faults = [fault for ending in odd for fault in _of_no_use(stored, ending, rows)]
    return faults + [fault for pair in pairs for fault in _twice(stored, pair, rows)]


def _are_usual(stored: Stored, rows: list[int]) -> bool:
    """Whether all of them are one floating-point number each."""
    shapes, dtypes = set(map(stored.shapes.__getitem__, rows)), set(map(stored.dtypes.__getitem__, rows))
    return shapes <= _USUAL_SHAPES and all(dtype.startswith(_FLOATS) for dtype in dtypes)


def _rows_of_planes(checkpoint: Checkpoint) -> dict[str, int]:
    """The rows of block scales by the modules of FP4 weights."""
    tables = checkpoint.plane_table, checkpoint.dense_table
    return {
        module: table.kinds[kind].rows
        for table in tables
        for module, kind in zip(table.modules, table.kind_of, strict=True)
    }


def _of_no_use(stored: Stored, ending: str, rows: dict[str, int]) -> Iterator[Fault]:
    """The scales with one ending that hold no number, integers, or not as many numbers as their siblings."""
    pattern = Patterns().of
    scales = {module: row for module, row in stored.rows_of(ending).items() if module in rows}
    numbers = Counter((pattern(module), prod(stored.shapes[row])) for module, row in scales.items())
    of_input = ending in INPUT_SCALES
    fault = partial(Fault, Code.GLOBAL_SCALE, severity=Severity.WARNING if of_input else Severity.ERROR)
    for module, row in scales.items():
        dtype, shape = stored.dtypes[row], list(stored.shapes[row])
        alike, number = pattern(module), prod(shape)
        if not number:
            text = f"is empty, {shape}: its weight has no {ending[1:]}"
            yield fault(text, row=row)._replace(code=Code.COMPANION_MISSING)
        elif not dtype.startswith(_FLOATS):
            yield fault(f"is {dtype}, but a {ending[1:]} is a floating-point number", row=row)
        elif number > 1 and numbers[alike, 1]:
            yield fault(f"is {shape}, but its siblings are one number each", row=row)
        elif number > 1 and len(shape) < 2 and rows[module] % number:
            text = f"is {shape}, which is neither one number nor a part of the weight's {rows[module]:,} rows each"
            yield Fault(Code.GLOBAL_SCALE, text, row, Severity.WARNING, lacks=False)
        elif number == 1 and len(shape) > 1:
            yield Fault(
                Code.GLOBAL_SCALE, f"is {shape}, but readers expect [] or [1]", row, Severity.WARNING, lacks=False
            )


def _twice(stored: Stored, pair: Iterable[str], rows: dict[str, int]) -> Iterator[Fault]:
    """The scales that a module has under both names."""
    one, other = pair
    for module in stored.rows_of(one).keys() & stored.rows_of(other).keys() & rows.keys():
        text = f"stands beside {one[1:]}, which means the same: readers take the one or the other"
        yield Fault(Code.GLOBAL_SCALE, text, stored.rows_of(other)[module], Severity.WARNING, lacks=False)
