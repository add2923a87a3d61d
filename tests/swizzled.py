"""The 128x4 layout of tensor cores in numpy, which the kernels are held against."""

import numpy as np
from numpy.typing import NDArray

from csf_tool.codec.tiles import TILE_COLS, TILE_ROWS, padded_shape


def swizzle(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Row-major `[..., rows, cols]` bytes in the 128x4 layout, `[..., padded rows, padded cols]`.

    The result's shape is the padded plane's; its bytes, in order, are the tiles.
    """
    *stack, rows, cols = scales.shape
    padded_rows, padded_cols = padded_shape(rows, cols)
    padded = np.zeros((*stack, padded_rows, padded_cols), np.uint8)
    padded[..., :rows, :cols] = scales
    tiles = padded.reshape(*stack, padded_rows // TILE_ROWS, 4, 32, padded_cols // TILE_COLS, TILE_COLS)
    return np.swapaxes(tiles, -4, -2).reshape(padded.shape)  # `[..., 4, 32, n, 4]` to `[..., n, 32, 4, 4]`
