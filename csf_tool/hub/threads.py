"""Daemon threads that wait for the network, so that a run can end without them.

A thread that reads from a server cannot be interrupted, and a server may take any time. So these threads end with
the process, and callers that wait for an answer stop when the run does.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from csf_tool.cancel import CancelToken, Stopped
from csf_tool.errors import EnvironmentFault

LONGEST_SILENCE = 90.0
"""Seconds that a server may take until its answer begins, connecting included."""

_LOOK_SECONDS = 0.2
"""Longest wait in one piece: Ctrl-C that arrives as it begins, or in another thread, does not end it."""


class Answer:
    """The result of work in a thread."""

    def __init__(self, look: Callable[[], None]) -> None:
        """Take `look`, which is called now and then while a caller waits."""
        self._look = look
        self._ready = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether there is a value or an error, or the answer was cancelled."""
        return self._ready.is_set()

    def give(self, value: Any = None, error: BaseException | None = None) -> None:
        """Set the value, or the error in its place. Only the first call counts."""
        if not self._ready.is_set():
            self._value, self._error = value, error
            self._ready.set()

    def cancel(self) -> None:
        """Cancel the wait for the answer."""
        self.give(error=Stopped())

    def result(self) -> Any:
        """Wait for the value and return it, or raise the error in its place.

        Raises:
            Stopped: the run is over.
        """
        while not self._ready.wait(_LOOK_SECONDS):
            self._look()
        if self._error:
            raise self._error
        return self._value


class NetworkThreads:
    """A limited number of threads that fetch."""

    def __init__(self, most: int) -> None:
        self.cancel = CancelToken(self._give_up)
        """Ends every wait when cancelled, for an answer or for the next try."""
        self._most = most
        self._running = 0
        self._lock = threading.Lock()
        self._tasks: deque[tuple[Answer, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._unfinished: set[Answer] = set()
        self._silent: dict[Answer, tuple[float, str]] = {}
        self._here = threading.local()

    def submit(self, work: Callable[..., Any], *args: Any) -> Answer:
        """Have a thread do `work`, and return its answer."""
        answer = Answer(self._end_silence)
        with self._lock:
            self._unfinished.add(answer)
            self._tasks.append((answer, work, args))
            begins = self._running < self._most
            self._running += begins
        if begins:
            threading.Thread(target=self._work, name="csf-tool-hub", daemon=True).start()
        if self.cancel.is_cancelled:
            answer.cancel()
        return answer

    @contextmanager
    def awaited(self, whose: str) -> Iterator[None]:
        """A block in which one of these threads waits for an answer of `whose` to begin."""
        answer: Answer = self._here.answer
        self._silent[answer] = (time.monotonic() + LONGEST_SILENCE, whose)
        try:
            yield
        finally:
            self._silent.pop(answer, None)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._running -= 1
                    return
                answer, work, args = self._tasks.popleft()
            if not answer.done():
                self._here.answer = answer
                try:
                    answer.give(work(*args))
                except BaseException as error:
                    answer.give(error=error)
            with self._lock:
                self._unfinished.discard(answer)

    def _give_up(self) -> None:
        for answer in list(self._unfinished):
            answer.cancel()

    def _end_silence(self) -> None:
        now = time.monotonic()
        for answer, (until, whose) in list(self._silent.items()):
            if now > until:
                text = f"{whose} has not started to answer within {LONGEST_SILENCE:.0f} seconds: check the network"
                answer.give(error=EnvironmentFault(text))
