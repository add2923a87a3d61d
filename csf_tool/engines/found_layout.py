"""The layout that an engine has made of a stack's scales, found by their bytes among those that csf_tool writes."""

from collections.abc import Iterator

import torch

from csf_tool.gpu.layouts import DenseLayout, ScaleLayout
from csf_tool.gpu.scales import CsfScales, decompress_csf_scales

_FORMS: tuple[DenseLayout, ...] = ("linear", "swizzled", "marlin")


def forms_of(stack: CsfScales, nbytes: int) -> list[DenseLayout]:
    """The forms in which the stack's scales take so many bytes."""
    able = [form for form in _FORMS if not ScaleLayout(form).fault(stack.rows, stack.cols)]
    return [form for form in able if stack.workspace_bytes(form) == nbytes]


def layouts_with(stack: CsfScales, data: torch.Tensor) -> Iterator[ScaleLayout]:
    """The layouts in which the stack's scales are `data`, bytes; in Marlin's each byte may stand for another."""
    for form in forms_of(stack, len(data)):
        decoded = decompress_csf_scales(stack, layout=form).view(stack.experts, -1).view(torch.uint8)
        if torch.equal(decoded.view(-1), data):
            yield ScaleLayout(form)
        elif form == "marlin" and (table := _table(decoded, data.view(stack.experts, -1))) is not None:
            yield ScaleLayout(form, table=table)


def _table(decoded: torch.Tensor, data: torch.Tensor) -> torch.Tensor | None:
    """The table that takes each byte to the one that the engine has in its place, or None where there is none."""
    table = torch.full((256,), -1, dtype=torch.int16, device=data.device)
    for plane, wanted in zip(decoded, data, strict=True):  # indices take four bytes a scale: not of all at once
        table[plane.int()] = wanted.to(table.dtype)
    if all(
        torch.equal(table[plane.int()], wanted.to(table.dtype)) for plane, wanted in zip(decoded, data, strict=True)
    ):
        return _filled(table)
    return None


def _filled(table: torch.Tensor) -> torch.Tensor:
    """The table with entries for the bytes that did not come (-1), as far from them as most others are from theirs.

    No entry of them is ever used; but the fewer gaps a table has, the faster it is to decode by.
    """
    bytes_ = torch.arange(256, dtype=table.dtype, device=table.device)
    came = table >= 0
    shift = (table - bytes_)[came].mode().values
    return torch.where(came, table, (bytes_ + shift).clamp(0, 255)).to(torch.uint8)
