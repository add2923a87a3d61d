"""The scales of a layer's experts, kept compressed beside an engine's layer whose parameters lie in the workspace.

Its life follows the engine's: the parameters are made and laid into the workspace (`lay`); when all weights are there,
the scales are decoded once into them, so that the engine can process them as if they were dense (`fill`); whatever
layout that gives is looked for among those that csf_tool writes (`settle`); and from then on the scales are decoded
before the experts run (`decode`). A layer whose layout is none of them is left with dense scales of its own.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from csf_tool.codec import tiles
from csf_tool.engines.expert_groups import ExpertGroup
from csf_tool.engines.found_layout import forms_of, layouts_with
from csf_tool.engines.layer_workspace import LayerWorkspace
from csf_tool.gpu.decode import MOST_SLOTS
from csf_tool.gpu.layouts import ScaleLayout
from csf_tool.gpu.scales import CsfScales, decompress_csf_scales
from csf_tool.loading.stacks import Order, load_stack

SCALES = ("w13_weight_scale", "w2_weight_scale")
"""The layer's parameters: gate and up, and down."""

_ORDERS: tuple[Order, ...] = (("gate", "up"), ("up", "gate"))


class _Target(NamedTuple):
    stack: CsfScales
    layout: ScaleLayout
    out: torch.Tensor
    """The place in the workspace, bytes."""


