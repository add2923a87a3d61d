"""Progress of operations, reported by callback. Nothing here prints."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

OnBytes = Callable[[int], None]
"""Called with the number of bytes processed since the last call: 0 says that the work goes on."""


@dataclass(frozen=True)
class Amount:
    """An amount of work: bytes, and the shards that they belong to."""

    nbytes: int = 0
    shards: int = 0


NOTHING = Amount()


class Progress:
    """Takes the reports of an operation, what there is to do and what has been done; here it ignores them."""

    def resume(self, finished: int, shards: int) -> None:
        """Go on with the work of an earlier run, which has finished so many of the shards."""

    def start(self, what: str, total: Amount, there: Amount = NOTHING) -> None:
        """Work on `what` begins: `total` is the whole of it, `there` the part that an earlier run has done."""

    def advance(self, nbytes: int) -> None:
        """`nbytes` more are done."""

    def shard_done(self) -> None:
        """One more shard is finished."""


class Silent(Progress):
    """Progress that goes nowhere."""


class SharedProgress(Progress):
    """A `Progress` that several threads may report to at once."""

    def __init__(self, inner: Progress) -> None:
        """Report to `inner`, one call at a time."""
        self._inner = inner
        self._lock = threading.Lock()

    def resume(self, finished: int, shards: int) -> None:
        """See `Progress.resume`."""
        with self._lock:
            self._inner.resume(finished, shards)

    def start(self, what: str, total: Amount, there: Amount = NOTHING) -> None:
        """See `Progress.start`."""
        with self._lock:
            self._inner.start(what, total, there)

    def advance(self, nbytes: int) -> None:
        """See `Progress.advance`."""
        with self._lock:
            self._inner.advance(nbytes)

    def shard_done(self) -> None:
        """See `Progress.shard_done`."""
        with self._lock:
            self._inner.shard_done()

    def wait(self) -> None:
        """Say that the work goes on, although nothing is reported: workers elsewhere report no bytes."""
        self.advance(0)
