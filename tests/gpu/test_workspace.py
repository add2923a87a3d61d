"""The workspace that stacks share in turn."""

import numpy as np
import pytest
import torch

from csf_tool import ScaleWorkspace
from csf_tool.codec.formats import MXFP4, NVFP4
from csf_tool.gpu.layouts import AnyLayout, DenseLayout, ScaleLayout
from tests.gpu.stacks import DEVICE, expected, expert_start, prepared, random_stack

LAYOUTS: tuple[DenseLayout, ...] = ("linear", "swizzled")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_stacks_of_any_size_and_format_take_turns_in_one_buffer(layout: DenseLayout) -> None:
    stacks = [
        random_stack(NVFP4, 2, 32, 24, 0.02),
        random_stack(MXFP4, 3, 48, 9, 0.1),
        random_stack(NVFP4, 1, 16, 2, 0.0),
    ]
    workspace = ScaleWorkspace(*map(prepared, stacks), layout=layout)
    assert workspace.nbytes == max(expected(stack, layout).size for stack in stacks)
    address = workspace.buffer.data_ptr()
    for stack in [*stacks, stacks[0]]:
        dense = workspace.decompress(prepared(stack))
        assert dense.data_ptr() == address
        assert dense.view(torch.uint8).cpu().numpy().tobytes() == expected(stack, layout).tobytes()


def test_inactive_experts_keep_what_was_there() -> None:
    stack = random_stack(NVFP4, 4, 16, 8, 0.02)
    workspace = ScaleWorkspace(prepared(stack))
    workspace.buffer.fill_(0xA5)
    dense = workspace.decompress(prepared(stack), expert_start=expert_start([True, False, False, True]))
    dense_bytes = dense.view(torch.uint8).cpu().numpy()
    assert np.array_equal(dense_bytes[[0, 3]], stack.scales[[0, 3]])
    assert (dense_bytes[1:3] == 0xA5).all()


def test_what_does_not_fit_is_refused() -> None:
    small, large = prepared(random_stack(NVFP4, 1, 16, 4, 0.0)), prepared(random_stack(NVFP4, 2, 16, 4, 0.0))
    with pytest.raises(ValueError, match="64 bytes, but the dense scales need 128"):
        ScaleWorkspace(small).decompress(large)
    with pytest.raises(ValueError, match="needs at least one stack"):
        ScaleWorkspace()
    with pytest.raises(ValueError, match="layout must be"):
        ScaleWorkspace(small, layout="rows")  # type: ignore[arg-type]
    meta = small.to("meta")
    with pytest.raises(ValueError, match=f"stacks on {DEVICE}.*, meta"):
        ScaleWorkspace(small, meta)


UNFIT: dict[str, tuple[AnyLayout, str]] = {
    "Marlin's": ("marlin", "the Marlin layout takes rows by 64, the planes have 16"),
    "turns": (ScaleLayout(interleave=32), "halves of 16 rows cannot take turns by 32"),
    "another order": (ScaleLayout(row_order=torch.arange(64, device=DEVICE)), "row_order has 64 rows, the planes"),
    "a table elsewhere": (ScaleLayout(table=torch.zeros(256, dtype=torch.uint8, device="meta")), "table is on meta"),
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_a_layout_that_no_decode_could_write_is_refused_at_once(unfit: str) -> None:
    """Whichever of the stacks it is not for: an engine's first request is no place to find out."""
    layout, message = UNFIT[unfit]
    fits, other = prepared(random_stack(NVFP4, 1, 64, 4, 0.0)), prepared(random_stack(NVFP4, 1, 16, 4, 0.0))
    with pytest.raises(ValueError, match=message):
        ScaleWorkspace(fits, other, layout=layout)
