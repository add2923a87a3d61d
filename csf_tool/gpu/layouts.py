"""The layouts in which dense scales are decoded: those that engines' kernels read."""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Union

import torch

from csf_tool.codec import tiles
from csf_tool.codec.prepared import PIECE_BYTES
from csf_tool.gpu import layout_kernels
from csf_tool.gpu.arguments import require_tensor
from csf_tool.gpu.launching import require_contiguous_at

DenseLayout = Literal["linear", "swizzled", "marlin"]
"""Order of dense scales in memory: row-major, the 128x4 layout of tensor cores, or that of Marlin's kernels."""

_FORMS = {
    "linear": int(layout_kernels.LINEAR),
    "swizzled": int(layout_kernels.SWIZZLED),
    "marlin": int(layout_kernels.MARLIN),
}

_TABLE_ENTRIES = int(layout_kernels.TABLE_ENTRIES)

_MAX_WIDTH = 4
"""Most column quads of a run: 8 code bytes of NVFP4, one load."""


def _form(name: object) -> None:
    if not isinstance(name, str) or name not in _FORMS:
        raise ValueError(f'layout must be "linear", "swizzled" or "marlin", or a ScaleLayout, not {name!r}')


def _inverse(row_order: torch.Tensor) -> torch.Tensor:
    """The place of each row, int32: a decode writes row after row."""
    require_tensor("row_order", row_order, (torch.int32, torch.int64))
    if row_order.is_meta:
        raise ValueError("row_order is on meta, so its rows cannot be checked")
    places = torch.arange(row_order.numel(), device=row_order.device)
    if row_order.dim() != 1 or not torch.equal(row_order.sort().values.long(), places):
        raise ValueError("row_order must have each row once")
    return row_order.argsort().int()


def _for_kernels(table: torch.Tensor) -> torch.Tensor:
    """The table, and the longest run of bytes that it merely shifts: its first byte, its last, the first's entry."""
    if table.is_meta:
        return table.new_empty(_TABLE_ENTRIES + 3)
    entries = table.tolist()
    low = high = first = 0
    for byte in range(_TABLE_ENTRIES):
        if entries[byte] - byte != entries[first] - first:
            first = byte
        if byte - first > high - low:
            low, high = first, byte
    about = torch.tensor([low, high, entries[low]], dtype=torch.uint8, device=table.device)
    return torch.cat([table, about])


class LayoutArguments(NamedTuple):
    """A layout as the decode's operator takes it."""

    destinations: torch.Tensor | None
    """The row to which each row goes: int32 `[rows]`."""
    table: torch.Tensor | None
    """Byte to write for each byte, and what the kernels know about it: uint8 `[259]`."""
    form: int
    swap: bool
    turns: int


class Items(NamedTuple):
    """Division of a plane among programs."""

    width: int
    """Column quads of a run; 0: items are pieces of the row-major plane."""
    size: int
    """Runs or bytes of an item."""
    items: int
    """Items of a plane."""


