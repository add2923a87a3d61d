"""Jobs that run together: an interrupt while they are being handed out, and how one that fails ends the others."""

import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from csf_tool.cancel import CancelToken, Stopped
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
    cancelled: list[bool] = []
    cancel = CancelToken(lambda: cancelled.append(True))
    done: list[int] = []
    with Interrupting(2) as pool:
        with pytest.raises(KeyboardInterrupt):
            run_jobs(range(5), lambda n: n, lambda _, n: done.append(n), pool, cancel)
        assert pool.handed_out == 5
    assert (cancelled, done) == ([True], [])
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_an_interrupt_arrives_that_another_thread_received() -> None:
    """The system may give it to any thread, and it may come just before the main thread waits: no wait is ended."""
    cancel = CancelToken()
    ended: list[int] = []

    def work(task: int) -> None:
        time.sleep(0.3)  # until the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        try:
            cancel.wait(20)
        except Stopped:
            ended.append(task)

    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        run_jobs(range(1), work, lambda *_: None, pool, cancel)
    assert ended == [0]


def test_a_job_that_fails_ends_the_others_at_their_next_report() -> None:
    """Jobs that sleep end at once, the others when they report progress."""
    cancel = CancelToken()
    on_bytes = cancel.checked(lambda _: None)
    under_way = threading.Barrier(3)
    ended: list[str] = []

    def work(task: str) -> None:
        under_way.wait()
        try:
            while task == "reports":
                on_bytes(1)
            if task == "waits":
                cancel.wait(60)
        except Stopped:
            ended.append(task)
        raise ZeroDivisionError

    with ThreadPoolExecutor(3) as pool, pytest.raises(ZeroDivisionError):
        run_jobs(["fails", "reports", "waits"], work, lambda *_: None, pool, cancel)
    assert sorted(ended) == ["reports", "waits"]


def test_a_thread_whose_job_failed_begins_no_other() -> None:
    """The job cancels the others itself: the thread that waits for results may hear of its failure late."""
    reached: list[int] = []
    cancel = CancelToken()

    def work(n: int) -> int:
        if n == 1:
            raise ValueError("this one")
        cancel.check()
        reached.append(n)
        return n

    class Slow(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(*args, **kwargs)
            time.sleep(0.01)
            return future

    with Slow(1) as pool, pytest.raises(ValueError, match="this one"):
        run_jobs(range(4), work, lambda *_: None, pool, cancel)
    assert reached == [0]
