"""Pages of a mapped file that are made resident before they are touched, by a thread beside the one that copies them.

A thread that copies from a mapped file stops at every 64 KiB for the system to map them, and on a disk to read them.
"""

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from csf_tool.closing import Closing

CHUNK_BYTES = 16 << 20
"""Bytes that are asked for at a time, and how far ahead: little memory if they are not needed, much for a disk."""

_MADV_POPULATE_READ = 22
"""Since Linux 5.14; Python does not have its name. Past the end of a file it is an error, where a touch is a signal."""


class PagesAhead(Closing):
    """The pages of a mapped file, from which one range after another is copied. A context manager: it has a thread."""

    def __init__(self, mapped: torch.Tensor) -> None:
        self._mapped = mapped
        self._chunks = -(-mapped.nbytes // CHUNK_BYTES)
        self._asked: set[int] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="csf-tool-pages")

    def close(self) -> None:
        """Ask for no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def expect(self, begin: int, end: int) -> None:
        """Ask for the pages of a range that will be copied now, and for those behind it."""
        last = min(end // CHUNK_BYTES + 2, self._chunks)
        for chunk in range(begin // CHUNK_BYTES, last):
            if chunk not in self._asked:
                self._asked.add(chunk)
                self._pool.submit(_make_resident, self._mapped, chunk * CHUNK_BYTES)


def _make_resident(mapped: torch.Tensor, begin: int) -> None:
    """Make pages resident; without effect where the system cannot."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    if madvise:  # ctypes releases Python's lock, unlike mmap.madvise
        nbytes = min(CHUNK_BYTES, mapped.nbytes - begin)
        madvise(ctypes.c_void_p(mapped.data_ptr() + begin), ctypes.c_size_t(nbytes), _MADV_POPULATE_READ)
