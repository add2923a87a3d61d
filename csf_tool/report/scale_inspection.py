"""The report of `inspect` on a scale that is no plane."""

import numpy as np
from rich.console import RenderableType

from csf_tool.codec.values import VALUES
from csf_tool.look.scale_inspection import InspectedScale
from csf_tool.report.inspection import histogram, place
from csf_tool.text import count, escape, size

_SHOWN_BYTES = 32


def scale_report(found: InspectedScale) -> list[RenderableType]:
    """The report for people: its kind, why it is no plane, where it lies, and its values."""
    weight = found.of.weight
    lines: list[RenderableType] = [
        escape(found.name),
        f"{found.of.kind}. It is not a plane: {escape(found.of.kind.why)}.",
        f"  {place(found.of.scale)}, {size(found.of.scale.tensor.nbytes)}",
    ]
    if weight:
        lines.append(f"  its weight {escape(weight.tensor.name)}: {place(weight)}")
    if found.lowest is not None and found.highest is not None:
        odd = "".join(f"; {n:,} {what}" for what, n in (("zero", found.zero), ("NaN", found.nan)) if n)
        lines += ["", f"values {found.lowest:.4g} to {found.highest:.4g}{odd}"]
    if found.byte_counts is not None:
        lines += _bytes(found)
    return lines


def _bytes(found: InspectedScale) -> list[RenderableType]:
    """A histogram of the most frequent bytes."""
    assert found.byte_counts is not None
    values = VALUES[found.number_format]() if found.number_format else None
    most = np.argsort(-found.byte_counts, kind="stable")[:_SHOWN_BYTES]
    shown = np.zeros(256, np.intp)
    shown[most] = found.byte_counts[most]
    different = int(np.count_nonzero(found.byte_counts))
    left = f", the most frequent {_SHOWN_BYTES}" if different > _SHOWN_BYTES else ""
    name = (lambda byte: f"{byte} ({values[byte]:.4g})") if values is not None else str
    return ["", f"{count(different, 'different byte')}{left}:", histogram(shown, "scales", name)]
