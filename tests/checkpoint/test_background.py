"""Whether the process may be forked."""

import os
import threading

import pytest

from csf_tool.checkpoint import background


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied here")
def test_a_process_with_a_second_thread_is_not_copied() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not background.can_be_copied()
    finally:
        done.set()
        thread.join()
