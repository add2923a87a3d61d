"""Progress of operations, reported by callback. Nothing here prints."""

import threading
from collections.abc import Callable
from typing import Protocol

OnBytes = Callable[[int], None]
"""Called with the number of bytes processed since the last call."""


class Progress(Protocol):
    """Takes the reports of an operation: bytes to process, and bytes that have been."""

    def start(self, what: str, total_bytes: int) -> None:
        """Work on `what` begins: `total_bytes` to process."""

    def advance(self, nbytes: int) -> None:
        """`nbytes` more are done."""


class Silent:
    """Progress that goes nowhere."""

    def start(self, what: str, total_bytes: int) -> None:
        """Ignore it."""

    def advance(self, nbytes: int) -> None:
        """Ignore it."""


class SharedProgress:
    """A `Progress` that several threads may report to at once."""

    def __init__(self, inner: Progress) -> None:
        """Report to `inner`, one call at a time."""
        self._inner = inner
        self._lock = threading.Lock()

    def start(self, what: str, total_bytes: int) -> None:
        """See `Progress.start`."""
        with self._lock:
            self._inner.start(what, total_bytes)

    def advance(self, nbytes: int) -> None:
        """See `Progress.advance`."""
        with self._lock:
            self._inner.advance(nbytes)
