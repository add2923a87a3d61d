"""The experts of a stack that are decoded, as callers say it: where the rows of each begin, or what a router chose."""

from typing import NamedTuple

import torch

from csf_tool.gpu.launching import require_contiguous_at


class Routing(NamedTuple):
    """Choice of the experts of a stack that are decoded: those that have rows. With neither tensor, all are."""

    expert_start: torch.Tensor | None = None
    """Place where the rows of each expert begin, and the row count: int32 or int64 `[experts + 1]`."""
    topk_ids: torch.Tensor | None = None
    """The experts that were chosen, in any order, as often as they were: int32 or int64, contiguous."""
    expert_offset: int = 0
    """The number that the first expert of the stack has among `topk_ids`."""

    def require(self, experts: int, device: torch.device) -> None:
        """Check it for a stack of so many experts on a device.

        Raises:
            TypeError: a part of it is of the wrong kind or dtype.
            ValueError: its parts do not fit together, or do not fit the stack.
        """
        if self.expert_start is not None and self.topk_ids is not None:
            raise ValueError("give expert_start or topk_ids, not both")
        if not -(2**31) <= self.expert_offset < 2**31:
            raise ValueError(f"expert_offset is {self.expert_offset}: it must fit 32 bits")
        if self.topk_ids is not None:
            _require_integers("topk_ids", self.topk_ids, device)
            return
        if self.expert_offset:
            raise ValueError("expert_offset is for topk_ids")
        if self.expert_start is None:
            return
        _require_integers("expert_start", self.expert_start, device)
        shape = tuple(self.expert_start.shape)
        if shape != (experts + 1,):
            raise ValueError(f"expert_start has shape {shape}, but {experts} experts need ({experts + 1},)")


def _require_integers(name: str, given: object, device: torch.device) -> None:
    if not isinstance(given, torch.Tensor) or given.dtype not in (torch.int32, torch.int64):
        kind = given.dtype if isinstance(given, torch.Tensor) else type(given).__name__
        raise TypeError(f"{name} must be an int32 or int64 tensor, not {kind}")
    require_contiguous_at(name, given, device)