class KeptLayer:
    """The scales of one layer, on one rank."""

    def __init__(
        self, group: ExpertGroup, workspace: LayerWorkspace, rank: int = 0, ranks: int = 1, *, padded: bool = False
    ) -> None:
        """`padded`: the engine may want the 128x4 layout, for which the scales are padded to whole tiles."""
        self.name = group.name
        self.group = group
        self._workspace = workspace
        self._rank, self._ranks, self._padded = rank, ranks, padded
        self._room: list[int] | None = None
        """Bytes that each stack may need, so that its place stays the same in whatever layout it will be."""
        self._filled: list[CsfScales] = []
        self._targets: list[_Target] = []
        self.is_done = False

    @property
    def nbytes(self) -> int:
        """Bytes of its stacks."""
        return sum(target.stack.nbytes for target in self._targets)

    def lay(self, layer: Any) -> str | None:
        """Let the layer's new parameters lie in the workspace, or say why they cannot."""
        if fault := self.group.fault(self._ranks):
            return fault
        parameters: list[Any] = [getattr(layer, name, None) for name in SCALES]
        shapes = self.group.shapes(self._ranks)
        for name, parameter, shape in zip(SCALES, parameters, shapes, strict=True):
            if parameter is None or parameter.dtype.itemsize != 1:
                return f"the layer has no byte tensor {name}"
            if tuple(parameter.shape) != shape:
                return f"its {name} is {list(parameter.shape)}, but the checkpoint has {list(shape)}"
        if self._padded:
            self._room = [e * _product(tiles.padded_shape(rows, cols)) for e, rows, cols in shapes]
        if not self._workspace.lay(parameters, self._room):
            return "the workspace cannot grow any further"
        return None

    def fill(self, layer: Any) -> None:
        """Load the stacks, and decode them into the parameters, row-major: what the engine would have loaded.

        Raises:
            StreamError: a plane breaks a rule of the format.
            CheckpointError: a shard cannot be read.
            EnvironmentFault: the system cannot read it.
        """
        self._workspace.fix()
        self._filled = [self._load("gate_up"), self._load("down")]
        for name, stack in zip(SCALES, self._filled, strict=True):
            decompress_csf_scales(stack, out=_bytes(getattr(layer, name)))

    def settle(self, layer: Any) -> str | None:
        """Find the layout that the engine has made of the scales, and let them lie in the workspace so.

        Where it is none that csf_tool writes, the scales get memory of their own and stay dense; says why.
        """
        if self.is_done:
            return None
        self.is_done = True
        parameters = [getattr(layer, name) for name in SCALES]
        found = [next(self._matching(*pair), None) for pair in zip(self._filled, parameters, strict=True)]
        self._filled = []
        matches = [match for match in found if match]
        if len(matches) == len(SCALES) and self._workspace.lay(parameters, self._room):
            self._targets = [
                _Target(stack, layout, _bytes(parameter))
                for (stack, layout), parameter in zip(matches, parameters, strict=True)
            ]
            self._warm_up()
            return None
        self._workspace.release(parameters)
        return "its scales are in a layout that csf-tool does not write"

    def finish(self, layer: Any, kernel: Iterable[torch.Tensor] = ()) -> bool:
        """Whether decoding reaches all scales that the engine reads; if not, they are its own from now on, and dense.

        `kernel` are the tensors that the engine's kernel has, apart from the layer's.
        """
        tensors = [*(getattr(layer, name) for name in SCALES), *kernel]
        if self._targets and all(map(self._is_reached, tensors)):
            return True
        self.decode()  # some may be there, and would have another layer's contents
        self._targets = []
        self._workspace.release(tensors)
        return False

    def _is_reached(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is decoded into, or too small for scales."""
        places = [self._workspace.extent(target.out) for target in self._targets]
        if not self._workspace.holds(tensor):
            return tensor.nbytes < min(end - begin for begin, end in places)
        begin, end = self._workspace.extent(tensor)
        return any(first <= begin and end <= last for first, last in places)

    def forget(self) -> None:
        """Let go of the checkpoint, which is a lot of small objects: nothing more is loaded."""
        del self.group

    def decode(self, chosen: torch.Tensor | None = None) -> None:
        """Decode the scales into the workspace, of the experts that were chosen alone where that is less work.

        Allocates nothing and waits for nothing.
        """
        if not self._targets:
            return
        topk_ids = _fewer(chosen, self._targets[0].stack.experts)
        for stack, layout, out in self._targets:
            decompress_csf_scales(stack, out=out, topk_ids=topk_ids, layout=layout)

    def _load(self, projection: Any, order: Order = _ORDERS[0]) -> CsfScales:
        return load_stack(
            self.group.part, self.group.name, projection,
            device=self._workspace.buffer.device, tp_rank=self._rank, tp_size=self._ranks, order=order,
        )  # fmt: skip

    def _matching(self, stack: CsfScales, parameter: torch.Tensor) -> Iterator[tuple[CsfScales, ScaleLayout]]:
        """The stack in the layouts, and where it has gate and up the orders, that give the parameter's bytes."""
        if not parameter.is_contiguous() or parameter.dtype.itemsize != 1:
            return
        data = _bytes(parameter)
        for order in _ORDERS if stack is self._filled[0] else _ORDERS[:1]:
            if not forms_of(stack, len(data)):
                return
            if order != _ORDERS[0]:
                stack = self._load("gate_up", order)
            for layout in layouts_with(stack, data):
                yield stack, layout

    def _warm_up(self) -> None:
        """Have the scales there, and compile the kernels that `decode` may launch, before a graph is captured."""
        self.decode()
        if self._workspace.buffer.is_cuda:
            for dtype in (torch.int32, torch.int64):
                for number in (1, MOST_SLOTS + 1):
                    self.decode(torch.zeros(number, dtype=dtype, device=self._workspace.buffer.device))


def _fewer(chosen: torch.Tensor | None, experts: int) -> torch.Tensor | None:
    """A choice of experts as decoding takes it, or None where decoding all of them is no more work, or as simple."""
    if chosen is None or chosen.numel() > experts or not chosen.is_contiguous():
        return None
    if chosen.dtype == torch.uint32:
        chosen = chosen.view(torch.int32)  # what does not fit is no expert, either way
    return chosen if chosen.dtype in (torch.int32, torch.int64) else None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


def _product(shape: tuple[int, int]) -> int:
    return shape[0] * shape[1]
