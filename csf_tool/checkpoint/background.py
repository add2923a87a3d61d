"""A question that a copy of this process answers while this one goes on."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Question = Callable[[], bool]

_THREADS = Path("/proc/self/task")
"""Where Linux lists this process's threads, those of libraries included."""


@contextmanager
def in_background(question: Question) -> Iterator[Question]:
    """Have a copy of this process answer a question, and give what waits for the answer.

    A copy that comes to grief, whatever it is, has answered no. Where copying is not safe, or there is but one
    core, the question is answered here, when its answer is asked for.
    """
    if not can_be_copied():
        yield question
        return
    copy = os.fork()
    if not copy:
        yes = False
        try:
            yes = question()
        finally:
            os._exit(0 if yes else 1)  # nothing of what the copied process has yet to do, not even to flush
    waited: list[int] = []

    def answer() -> bool:
        if not waited:
            waited.append(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]))
        return waited == [0]

    try:
        yield answer
    finally:
        answer()


def can_be_copied() -> bool:
    """Whether there is a core to spare, and no second thread: its locks would stay locked in the copy for ever."""
    try:
        return len(os.sched_getaffinity(0)) > 1 and len(list(_THREADS.iterdir())) == 1
    except (AttributeError, OSError):  # not Linux
        return False
