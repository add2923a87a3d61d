"""Work that a copy of this process does while this one goes on."""

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")

_THREADS = Path("/proc/self/task")
"""Where Linux lists this process's threads, those of libraries included."""


@contextmanager
def in_background(work: Callable[[], T]) -> Iterator[Callable[[], T | None]]:
    """Have a copy of this process do some work, and give what waits for the result; it is to be called once.

    The result of a copy that comes to grief, whatever it is, is None. Where copying is not safe, or there is but one
    core, the work is done here, when its result is asked for.
    """
    if not can_be_copied():
        yield work
        return
    receiving, sending = os.pipe()
    copy = os.fork()
    if not copy:
        try:
            os.close(receiving)  # so that nobody listens any more when the other process has gone on without the result
            with open(sending, "wb") as pipe:
                pickle.dump(work(), pipe)
        finally:
            os._exit(0)  # nothing of what the copied process has yet to do, not even to flush
    os.close(sending)
    with open(receiving, "rb") as pipe:
        try:
            yield lambda: _result(pipe)
        finally:
            pipe.close()
            with suppress(ChildProcessError):  # where SIGCHLD is ignored, the system has done it
                os.waitpid(copy, 0)


def _result(pipe: BinaryIO) -> Any:
    """What the copy sent, whole; None where it ended before. A pickle runs what it says: no one else may send it."""
    with suppress(EOFError, pickle.UnpicklingError):
        return pickle.load(pipe)
    return None


def can_be_copied() -> bool:
    """Whether there is a core to spare, and no second thread: its locks would stay locked in the copy for ever."""
    try:
        return len(os.sched_getaffinity(0)) > 1 and len(list(_THREADS.iterdir())) == 1
    except (AttributeError, OSError):  # not Linux
        return False
