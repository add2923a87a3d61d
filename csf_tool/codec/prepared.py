"""The layout of a prepared stack in GPU memory, and its bytes.

Rules and sizes alone, without torch: `csf_tool.gpu.decode` prepares by them, `csf_tool.look.plan` adds them up.
"""

import math
from collections.abc import Sequence

from csf_tool.codec import tiles
from csf_tool.codec.formats import EXCEPTION_BYTES, CsfFormat

LEAD_GROUP = 64
"""Scales that share a place in the table of leads."""

LEAD_BYTES = 2
"""Bytes of a lead: an int16."""

PIECE_BYTES = 8192
"""Bytes of the row-major plane that one program writes."""

_START_BYTES = 4

# A group's lead costs two bytes to read, an exception stored over the output one more write of a sector. From
# about 0.6% exceptions on (0.4 in a group), leads are the cheaper.
_LEADS_FROM = 0.4


def leads_pay(exceptions: int, scales: int, cols: int) -> bool:
    """Whether a stack decodes faster with leads. They need rows of whole words."""
    return cols % 4 == 0 and exceptions * LEAD_GROUP >= scales * _LEADS_FROM


def prepared_bytes(fmt: CsfFormat, rows: int, cols: int, exceptions: Sequence[int]) -> int:
    """Bytes of a prepared stack, from the number of exceptions in each of its planes.

    Exact without leads. With leads it is an estimate for exceptions that are spread evenly; where they gather in a
    few rows, fewer become leads, and each of the others takes up to 4 bytes more.
    """
    experts, scales = len(exceptions), rows * cols
    words = float(sum(exceptions))
    leads = 0
    if leads_pay(sum(exceptions), experts * scales, cols):
        groups = -(-scales // LEAD_GROUP)
        leads = experts * groups
        words -= sum(-groups * math.expm1(-count / groups) for count in exceptions)
    starts = experts * (-(-scales // PIECE_BYTES) + -(-rows // tiles.TILE_ROWS)) + 2
    fixed = experts * fmt.fixed_bytes(rows, cols)
    return fixed + leads * LEAD_BYTES + round(words) * EXCEPTION_BYTES + starts * _START_BYTES
