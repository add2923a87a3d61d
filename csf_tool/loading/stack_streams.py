"""The streams of planes of one geometry on a device: brought there as they are stored, and checked there."""

from collections.abc import Sequence
from typing import NoReturn

import torch

from csf_tool.checkpoint.model import Plane
from csf_tool.checkpoint.streams import Readers
from csf_tool.codec.formats import EXCEPTION_BYTES
from csf_tool.coders.encoder import Encoded
from csf_tool.errors import EnvironmentFault
from csf_tool.gpu import CsfScales, prepare_csf_scales
from csf_tool.loading.staging import Transfer


class StackStreams:
    """Compressed buffers for planes of one format and geometry, on a device.

    Planes that were encoded here are put into them at once, those that are stored by a `Stager`.
    """

    def __init__(self, planes: Sequence[Plane | Encoded], device: torch.device) -> None:
        first = planes[0] if isinstance(planes[0], Plane) else planes[0].plane
        self._fmt, self._rows, self._cols = first.fmt, first.rows, first.cols
        self._stored = [plane for plane in planes if isinstance(plane, Plane)]
        self._counts = [p.exception_count if isinstance(p, Plane) else len(p.exceptions) for p in planes]
        fixed_bytes = self._fmt.fixed_bytes(self._rows, self._cols)
        self._fixed = torch.empty(len(planes) * fixed_bytes, dtype=torch.uint8, device=device)
        self._words = torch.empty(sum(self._counts), dtype=torch.int32, device=device)
        self.transfers: list[Transfer] = []
        """What fills the buffers."""
        words = self._words.view(torch.uint8)
        at = 0
        for i, (plane, count) in enumerate(zip(planes, self._counts, strict=True)):
            if isinstance(plane, Plane):
                self.transfers.append(Transfer(plane.fixed, self._fixed, i * fixed_bytes))
                self.transfers.append(Transfer(plane.exceptions, words, EXCEPTION_BYTES * at))
            else:
                self._fixed[i * fixed_bytes : (i + 1) * fixed_bytes] = torch.from_numpy(plane.fixed.reshape(-1))
                self._words[at : at + count] = torch.from_numpy(plane.exceptions.view("<i4"))
            at += count

    def checked(self) -> CsfScales:
        """The filled buffers as a stack to decompress once, or to cut, after a check against the format's rules.

        Raises:
            StreamError: the streams of a plane break a rule.
        """
        streams = self._fixed, self._words, self._counts
        try:
            return prepare_csf_scales(self._fmt, *streams, rows=self._rows, cols=self._cols, reused=False)
        except ValueError as fault:
            self._blame(fault)

    def _blame(self, fault: ValueError) -> NoReturn:
        """Raise what the CPU says of the planes: it names tensor and place, in the words of every command."""
        with Readers() as readers:
            for plane in self._stored:
                readers.streams(plane).require_decodable()
        raise EnvironmentFault(
            f"{self._stored[0].name} and others: the device finds that {fault}, the CPU does not: do not trust this "
            "device or its driver"
        ) from fault
