"""The garbage collector's settings: a full-size checkpoint becomes a million lasting objects.

Looking for garbage among them doubles the time of making them. So opening and loading hold the collector back, and
in a process that runs one command it never looks at them at all.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_runs_one_command = False

_lock = threading.Lock()
_holders = 0
_was_enabled = True


def set_for_one_command() -> None:
    """Set the collector for a process that runs one command: little is garbage before its end.

    The default would go through half a million tensors again and again.
    """
    global _runs_one_command
    _runs_one_command = True
    gc.set_threshold(100_000, 20)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Hold the collector back while many lasting objects are made. A decorator as well.

    Threads may do so at the same time: the last one to end gives it back.
    """
    global _holders, _was_enabled
    with _lock:
        if not _holders:
            _was_enabled = gc.isenabled()
            gc.disable()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _runs_one_command:
                gc.freeze()
            if not _holders and _was_enabled:
                gc.enable()
