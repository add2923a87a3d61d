"""The garbage collector's settings: a full-size checkpoint becomes a million objects, and all of them live on.

Looking for garbage among them doubles the time that it takes to make them. Opening one and loading its tensors holds
the collector back meanwhile; a process that ends with its command never looks at them at all.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ends_with_command = False


def end_with_command() -> None:
    """Set the collector for a process that runs one command: it has little garbage, and its memory is freed at its end.

    The default would look over half a million tensors again and again.
    """
    global _ends_with_command
    _ends_with_command = True
    gc.set_threshold(100_000, 20)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Make many objects that live on. A decorator as well."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _ends_with_command:
            gc.freeze()
        if enabled:
            gc.enable()
