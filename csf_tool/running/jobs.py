"""Shards in flight together, on any concurrent.futures.Executor, with one progress and a clean stop."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

from csf_tool.checkpoint.model import Checkpoint
from csf_tool.progress import Progress

T = TypeVar("T")
R = TypeVar("R")

MAX_DEFAULT_JOBS = 4
"""Most jobs that are started unasked: more did not help on any disk that was measured (docs/performance.md)."""


def default_jobs() -> int:
    """How many shards are worked on together unless the user says otherwise: one a core, up to a few."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_DEFAULT_JOBS)


def should_drop_cache(checkpoint: Checkpoint, wanted: bool | None) -> bool:
    """Whether a run should keep its files out of the page cache: as asked for, or when they would fill memory."""
    if wanted is not None or not hasattr(os, "sysconf"):
        return bool(wanted)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sum(shard.size for shard in checkpoint.shards) > memory // 2


class Stopped(Exception):
    """Raised inside a job when another failed or the user interrupted: its partial file goes away."""


class SharedProgress:
    """A `Progress` for several threads; it also tells them to stop."""

    def __init__(self, inner: Progress, *sources: Checkpoint | None) -> None:
        """Report to `inner`; what is being fetched for `sources` stops, too."""
        self._inner = inner
        self._hubs = [source.hub for source in sources if source and source.hub]
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def start(self, what: str, total_bytes: int) -> None:
        """See `Progress.start`."""
        self._inner.start(what, total_bytes)

    def advance(self, nbytes: int) -> None:
        """See `Progress.advance`.

        Raises:
            Stopped: `stop` was called.
        """
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            self._inner.advance(nbytes)

    def stop(self) -> None:
        """Make every job stop at its next report."""
        self._stop.set()
        for hub in self._hubs:
            hub.stop()


def run_jobs(
    tasks: Iterable[T],
    work: Callable[[T], R],
    done: Callable[[T, R], None],
    executor: Executor,
    stop: Callable[[], None],
) -> None:
    """Run `work` on every task; `done` hears of each result in this thread, in the order in which they finish.

    When a job fails, or the user interrupts, jobs that have not begun are cancelled, `stop` makes the running
    ones end, and the first error is raised once all have.
    """
    futures: dict[Future[R], T] = {}
    finished: SimpleQueue[Future[R]] = SimpleQueue()  # `as_completed` takes locks that an interrupt can leave taken
    try:
        with _interrupts_deferred():
            for task in tasks:
                future = executor.submit(work, task)
                futures[future] = task
                future.add_done_callback(finished.put)
        for _ in futures:
            future = finished.get()
            done(futures[future], future.result())
    except BaseException:
        stop()
        for future in futures:
            future.cancel()
        executor.shutdown(wait=True)
        raise


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: inside `submit` it could leave the executor's own lock taken."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)  # None: not set from Python
        if interrupts:
            signal.raise_signal(signal.SIGINT)


def local_executor(jobs: int) -> ThreadPoolExecutor:
    """Threads: reading, hashing, copying and numpy's loops all run outside the interpreter's lock."""
    return ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="csf-tool")
