"""Work that a copy of this process does while this one goes on."""

import marshal
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

if sys.platform == "linux":
    import fcntl

_PIPE_BYTES = 1 << 20
"""What a pipe is to hold, the most that Linux allows everybody: the two processes wait for each other less often."""

_THREADS = Path("/proc/self/task")
"""Where Linux lists this process's threads, those of libraries included."""


@contextmanager
def in_background(work: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Have a copy of this process do some work, and give what waits for the result; it is to be called once.

    The result is plain data, as marshal takes them, in a third of the time of pickle. That of a copy that comes to
    grief, whatever it is, is None. Where copying is not safe, or there is but one core, the work is done here, when
    its result is asked for.
    """
    if not can_be_copied():
        yield work
        return
    receiving, sending = os.pipe()
    with suppress(OSError):  # refused where a user has many of them
        fcntl.fcntl(receiving, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    copy = os.fork()
    if not copy:
        try:
            os.close(receiving)  # so that nobody listens any more when the other process has gone on without the result
            with open(sending, "wb") as pipe:
                pipe.write(marshal.dumps(work()))
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
    """What the copy sent, whole; None where it ended before. Nobody else may send it: marshal trusts what it reads."""
    with suppress(EOFError, ValueError, TypeError):
        return marshal.loads(pipe.read())
    return None


def can_be_copied() -> bool:
    """Whether there is a core to spare, and no second thread: its locks would stay locked in the copy for ever."""
    try:
        return len(os.sched_getaffinity(0)) > 1 and len(list(_THREADS.iterdir())) == 1
    except (AttributeError, OSError):  # not Linux
        return False
