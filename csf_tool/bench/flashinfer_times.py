"""The times of FlashInfer's CSF functions, and of this decoder with the same choices of experts."""

import math
from collections.abc import Sequence
from typing import Literal

import torch

from csf_tool.bench import flashinfer
from csf_tool.bench.case import ROUTINGS, Case
from csf_tool.bench.results import Measure
from csf_tool.bench.workloads import WrongBytes, choices
from csf_tool.gpu.scales import decompress_csf_scales

RivalLayout = Literal["linear", "swizzled"]

_RIVAL_LAYOUTS: tuple[RivalLayout, ...] = ("linear", "swizzled")
_RIVAL_ACTIVE = (1, 8, 64)
"""Numbers of chosen experts at which FlashInfer is measured."""


def time_flashinfer(case: Case, dense: torch.Tensor) -> list[Measure]:
    """FlashInfer on the same streams, beside this decoder given the same choices of experts.

    Raises:
        WrongBytes: it does not give the `dense` scales.
    """
    expands = [flashinfer.expander(streams) for streams in case.copies]
    shapes = {layout: case.prepared[0].dense_shape(layout) for layout in _RIVAL_LAYOUTS}
    outs = {layout: [out[: math.prod(shape)].view(shape) for out in case.outs] for layout, shape in shapes.items()}
    expands[0](outs["linear"][0], "linear", None)
    if not torch.equal(outs["linear"][0], dense):
        raise WrongBytes(f"{case.work.name}: FlashInfer's scales differ from those of plain PyTorch")
    measures = []
    for layout in _RIVAL_LAYOUTS:

        def launch(i: int, layout: RivalLayout = layout) -> object:
            return expands[i](outs[layout][i], layout, None)

        measures.append(Measure(f"FlashInfer, {layout}", case.time_flushed(launch)))
        for active in _RIVAL_ACTIVE:
            if active < case.work.experts:
                measures += _time_choices(case, expands, outs[layout], layout, active)
    return measures


def _time_choices(
    case: Case, expands: Sequence[flashinfer.Expand], outs: list[torch.Tensor], layout: RivalLayout, active: int
) -> list[Measure]:
    """The decode of some experts, chosen anew for each set, by this decoder and by FlashInfer."""
    ids = [chosen.int().to(case.device) for chosen in choices(case.work.experts, active, ROUTINGS)]
    sets = case.sets * ROUTINGS

    def ours(i: int) -> object:
        at, chosen = i % case.sets, ids[i // case.sets % ROUTINGS]
        return decompress_csf_scales(case.prepared[at], out=outs[at], topk_ids=chosen, layout=layout)

    def theirs(i: int) -> object:
        at = i % case.sets
        return expands[at](outs[at], layout, ids[i // case.sets % ROUTINGS])

    return [
        Measure(f"{active} chosen, {layout}", case.time_flushed(ours, sets), moves_all=False),
        Measure(f"FlashInfer, {active} chosen, {layout}", case.time_flushed(theirs, sets), moves_all=False),
    ]