@dataclass(frozen=True, eq=False)
class ScaleLayout:
    """Layout of dense scales for which a name alone is not enough: order of rows, and a table for the bytes.

    Rows come first, then the form. Make it once, outside of graphs, and use it for all stacks with such planes: it is
    checked then, and its tensors are read, for which the host waits. Later changes to them have no effect.

    Raises:
        TypeError: a field is of the wrong kind or dtype.
        ValueError: there is no such form, the rows are in two orders at once, or a tensor has no such contents.
    """

    form: DenseLayout = "linear"
    """ "linear", "swizzled" or "marlin"."""
    swap_halves: bool = False
    """The second half of the rows before the first: up before gate."""
    interleave: int = 0
    """The halves take turns by so many rows: after the swap, if both are asked for."""
    row_order: torch.Tensor | None = None
    """Row that is in each place: int32 or int64 `[rows]`, as `plane[row_order]` would take it."""
    table: torch.Tensor | None = None
    """Byte to write for each byte: uint8 `[256]`, for engines that take scales in a number format of their own."""
    _destinations: torch.Tensor | None = field(init=False, repr=False, default=None)
    _table: torch.Tensor | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        """Check everything that does not depend on a stack."""
        _form(self.form)
        for name, kind in (("swap_halves", bool), ("interleave", int)):
            if type(given := getattr(self, name)) is not kind:  # True is no number of rows
                raise TypeError(f"{name} must be {kind.__name__}, not {type(given).__name__}")
        if self.interleave < 0:
            raise ValueError(f"interleave is {self.interleave}: give a number of rows")
        if self.table is not None:
            require_tensor("table", self.table, (torch.uint8,))
            if self.table.shape != (_TABLE_ENTRIES,):
                raise ValueError(f"table must be [{_TABLE_ENTRIES}], not {list(self.table.shape)}")
            object.__setattr__(self, "_table", _for_kernels(self.table))
        if self.row_order is not None:
            if self.swap_halves or self.interleave:
                raise ValueError("give row_order, or swap_halves and interleave: row_order says it all")
            object.__setattr__(self, "_destinations", _inverse(self.row_order))

    def __repr__(self) -> str:
        order, table = (None if tensor is None else list(tensor.shape) for tensor in (self.row_order, self.table))
        rows = f"swap_halves={self.swap_halves}, interleave={self.interleave}, row_order={order}"
        return f"ScaleLayout({self.form!r}, {rows}, table={table})"

    def arguments(self, rows: int, cols: int, device: torch.device) -> LayoutArguments:
        """The layout for planes of a geometry.

        Raises:
            ValueError: it is not for such planes, or its tensors are on another device.
        """
        if fault := self.fault(rows, cols):
            raise ValueError(fault)
        for name, tensor in (("row_order", self._destinations), ("table", self._table)):
            if tensor is not None:
                require_contiguous_at(name, tensor, device)
        return LayoutArguments(self._destinations, self._table, _FORMS[self.form], self.swap_halves, self.interleave)

    def fault(self, rows: int, cols: int) -> str | None:
        """Why planes of a geometry cannot be in the layout, or None when they can."""
        if self.form == "marlin" and rows % layout_kernels.MARLIN_ROWS:
            return f"the Marlin layout takes rows by {layout_kernels.MARLIN_ROWS}, the planes have {rows}"
        if self.form == "marlin" and cols < 2:
            return "the Marlin layout of planes of one column is another one"
        if self.interleave and rows % (2 * self.interleave):
            return f"halves of {rows} rows cannot take turns by {self.interleave}"
        if self._destinations is not None and len(self._destinations) != rows:
            return f"row_order has {len(self._destinations)} rows, the planes have {rows}"
        return None


AnyLayout = Union[DenseLayout, ScaleLayout]  # noqa: UP007 (the kernel hub's Python evaluates it)

_NAMED = {"linear": ScaleLayout("linear"), "swizzled": ScaleLayout("swizzled"), "marlin": ScaleLayout("marlin")}


def layout_of(layout: AnyLayout) -> ScaleLayout:
    """The layout, where a name stands for one without more to it.

    Raises:
        ValueError: there is none of that name.
    """
    if isinstance(layout, ScaleLayout):
        return layout
    _form(layout)
    return _NAMED[layout]


def dense_shape(layout: AnyLayout, rows: int, cols: int) -> tuple[int, int]:
    """The shape of a plane in a layout: padded to whole tiles in the 128x4 layout, columns first in Marlin's.

    Raises:
        ValueError: there is no such layout.
    """
    form = layout_of(layout).form
    if form == "marlin":
        return cols, rows
    return tiles.padded_shape(rows, cols) if form == "swizzled" else (rows, cols)


def divide(form: int, rows: int, cols: int, lanes: int) -> Items:
    """The items of a plane in a form, for programs of `lanes` threads."""
    if form == _FORMS["linear"]:
        return Items(0, PIECE_BYTES, -(-rows * cols // PIECE_BYTES))
    padded_rows, padded_cols = tiles.padded_shape(rows, cols)
    width = math.gcd(padded_cols // tiles.TILE_COLS, _MAX_WIDTH)
    runs = (rows if form == _FORMS["marlin"] else padded_rows) * padded_cols // (16 * width)
    return Items(width, lanes, -(-runs // lanes))  # a run a thread
