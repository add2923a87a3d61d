"""The 128x4 layout against the formula of the format description."""

import numpy as np
import pytest

from csf_tool.codec.tiles import TILE_BYTES, padded_shape
from tests.swizzled import swizzle


def place(row: int, col: int, cols: int) -> int:
    """Where the byte of (row, col) lies: docs/format.md, the layout of tensor cores."""
    return ((row // 128) * -(-cols // 4) + col // 4) * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + col % 4


@pytest.mark.parametrize(("rows", "cols"), [(16, 1), (128, 4), (128, 5), (144, 10), (300, 7)])
def test_every_byte_lies_where_the_formula_says(rows: int, cols: int) -> None:
    rng = np.random.default_rng(0)
    scales = rng.integers(1, 256, (2, rows, cols), np.uint8)
    got = swizzle(scales).reshape(2, -1)
    want = np.zeros_like(got)
    for row in range(rows):
        for col in range(cols):
            want[:, place(row, col, cols)] = scales[:, row, col]
    assert got.tobytes() == want.tobytes()


def test_a_tile_is_512_bytes() -> None:
    assert padded_shape(1, 1) == (128, 4)
    assert padded_shape(129, 5) == (256, 8)
    assert swizzle(np.zeros((1, 1), np.uint8)).size == TILE_BYTES
