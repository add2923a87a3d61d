"""How operations report progress: by callback. Nothing here prints."""

from collections.abc import Callable
from typing import Protocol

OnBytes = Callable[[int], None]
"""Told how many bytes have just been gone through."""


class Progress(Protocol):
    """Told how many bytes there are to go through, and how many have just been."""

    def start(self, what: str, total_bytes: int) -> None:
        """Work on `what` begins: `total_bytes` to go through."""

    def advance(self, nbytes: int) -> None:
        """`nbytes` more are done."""


class Silent:
    """Progress that goes nowhere."""

    def start(self, what: str, total_bytes: int) -> None:
        """Ignore it."""

    def advance(self, nbytes: int) -> None:
        """Ignore it."""
