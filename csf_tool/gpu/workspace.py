"""One buffer of dense scales, shared by all stacks of a model in turn."""

import torch

from csf_tool.gpu.layouts import AnyLayout, layout_of
from csf_tool.gpu.scales import CsfScales, decompress_csf_scales, require_scales


class ScaleWorkspace:
    """A buffer as large as the largest of some stacks, to decompress each into just before it is used.

    Whatever was in it is overwritten: use the scales of one stack before the next is decompressed, on the same
    CUDA stream. Decompressing allocates nothing and can be captured in a CUDA graph; graphs keep the buffer's
    address, so keep the workspace as long as they live.
    """

    def __init__(self, *stacks: CsfScales, layout: AnyLayout = "linear") -> None:
        """Allocate the buffer, on the device of the stacks.

        Raises:
            TypeError: what is given is no stack.
            ValueError: there are no stacks, they are on several devices, or there is no such layout, or none for the
                planes of one of them.
        """
        if not stacks:
            raise ValueError("a workspace needs at least one stack")
        for stack in stacks:
            require_scales("stacks", stack)
        devices = {stack.device for stack in stacks}
        if len(devices) > 1:
            raise ValueError(f"stacks on {', '.join(sorted(map(str, devices)))}, but a workspace is on one device")
        for stack in stacks:  # here, and not at the first decode
            layout_of(layout).arguments(stack.rows, stack.cols, stack.device)
        self.layout: AnyLayout = layout
        nbytes = max(stack.workspace_bytes(layout) for stack in stacks)
        self.buffer = torch.empty(nbytes, dtype=torch.uint8, device=stacks[0].device)

    def __repr__(self) -> str:
        return f"<ScaleWorkspace {self.nbytes} bytes, {self.layout}, {self.buffer.device}>"

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self.buffer.nbytes

    def decompress(
        self,
        stack: CsfScales,
        *,
        expert_start: torch.Tensor | None = None,
        topk_ids: torch.Tensor | None = None,
        expert_offset: int = 0,
    ) -> torch.Tensor:
        """The dense scales of a stack, in the buffer: float8 of `stack.dense_shape(layout)`.

        Args:
            stack: any stack that fits, of either format.
            expert_start: as for `decompress_nvfp4_csf_scales`: experts without rows are left as they were in the
                buffer, which holds what other stacks put there.
            topk_ids: as there.
            expert_offset: as there.

        Raises:
            TypeError: an argument is of the wrong kind or dtype.
            ValueError: the stack is larger than the buffer or on another device, or the routing does not fit, or its
                planes cannot be in the layout.
        """
        return decompress_csf_scales(
            stack,
            out=self.buffer,
            expert_start=expert_start,
            topk_ids=topk_ids,
            expert_offset=expert_offset,
            layout=self.layout,
        )
