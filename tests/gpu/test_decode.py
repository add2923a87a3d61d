"""Decoding through numpy and through Triton: one body of tests, the same bytes."""

import numpy as np
import pytest

from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.gpu.layouts import DenseLayout
from tests.codec.vectors import Vector, golden
from tests.gpu.stacks import BACKENDS, Backend, Bytes, Stack, all_exceptions, expected, random_stack

POISON = 0xA5

LAYOUTS: list[DenseLayout] = ["linear", "swizzled"]


@pytest.fixture(params=list(BACKENDS))
def decode(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


def poisoned(size: int, offset: int = 0) -> Bytes:
    """A workspace that begins `offset` bytes after a 16-byte boundary."""
    buffer = np.full(size + 32, POISON, np.uint8)
    begin = -buffer.ctypes.data % 16 + offset
    return buffer[begin : begin + size]


def check(decode: Backend, stack: Stack, layout: DenseLayout = "linear", offset: int = 0) -> None:
    """Decode into a poisoned workspace that is larger than it must be, and compare every byte of it."""
    want = expected(stack, layout)
    workspace = poisoned(want.size + 100, offset)
    decode(stack, workspace, None, layout)
    assert workspace[: want.size].tobytes() == want.tobytes()
    assert (workspace[want.size :] == POISON).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("vector", golden(), ids=str)
def test_golden_vectors(decode: Backend, vector: Vector, layout: DenseLayout) -> None:
    assert vector.scales is not None
    scales = vector.scales.reshape(1, vector.rows, vector.cols)
    check(decode, Stack(vector.fmt, [vector.fixed], [vector.exceptions], scales), layout)


GEOMETRIES = [
    (NVFP4, 144, 160),
    (NVFP4, 320, 40),
    (NVFP4, 48, 6),
    (NVFP4, 16, 256),
    (NVFP4, 144, 10),
    (MXFP4, 144, 160),
    (MXFP4, 320, 72),
    (MXFP4, 144, 36),
    (MXFP4, 32, 7),
    (MXFP4, 160, 18),
]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("outside", [0.0, 0.01, 0.3], ids=lambda share: f"{share:.0%}")
@pytest.mark.parametrize(("fmt", "rows", "cols"), GEOMETRIES)
def test_geometries(decode: Backend, fmt: CsfFormat, rows: int, cols: int, outside: float, layout: DenseLayout) -> None:
    """Whole chunks in a row, rows of whole words, ragged rows; rows that fill 128 and that do not."""
    check(decode, random_stack(fmt, 2, rows, cols, outside), layout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("fmt", "cols"), [(NVFP4, 80), (NVFP4, 40), (NVFP4, 6), (MXFP4, 160), (MXFP4, 9)])
def test_all_exceptions(decode: Backend, fmt: CsfFormat, cols: int, layout: DenseLayout) -> None:
    check(decode, all_exceptions(fmt, 2, 48, cols), layout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stack_with_one_plane_of_many_exceptions(decode: Backend, layout: DenseLayout) -> None:
    """The stack's average decides whether there are leads; a plane far from it is still exact."""
    calm, wild = random_stack(NVFP4, 7, 48, 40, 0.0), all_exceptions(NVFP4, 1, 48, 40)
    scales = np.concatenate([calm.scales, wild.scales])
    check(decode, Stack(NVFP4, calm.fixed + wild.fixed, calm.exceptions + wild.exceptions, scales), layout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("offset", [1, 2, 4])
@pytest.mark.parametrize(("fmt", "cols"), [(NVFP4, 40), (MXFP4, 72)])
def test_workspace_at_any_offset(decode: Backend, fmt: CsfFormat, cols: int, offset: int, layout: DenseLayout) -> None:
    check(decode, random_stack(fmt, 2, 48, cols, 0.02), layout, offset)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_workspace_serves_stacks_of_different_geometry(decode: Backend, layout: DenseLayout) -> None:
    stacks = [random_stack(fmt, 2, rows, cols, 0.02, seed) for seed, (fmt, rows, cols) in enumerate(GEOMETRIES[2:])]
    workspace = poisoned(max(expected(stack, layout).size for stack in stacks))
    for stack in stacks:
        decode(stack, workspace, None, layout)
        want = expected(stack, layout)
        assert workspace[: want.size].tobytes() == want.tobytes()


ROUTINGS = {
    "none": [False] * 5,
    "all": [True] * 5,
    "first": [True, False, False, False, False],
    "last": [False, False, False, False, True],
    "some": [True, False, True, True, False],
    "one of one": [True],
    "none of one": [False],
    "beyond a block": [i in (0, 31, 32, 70) for i in range(71)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("active", ROUTINGS.values(), ids=ROUTINGS.keys())
def test_skipped_experts_are_untouched(decode: Backend, active: list[bool], layout: DenseLayout) -> None:
    stack = random_stack(NVFP4, len(active), 16, 24, 0.02)
    want = np.where(np.array(active)[:, None], expected(stack, layout), np.uint8(POISON))
    workspace = poisoned(want.size)
    decode(stack, workspace, active, layout)
    assert workspace.tobytes() == want.tobytes()


def test_routed_planes_of_several_items(decode: Backend) -> None:
    stack = random_stack(NVFP4, 3, 320, 40, 0.01)
    workspace = poisoned(stack.scales.size)
    decode(stack, workspace, [True, False, True], "linear")
    assert workspace.reshape(3, -1)[::2].tobytes() == expected(stack, "linear")[::2].tobytes()
    assert (workspace.reshape(3, -1)[1] == POISON).all()
