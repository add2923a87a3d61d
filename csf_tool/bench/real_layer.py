"""A layer of a real checkpoint to measure, in place of made-up streams."""

from dataclasses import dataclass

import torch

from csf_tool.bench.workloads import Workload
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.names import layer_of
from csf_tool.errors import UsageError
from csf_tool.gpu.streams import CsfStreams
from csf_tool.loading.stacks import Projection, first_gated_layer, read_stack
from csf_tool.loading.tensors import opened
from csf_tool.text import size

SMALLEST_BYTES = 1 << 20
"""Dense bytes of the smallest stack that is measured: below, launching is all that takes time."""

_STACKS: tuple[tuple[str, Projection], ...] = (("gate and up", "gate_up"), ("down", "down"))
"""The stacks of a layer: what they are called here, and as what they are loaded."""


@dataclass(frozen=True, slots=True)
class Source:
    """The layer that streams were taken from."""

    checkpoint: str
    layer: str
    exceptions: int
    """Exceptions of all stacks of the layer."""


@dataclass(frozen=True, eq=False, slots=True)
class RealLayer:
    """The stacks of a layer, gate and up as one, with their streams on a device."""

    source: Source
    stacks: dict[Workload, CsfStreams]


def load_layer(checkpoint: Checkpoint, device: torch.device, *, smallest: int = SMALLEST_BYTES) -> RealLayer:
    """The first layer of a checkpoint that has gate, up and down stacks. Planes that are stored dense are encoded.

    Raises:
        UsageError: there is no such layer, or a stack of it has less than `smallest` dense bytes.
        CheckpointError: the layer is broken, as for `csf_tool.load_stack`.
    """
    checkpoint = opened(checkpoint)
    layer = first_gated_layer(checkpoint)
    stacks = dict(_load(checkpoint, layer, name, projection, device) for name, projection in _STACKS)
    for work in stacks:
        if work.dense_bytes < smallest:
            raise UsageError(
                f"{checkpoint.label}: the {work.name} stack of {layer} has only {size(work.dense_bytes)} of scales, "
                f"too little to measure: at least {size(smallest)} is needed"
            )
    exceptions = sum(len(streams.words) for streams in stacks.values())
    return RealLayer(Source(checkpoint.label, layer_of(layer) or layer, exceptions), stacks)


def _load(
    checkpoint: Checkpoint, layer: str, name: str, projection: Projection, device: torch.device
) -> tuple[Workload, CsfStreams]:
    streams = read_stack(checkpoint, layer, projection, device=device)
    share = len(streams.words) / (streams.experts * streams.rows * streams.cols)
    return Workload(name, streams.format, streams.experts, streams.rows, streams.cols, share), streams
