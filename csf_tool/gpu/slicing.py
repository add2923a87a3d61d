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
from csf_tool.gpu.launching import require_geometry
from csf_tool.gpu.scales import CsfScales, prepare_csf_scales


@dataclass(frozen=True, eq=False, slots=True)
class RowStreams:
    """The streams of a stack, row by row, on any device."""

    format: CsfFormat
    cols: int
    bases: torch.Tensor
    """Row bases: uint8 `[experts, rows]`."""
    codes: torch.Tensor
    """Packed codes: uint8 `[experts, rows, row bytes]`."""
    expert: torch.Tensor
    """Where each exception lies, in order: int64 `[n]`, as `row` and `col`."""
    row: torch.Tensor
    col: torch.Tensor
    value: torch.Tensor
    """The value of each exception: int64 `[n]`, 0 to 255."""

    @property
    def rows(self) -> int:
        """Rows of a plane."""
        return self.bases.shape[1]

    @classmethod
    def of(cls, scales: CsfScales) -> "RowStreams":
        """The streams of a stack that was prepared with `reused=False`.

        Raises:
            ValueError: it was prepared for many uses, and its exceptions no longer stand together.
        """
        if scales.lead_group:
            raise ValueError("these scales were prepared for decoding; cut them first, or prepare with reused=False")
        bases = scales.fixed[..., :SLAB_ROWS].flatten(1)
        codes = scales.fixed[..., SLAB_ROWS:].reshape(scales.experts, scales.rows, -1)
        pieces = (len(scales.piece_starts) - 1) // scales.experts
        counts = scales.piece_starts[::pieces].diff()
        experts = torch.arange(scales.experts, device=scales.device)
        position = (scales.rest & formats.POSITION_MASK).to(torch.int64)
        return cls(
            scales.format,
            scales.cols,
            bases,
            codes,
            expert=torch.repeat_interleave(experts, counts, output_size=len(position)),
            row=position // scales.cols,
            col=position % scales.cols,
            value=(scales.rest >> formats.POSITION_BITS).to(torch.int64) & 0xFF,
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

    def fixed(self) -> torch.Tensor:
        """The fixed streams: uint8 `[experts, rows / 16, slab bytes]`."""
        bases = self.bases.reshape(len(self.bases), -1, SLAB_ROWS)
        return torch.cat([bases, self.codes.reshape(*bases.shape[:2], -1)], dim=-1)

    def words(self) -> torch.Tensor:
        """The exception words of all planes: int32 `[n]`, the bits of the format's uint32."""
        words = self.value << formats.POSITION_BITS | self.row * self.cols + self.col
        return words.to(torch.int32)  # wraps

    def counts(self) -> list[int]:
        """How many exceptions each plane has."""
        counts: list[int] = torch.bincount(self.expert, minlength=len(self.bases)).tolist()
        return counts

    def require_geometry(self) -> None:
        """Check that the format has such planes.

        Raises:
            ValueError: it has not.
        """
        require_geometry(self.format, self.rows, self.cols)

    def prepared(self) -> CsfScales:
        """The stack, ready to be decompressed as often as its layer runs.

        Raises:
            ValueError: the format has no planes of this geometry.
        """
        self.require_geometry()
        return prepare_csf_scales(
            self.format,
            self.fixed(),
            self.words(),
            self.counts(),
            rows=self.rows,
            cols=self.cols,
            validate=False,  # made from checked streams, and in order by construction
        )


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
