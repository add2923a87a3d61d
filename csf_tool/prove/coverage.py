"""The tensors that verify covers, of both sides, and those whose bytes it reads."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.logical import LogicalTensor, logical_tensors

Tensors = dict[str, LogicalTensor]
"""Logical tensors by their names."""


@dataclass(frozen=True)
class Coverage:
    """The tensors of a checkpoint and of the reference, of which all bytes are read or only those of `scales`."""

    ours: Tensors
    theirs: Tensors
    scales: Set[str]
    scales_only: bool

    @classmethod
    def of(cls, checkpoint: Checkpoint, against: Checkpoint | None, *, all_tensors: bool) -> Self:
        """Everything, but only the scales where the rest would have to be fetched and `all_tensors` are not wanted."""
        sides = [checkpoint] + ([against] if against else [])
        scales = {plane.name for side in sides for plane in side.planes}
        if against:
            scales |= {plane.name for side in sides for plane in side.dense_planes}
        scales_only = not all_tensors and any(side.is_remote for side in sides)
        return cls(logical_tensors(checkpoint), logical_tensors(against) if against else {}, scales, scales_only)

    def read(self, tensors: Tensors) -> Tensors:
        """Some tensors without those whose bytes are not read."""
        return {n: tensor for n, tensor in tensors.items() if n in self.scales} if self.scales_only else tensors

    @property
    def unread(self) -> Set[str]:
        """The tensors of both sides whose bytes are not compared."""
        return self.ours.keys() & self.theirs.keys() - self.scales if self.scales_only else frozenset()
