"""Sizes in the 128x4 layout of tensor cores (`swizzle.py` has its order). Standard library only, as formats.py."""

TILE_ROWS = 128
"""Rows of a tile."""

TILE_COLS = 4
"""Columns of a tile."""

TILE_BYTES = TILE_ROWS * TILE_COLS
"""Bytes of a tile."""


def padded_shape(rows: int, cols: int) -> tuple[int, int]:
    """Rows and columns of a `[rows, cols]` plane in the 128x4 layout, padding included."""
    return -(-rows // TILE_ROWS) * TILE_ROWS, -(-cols // TILE_COLS) * TILE_COLS
