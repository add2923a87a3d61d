"""Cut and join the streams of stacks without decoding them: for tensor-parallel ranks, and to fuse gate and up.

A scale is its row's base plus a code, so whole rows can be taken and put into another order as they are. Of a
row's columns the codes are cut; its base stays. Exceptions are rebased: they get the positions of the new plane.
What comes out decodes to the same values, but need not be what an encoder would write: the best base of half a
row may be another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from csf_tool.codec import formats
from csf_tool.codec.formats import SLAB_ROWS, CsfFormat
from csf_tool.gpu.streams import CsfStreams, require_geometry


@dataclass(frozen=True, eq=False, slots=True)
class RowStreams:
    """The streams of a stack, taken apart into rows, on any device."""

    format: CsfFormat
    cols: int
    bases: torch.Tensor
    """Row bases: uint8 `[experts, rows]`."""
    codes: torch.Tensor
    """Packed codes: uint8 `[experts, rows, row bytes]`."""
    expert: torch.Tensor
    """Plane of each exception, in order: int64 `[n]`, as its `row` and `col`."""
    row: torch.Tensor
    col: torch.Tensor
    value: torch.Tensor
    """The value of each exception: int64 `[n]`, 0 to 255."""

    @property
    def rows(self) -> int:
        """Rows of a plane."""
        return self.bases.shape[1]

    @classmethod
    def of(cls, streams: CsfStreams) -> "RowStreams":
        """The rows of checked streams."""
        words = streams.words
        position = (words & formats.POSITION_MASK).to(torch.int64)
        return cls(
            streams.format,
            streams.cols,
            bases=streams.fixed[..., :SLAB_ROWS].flatten(1),
            codes=streams.fixed[..., SLAB_ROWS:].reshape(streams.experts, streams.rows, -1),
            expert=streams.plane_of_each(),
            row=position // streams.cols,
            col=position % streams.cols,
            value=(words >> formats.POSITION_BITS).to(torch.int64) & 0xFF,
        )

    def take_rows(self, begin: int, end: int) -> "RowStreams":
        """Rows `begin` up to `end` of every plane."""
        kept = self._with_exceptions((self.row >= begin) & (self.row < end))
        bases, codes = self.bases[:, begin:end], self.codes[:, begin:end]
        return replace(kept, bases=bases, codes=codes, row=kept.row - begin)

    def take_columns(self, begin: int, end: int) -> "RowStreams":
        """Columns `begin` up to `end` of every plane."""
        kept = self._with_exceptions((self.col >= begin) & (self.col < end))
        codes = _cut_codes(self.codes, self.format.code_bits, begin, end)
        return replace(kept, cols=end - begin, codes=codes, col=kept.col - begin)

    def _with_exceptions(self, mask: torch.Tensor) -> "RowStreams":
        expert, row, col, value = (each[mask] for each in (self.expert, self.row, self.col, self.value))
        return replace(self, expert=expert, row=row, col=col, value=value)

    def stack(self) -> CsfStreams:
        """The streams as they are stored.

        Raises:
            ValueError: the format has no planes of this geometry.
        """
        require_geometry(self.format, self.rows, self.cols)
        bases = self.bases.reshape(len(self.bases), -1, SLAB_ROWS)
        fixed = torch.cat([bases, self.codes.reshape(*bases.shape[:2], -1)], dim=-1)
        words = self.value << formats.POSITION_BITS | self.row * self.cols + self.col
        counts = torch.bincount(self.expert, minlength=len(self.bases)).tolist()
        return CsfStreams.of(self.format, fixed, words.to(torch.int32), counts, self.rows, self.cols)  # words wrap


def _cut_codes(codes: torch.Tensor, bits: int, begin: int, end: int) -> torch.Tensor:
    """The codes `[..., row bytes]` of columns `begin` up to `end`, packed anew: shifted where no byte begins there."""
    nbytes = ((end - begin) * bits + 7) // 8
    first, shift = divmod(begin * bits, 8)
    cut = codes[..., first : first + nbytes].clone()
    if shift:
        cut >>= shift
        following = codes[..., first + 1 : first + 1 + nbytes] << (8 - shift)
        cut[..., : following.shape[-1]] |= following
    padding = nbytes * 8 - (end - begin) * bits
    if padding:
        cut[..., -1] &= 0xFF >> padding
    return cut


def join_rows(parts: Sequence[RowStreams], *, interleave: bool = False) -> RowStreams:
    """Stacks of the same experts in one: the rows of each plane after those of the one before, or taking turns.

    Interleaved, row `i` of part `p` of `n` becomes row `i * n + p`.

    Raises:
        ValueError: the parts differ in what must be alike.
    """
    first = parts[0]
    for part in parts:
        alike = part.bases.shape == first.bases.shape if interleave else len(part.bases) == len(first.bases)
        if part.format != first.format or part.cols != first.cols or not alike:
            raise ValueError(f"{_describe(part)} cannot be joined to {_describe(first)}")
    if len(parts) == 1:
        return first
    if interleave:
        rows = [part.row * len(parts) + i for i, part in enumerate(parts)]
        bases = torch.stack([part.bases for part in parts], dim=2).flatten(1, 2)
        codes = torch.stack([part.codes for part in parts], dim=2).flatten(1, 2)
    else:
        rows = [part.row + sum(before.rows for before in parts[:i]) for i, part in enumerate(parts)]
        bases = torch.cat([part.bases for part in parts], dim=1)
        codes = torch.cat([part.codes for part in parts], dim=1)
    row = torch.cat(rows)
    expert, col, value = (torch.cat([getattr(part, name) for part in parts]) for name in ("expert", "col", "value"))
    order = torch.argsort((expert * bases.shape[1] + row) * first.cols + col)
    return RowStreams(first.format, first.cols, bases, codes, expert[order], row[order], col[order], value[order])


def _describe(part: RowStreams) -> str:
    return f"a {part.format.title} stack of {len(part.bases)} planes of {part.rows}x{part.cols}"
