"""The streams of a stack on a device, as they are stored, and their check against the rules of the format."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch

from csf_tool.codec.formats import POSITION_MASK, SLAB_ROWS, CsfFormat
from csf_tool.gpu.arguments import require_tensor, whole_number, whole_numbers

_MAX_EXCEPTIONS = 2**31 - 1


class Exceptions(NamedTuple):
    """The exceptions of a stack."""

    words: torch.Tensor
    """Exception words, plane after plane: int32 `[n]`, the bits of the format's uint32."""
    counts: Sequence[int]
    """Number of exceptions of each plane."""


class QueuedExceptions(Protocol):
    """Exceptions that a device is still writing, when their number is not known yet."""

    def wait(self) -> Exceptions:
        """The exceptions, once the device is done."""


class CsfStreams:
    """The streams of a stack, on one device.

    An encoder only queues its work on the current stream, so several stacks can be queued. The first use of `ends`,
    `counts`, `exceptions` or `planes`, on the same stream, waits for it; until then the dense scales must not change.

    They are what `prepare_csf_scales` takes: `prepare_csf_scales(s.format, s.fixed, s.exceptions, s.counts,
    rows=s.rows, cols=s.cols, validate=False)`.
    """

    def __init__(
        self, fmt: CsfFormat, rows: int, cols: int, fixed: torch.Tensor, exceptions: Exceptions | QueuedExceptions
    ) -> None:
        self.format = fmt
        self.rows = rows
        self.cols = cols
        self.fixed = fixed
        """The fixed streams: uint8 `[experts, rows / 16, slab bytes]`."""
        self._exceptions = exceptions

    def __repr__(self) -> str:
        return f"<CsfStreams {self.format.name}: {len(self.fixed)} planes {self.rows}x{self.cols}, {self.fixed.device}>"

    @classmethod
    def of(
        cls, fmt: CsfFormat, fixed: torch.Tensor, exceptions: torch.Tensor, counts: Sequence[int], rows: int, cols: int
    ) -> "CsfStreams":
        """Streams whose sizes are right; `check` looks at what is in them.

        Raises:
            TypeError: an argument is of the wrong kind or dtype.
            ValueError: the format has no such planes, or the tensors do not fit together.
        """
        rows, cols = whole_number("rows", rows), whole_number("cols", cols)
        counts = whole_numbers("counts", counts)
        require_tensor("fixed", fixed, (torch.uint8,))
        require_tensor("exceptions", exceptions, (torch.uint32, torch.int32))
        require_geometry(fmt, rows, cols)
        if exceptions.device != fixed.device:
            raise ValueError(f"exceptions are on {exceptions.device}, but fixed streams are on {fixed.device}")
        expected = len(counts) * fmt.fixed_bytes(rows, cols)
        if fixed.numel() != expected:
            planes = f"{len(counts)} planes of {rows}x{cols}"
            raise ValueError(f"fixed streams have {fixed.numel()} bytes, but {planes} need {expected}")
        words = exceptions.reshape(-1).view(torch.int32)
        if min(counts, default=0) < 0:
            raise ValueError(f"counts has {min(counts)}: no plane has so many exceptions")
        if len(words) != sum(counts):
            raise ValueError(f"there are {len(words)} exceptions, but the planes have {sum(counts)}")
        if len(words) > _MAX_EXCEPTIONS:
            raise ValueError(
                f"there are {len(words)} exceptions, but a stack can have at most {_MAX_EXCEPTIONS}: split it"
            )
        slabs = fixed.reshape(len(counts), rows // SLAB_ROWS, fmt.slab_bytes(cols))
        return cls(fmt, rows, cols, slabs, Exceptions(words, counts))

    @property
    def experts(self) -> int:
        """Number of planes."""
        return self.fixed.shape[0]

    @property
    def device(self) -> torch.device:
        """The device of all streams."""
        return self.fixed.device

    def _known(self) -> Exceptions:
        """The exceptions, waited for if need be; what they were made from is released then."""
        if not isinstance(self._exceptions, Exceptions):
            self._exceptions = self._exceptions.wait()
        return self._exceptions

    @property
    def counts(self) -> list[int]:
        """Number of exceptions of each plane."""
        return list(self._known().counts)

    @property
    def ends(self) -> list[int]:
        """End of each plane's exceptions in `words`."""
        return list(accumulate(self.counts))

    @property
    def words(self) -> torch.Tensor:
        """The exceptions as int32, which torch computes with."""
        return self._known().words

    @property
    def exceptions(self) -> torch.Tensor:
        """The exception words of all planes, plane after plane: uint32 `[n]`."""
        return self.words.view(torch.uint32)

    @property
    def nbytes(self) -> int:
        """Bytes of all streams."""
        return self.fixed.nbytes + self.words.nbytes

    def planes(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Fixed stream and exceptions of each plane, as views."""
        words = self.words.split(self.counts)
        return [(fixed, own.view(torch.uint32)) for fixed, own in zip(self.fixed, words, strict=True)]

    def plane_of_each(self) -> torch.Tensor:
        """The plane of each exception: int64 `[n]`. One small copy to the device, and no wait for it."""
        words, counts = self._known()
        on_host = torch.tensor(counts, dtype=torch.int64, device="cpu")
        if self.device.type == "cuda":
            on_host = on_host.pin_memory()
        per_plane = on_host.to(self.device, non_blocking=True)
        planes = torch.arange(len(counts), device=self.device)
        return torch.repeat_interleave(planes, per_plane, output_size=len(words))

    def check(self) -> None:
        """Check the rules of the format that decoding relies on; it does not on exceptions being outside their window.

        Raises:
            ValueError: they break a rule, and the message names plane and rule; or they are on meta, without bytes.
        """
        if self.fixed.is_meta:
            raise ValueError("streams on meta have no bytes to check")
        _check_fixed(self.format, self.fixed, self.cols)
        _check_positions(self.words, self.plane_of_each(), self.rows * self.cols)


def require_geometry(fmt: CsfFormat, rows: int, cols: int) -> None:
    """Check that a format has planes of this geometry.

    Raises:
        TypeError: what is given as a format is none.
        ValueError: it has not.
    """
    if not isinstance(fmt, CsfFormat):
        raise TypeError(f"fmt must be a CsfFormat, not {type(fmt).__name__}")
    if fault := fmt.geometry_fault(rows, cols):
        raise ValueError(f"{fmt.title} CSF cannot store the planes: {fault}")


def _check_fixed(fmt: CsfFormat, fixed: torch.Tensor, cols: int) -> None:
    _refuse(fixed[..., :SLAB_ROWS] > fmt.max_base, f"a row base is above {fmt.max_base}")
    padding = fmt.row_bytes(cols) * 8 - cols * fmt.code_bits
    if padding:
        last = fixed[..., SLAB_ROWS:].reshape(*fixed.shape[:2], SLAB_ROWS, -1)[..., -1]
        _refuse(last >> (8 - padding) != 0, "bits past the last column are not zero")


def _check_positions(words: torch.Tensor, plane: torch.Tensor, scales: int) -> None:
    position = words & POSITION_MASK
    unsorted = (position[1:] <= position[:-1]) & (plane[1:] == plane[:-1])
    _refuse(position >= scales, f"an exception position is outside the plane of {scales} scales", plane)
    _refuse(unsorted, "exception positions must strictly increase", plane[1:])


def _refuse(bad: torch.Tensor, rule: str, plane: torch.Tensor | None = None) -> None:
    """Raise ValueError with the first plane where `bad` is true; dim 0 is the plane when `plane` is None."""
    if bool(bad.any()):
        first = int(bad.nonzero()[0, 0])
        raise ValueError(f"plane {first if plane is None else int(plane[first])}: {rule}")
