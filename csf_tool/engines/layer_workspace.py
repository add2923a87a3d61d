"""One buffer over which the dense scales of all layers lie: those of the layer that runs are in it, no others.

An engine's experts do both their products in one call, so a layer's two stacks are in it at once, one behind the other.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

_ALIGNMENT = 256
"""Bytes at a multiple of which each stack begins, as in memory that torch allocates."""


class LayerWorkspace:
    """The buffer on a device, as large as the largest layer's scales."""

    def __init__(self, device: torch.device) -> None:
        self.buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._lying: list[tuple[torch.Tensor, int]] = []
        self._is_fixed = False

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.buffer.nbytes

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in it."""
        return tensor.untyped_storage().data_ptr() == self.buffer.untyped_storage().data_ptr() and tensor.numel() > 0

    def extent(self, tensor: torch.Tensor) -> tuple[int, int]:
        """The bytes of the buffer from and up to which a tensor lies in it."""
        first = int(tensor.storage_offset())
        last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return first * tensor.itemsize, (last + 1) * tensor.itemsize

    def release(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give those of some tensors that lie in it memory of their own, in which they overlap as they do here."""
        lying = [tensor for tensor in tensors if self.holds(tensor)]
        if not lying:
            return
        begin = min(self.extent(tensor)[0] for tensor in lying) // _ALIGNMENT * _ALIGNMENT
        own = self.buffer[begin : max(self.extent(tensor)[1] for tensor in lying)].clone().untyped_storage()
        for tensor in lying:
            offset = tensor.storage_offset() - begin // tensor.itemsize
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            tensor.data = empty.set_(own, offset, tensor.shape, tensor.stride())

    def fix(self) -> None:
        """Let it grow no more: kernels are about to get its addresses."""
        self._lying.clear()
        self._is_fixed = True

    def lay(self, tensors: Sequence[torch.Tensor], room: Sequence[int] | None = None) -> bool:
        """Have a layer's tensors lie in it, their contents lost; False if it may not grow so much any more.

        `room` says for each how many bytes it may need one day, at least those that it has.
        """
        needed = [max(own, tensor.nbytes) for own, tensor in zip(room or [0] * len(tensors), tensors, strict=True)]
        ends = list(accumulate(-(-nbytes // _ALIGNMENT) * _ALIGNMENT for nbytes in needed))
        if not self._reserve(ends[-1]):
            return False
        for tensor, offset in zip(tensors, [0, *ends], strict=False):
            if not self._is_fixed:
                self._lying.append((tensor, offset))
            self._view(tensor, offset)
        return True

    def _reserve(self, nbytes: int) -> bool:
        if nbytes <= len(self.buffer):
            return True
        if self._is_fixed:
            return False
        self.buffer = torch.empty(nbytes, dtype=torch.uint8, device=self.buffer.device)
        for tensor, offset in self._lying:
            self._view(tensor, offset)
        return True

    def _view(self, tensor: torch.Tensor, offset: int) -> None:
        tensor.data = self.buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
