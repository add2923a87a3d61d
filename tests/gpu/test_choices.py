"""Routing as the experts that a router chose: those are decoded, and no byte of others is touched."""

from collections.abc import Callable, Collection

import numpy as np
import pytest
import torch

from csf_tool import ScaleWorkspace, decompress_nvfp4_csf_scales
from csf_tool.codec import reference
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.gpu.layouts import DenseLayout
from csf_tool.gpu.scales import decompress_csf_scales
from tests.gpu.stacks import DEVICE, Bytes, Stack, expected, on_device, prepared, random_stack
from tests.swizzled import swizzle

POISON = 0xA5

Choices = np.ndarray[tuple[int, ...], np.dtype[np.signedinteger]]

Decode = Callable[[Stack, Choices, int, DenseLayout], Bytes]
"""The poisoned workspace after a decode of the chosen experts, `[experts, bytes of a plane]`."""


def by_numpy(stack: Stack, chosen: Choices, offset: int, layout: DenseLayout) -> Bytes:
    out = np.full(expected(stack, layout).shape, POISON, np.uint8)
    for plane in {int(choice) - offset for choice in chosen.reshape(-1)} & set(range(len(stack.scales))):
        words = (stack.fixed[plane], stack.exceptions[plane])
        dense = reference.decode(stack.fmt, *words, rows=stack.rows, cols=stack.cols)
        out[plane] = (dense if layout == "linear" else swizzle(dense)).reshape(-1)
    return out


def by_triton(stack: Stack, chosen: Choices, offset: int, layout: DenseLayout) -> Bytes:
    out = torch.full(expected(stack, layout).shape, POISON, dtype=torch.uint8, device=DEVICE)
    topk_ids = on_device(chosen).reshape(chosen.shape)
    decompress_csf_scales(prepared(stack), out=out, topk_ids=topk_ids, expert_offset=offset, layout=layout)
    return out.cpu().numpy()


@pytest.fixture(params=[by_numpy, by_triton])
def decode(request: pytest.FixtureRequest) -> Decode:
    decode: Decode = request.param
    return decode


def check(decode: Decode, stack: Stack, chosen: Choices, active: Collection[int], offset: int = 0) -> None:
    """The planes `active` have been written, all others have not."""
    for layout in ("linear", "swizzled"):
        want = expected(stack, layout).copy()
        want[[plane for plane in range(len(want)) if plane not in active]] = POISON
        assert decode(stack, chosen, offset, layout).tobytes() == want.tobytes(), layout


def ids(*chosen: int, dtype: type[np.signedinteger] = np.int32) -> Choices:
    return np.array(chosen, dtype)


CHOICES: dict[str, tuple[Choices, int, set[int]]] = {
    "one": (ids(2), 0, {2}),
    "first and last": (ids(0, 4), 0, {0, 4}),
    "repeated": (ids(3, 1, 3, 3, 1), 0, {1, 3}),
    "foreign": (ids(-1, 5, 2, 100, -2147483648, 2147483647), 0, {2}),
    "foreign alone": (ids(-1, 5), 0, set()),
    "64 bits": (ids(1, 4, dtype=np.int64), 0, {1, 4}),
    "foreign in 64 bits": (ids(2**32 + 1, -(2**63), 2**63 - 1, 2**40, 3, dtype=np.int64), 0, {3}),
    "a number": (np.array(3, np.int64), 0, {3}),
    "none": (np.empty((0, 8), np.int32), 0, set()),
    "tokens and their experts": (np.array([[0, 2], [2, 4], [4, 0]], np.int32), 0, {0, 2, 4}),
    "three dimensions": (np.array([[[0], [1]], [[1], [1]]], np.int64), 0, {0, 1}),
    "another rank's first": (ids(10, 14, 9, 15, 12), 10, {0, 2, 4}),
    "a negative offset": (ids(-3, 0, 1), -3, {0, 3, 4}),
    "an offset that would wrap": (ids(-2147483648, 2147483647), 2147483647, {0}),
}


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
@pytest.mark.parametrize(("chosen", "offset", "active"), CHOICES.values(), ids=CHOICES.keys())
def test_the_chosen_experts_are_decoded(
    decode: Decode, chosen: Choices, offset: int, active: set[int], fmt: CsfFormat
) -> None:
    check(decode, random_stack(fmt, 5, 16, 24, 0.02), chosen, active, offset)


CROWD = [0, 31, 32, 63, 64, 70]


@pytest.mark.slow
@pytest.mark.parametrize("number", [130, 1300])
def test_more_experts_than_a_block_and_more_choices_than_a_look(decode: Decode, number: int) -> None:
    stack = random_stack(MXFP4, 71, 16, 5, 0.02)
    chosen = np.random.default_rng(number).choice(ids(*CROWD, -5, 71, 5000), number)
    chosen[-1] = 33
    check(decode, stack, chosen.reshape(-1, 5), {*CROWD, 33})


def test_a_workspace_takes_them() -> None:
    stack = random_stack(NVFP4, 4, 16, 8, 0.02)
    workspace = ScaleWorkspace(prepared(stack))
    workspace.buffer.fill_(POISON)
    dense = workspace.decompress(prepared(stack), topk_ids=on_device(ids(7, 7, 9)), expert_offset=6)
    assert np.array_equal(dense.view(torch.uint8)[[1, 3]].cpu().numpy(), stack.scales[[1, 3]])
    assert (dense.view(torch.uint8)[[0, 2]] == POISON).all()


@pytest.mark.slow
def test_graphs_take_them() -> None:
    stack = random_stack(NVFP4, 3, 16, 8, 0.02)
    scales = prepared(stack)

    def decoded(chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(stack.scales.size, dtype=torch.uint8, device=DEVICE)
        return decompress_nvfp4_csf_scales(scales, out=out, topk_ids=chosen).view(torch.uint8).int()

    got = torch.compile(decoded, fullgraph=True, backend="aot_eager")(on_device(ids(1, 1)))
    assert np.array_equal(got[1].cpu().numpy(), stack.scales[1])
    assert not got[[0, 2]].any()


@pytest.mark.parametrize("offset", [True, False])
def test_a_flag_is_no_offset(offset: bool) -> None:
    scales = prepared(random_stack(NVFP4, 3, 16, 8, 0.0))
    with pytest.raises(TypeError, match="expert_offset must be an int, not bool"):
        decompress_csf_scales(scales, topk_ids=torch.tensor([1], device=DEVICE), expert_offset=offset)


def test_an_offset_may_be_numpys() -> None:
    stack = random_stack(NVFP4, 3, 16, 8, 0.0)
    ids = torch.tensor([6], device=DEVICE)
    dense = decompress_csf_scales(prepared(stack), topk_ids=ids, expert_offset=np.int64(5))  # type: ignore[arg-type]
    assert dense[1].view(torch.uint8).cpu().numpy().tobytes() == stack.scales[1].tobytes()
