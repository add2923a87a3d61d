"""Stopping a run: jobs ask a token whether to go on, and what they wait for is stopped with them."""

import threading
from collections.abc import Callable


class Stopped(Exception):
    """Raised inside a job when another failed or the user interrupted: its partial file goes away."""


class CancelToken:
    """Asks all jobs of a run to stop."""

    def __init__(self, *on_cancel: Callable[[], object]) -> None:
        """Call each of `on_cancel` as well once the run is cancelled: they end what jobs wait for."""
        self._on_cancel = on_cancel
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Ask all jobs to stop. Returns before they have."""
        if self._cancelled.is_set():
            return
        self._cancelled.set()
        for call in self._on_cancel:
            call()

    @property
    def is_cancelled(self) -> bool:
        """Whether the run has been asked to stop."""
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise `Stopped` once the run is cancelled.

        Raises:
            Stopped: it is cancelled.
        """
        if self._cancelled.is_set():
            raise Stopped

    def wait(self, seconds: float) -> None:
        """Sleep, at most until the run is cancelled.

        Raises:
            Stopped: it is cancelled.
        """
        self._cancelled.wait(seconds)
        self.check()

    def checked(self, on_bytes: Callable[[int], None]) -> Callable[[int], None]:
        """An `on_bytes` for jobs that raises `Stopped` once the run is cancelled."""

        def check_and_tell(nbytes: int) -> None:
            self.check()
            on_bytes(nbytes)

        return check_and_tell
