"""The 128x4 layout in which tensor cores take block scales, in numpy: what the kernels are held against.

cuBLAS, CUTLASS, FlashInfer, `torch._scaled_mm` and Triton's SWIZZLE_32_4_4 read tiles of 128 rows by 4
columns, 512 bytes each, row of tiles by row of tiles. Inside a tile, a row's four bytes lie at
`row % 32 * 16 + row // 32 * 4`. Rows pad to 128 and columns to 4; the padding is zero.
"""

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
