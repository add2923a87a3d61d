"""The 128x4 layout in which tensor cores take block scales.

cuBLAS, CUTLASS, FlashInfer, `torch._scaled_mm` and Triton's SWIZZLE_32_4_4 read tiles of 128 rows by 4
columns, 512 bytes each, row of tiles by row of tiles. Inside a tile, a row's four bytes lie at
`row % 32 * 16 + row // 32 * 4`. Rows pad to 128 and columns to 4; the padding is zero.
"""

TILE_ROWS = 128
"""Rows of a tile."""

TILE_COLS = 4
"""Columns of a tile."""

TILE_BYTES = TILE_ROWS * TILE_COLS
"""Bytes of a tile."""


def padded_shape(rows: int, cols: int) -> tuple[int, int]:
    """Rows and columns of a `[rows, cols]` plane in the 128x4 layout, padding included."""
    return -(-rows // TILE_ROWS) * TILE_ROWS, -(-cols // TILE_COLS) * TILE_COLS
