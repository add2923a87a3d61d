"""The 128x4 layout in which tensor cores take block scales: its sizes, and its order in numpy.

cuBLAS, CUTLASS, FlashInfer, `torch._scaled_mm` and Triton's SWIZZLE_32_4_4 read tiles of 128 rows by 4
columns, 512 bytes each, row of tiles by row of tiles. Inside a tile, a row's four bytes lie at
`row % 32 * 16 + row // 32 * 4`. Rows pad to 128 and columns to 4; the padding is zero.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TILE_ROWS = 128
"""Rows of a tile."""

TILE_COLS = 4
"""Columns of a tile."""

TILE_BYTES = TILE_ROWS * TILE_COLS
"""Bytes of a tile."""


def padded_shape(rows: int, cols: int) -> tuple[int, int]:
    """Rows and columns of a `[rows, cols]` plane in the 128x4 layout, padding included."""
    return -(-rows // TILE_ROWS) * TILE_ROWS, -(-cols // TILE_COLS) * TILE_COLS


def swizzle(scales: "NDArray[np.uint8]") -> "NDArray[np.uint8]":
    """Row-major `[..., rows, cols]` bytes in the 128x4 layout, `[..., padded rows, padded cols]`.

    The result's shape is the padded plane's; its bytes, in order, are the tiles. The kernels are held against it.
    """
    import numpy as np  # commands that read headers alone need the sizes, not numpy

    *stack, rows, cols = scales.shape
    padded_rows, padded_cols = padded_shape(rows, cols)
    padded = np.zeros((*stack, padded_rows, padded_cols), np.uint8)
    padded[..., :rows, :cols] = scales
    tiles = padded.reshape(*stack, padded_rows // TILE_ROWS, 4, 32, padded_cols // TILE_COLS, TILE_COLS)
    return np.swapaxes(tiles, -4, -2).reshape(padded.shape)  # `[..., 4, 32, n, 4]` to `[..., n, 32, 4, 4]`
