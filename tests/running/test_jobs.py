"""Jobs in flight together: an interrupt while they are being handed out."""

import signal
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from csf_tool.running.jobs import run_jobs


class Interrupting(ThreadPoolExecutor):
    """Threads to which the second job is handed just when the user presses Ctrl-C."""

    handed_out = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.handed_out += 1
        if self.handed_out == 2:
            signal.raise_signal(signal.SIGINT)
        return super().submit(*args, **kwargs)


def test_an_interrupt_waits_until_all_jobs_are_handed_out() -> None:
    """Raised inside the executor it could leave its lock taken, and its threads running for ever."""
    before = signal.getsignal(signal.SIGINT)
    stopped: list[bool] = []
    done: list[int] = []
    with Interrupting(2) as pool:
        with pytest.raises(KeyboardInterrupt):
            run_jobs(range(5), lambda n: n, lambda _, n: done.append(n), pool, lambda: stopped.append(True))
        assert pool.handed_out == 5
    assert (stopped, done) == ([True], [])
    assert signal.getsignal(signal.SIGINT) is before
