"""Whether this process may be forked."""

import os
from pathlib import Path

_THREADS = Path("/proc/self/task")
"""Where Linux lists this process's threads, those of libraries included."""


def can_be_copied() -> bool:
    """Whether there is a core to spare, and no second thread: its locks would stay locked in the copy for ever."""
    try:
        return len(os.sched_getaffinity(0)) > 1 and len(list(_THREADS.iterdir())) == 1
    except (AttributeError, OSError):  # not Linux
        return False
