"""Running jobs together on a concurrent.futures.Executor: threads, forked workers or a cluster."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from csf_tool.cancel import CancelToken, Stopped
from csf_tool.devices import cores
from csf_tool.progress import SharedProgress

T = TypeVar("T")
R = TypeVar("R")

_LOOK_SECONDS = 0.2
"""Longest wait in one piece: Ctrl-C that arrives as it begins, or in another thread, does not end it."""

MAX_DEFAULT_JOBS = 4
"""Most jobs by default: more did not help on any disk that was measured (docs/performance.md)."""


def default_jobs() -> int:
    """Number of jobs at a time unless the user says otherwise: one a core, up to a few."""
    return min(cores(), MAX_DEFAULT_JOBS)


def run_with_progress(
    tasks: Iterable[T],
    work: Callable[..., R],
    done: Callable[[T, R], None],
    jobs: int,
    cancel: CancelToken,
    progress: SharedProgress,
    executor: Executor | None = None,
) -> None:
    """Run `work` on every task as `run_jobs` does: in threads here, `jobs` at a time, or on a cluster's `executor`.

    Here it is given `on_bytes`, to report its bytes as progress and to end when it is cancelled; a cluster's workers
    can do neither.
    """
    if executor is not None:
        run_jobs(tasks, work, done, executor, cancel, progress.wait)
        return
    # Reading, hashing, copying and numpy's loops all run outside the interpreter's lock.
    with ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="csf-tool") as pool:
        checked: Any = partial(work, on_bytes=cancel.checked(progress.advance))
        run_jobs(tasks, checked, done, pool, cancel, progress.wait)


def run_jobs(
    tasks: Iterable[T],
    work: Callable[[T], R],
    done: Callable[[T, R], None],
    executor: Executor,
    cancel: CancelToken,
    waiting: Callable[[], object] = lambda: None,
) -> None:
    """Run `work` on every task. `done` gets each result, in this thread, in the order in which they finish, and
    `waiting` is called in it now and then meanwhile.

    When a job fails, or the user interrupts, `cancel` ends the running ones, those that have not begun never do, and
    the first error is raised once all have ended.
    """
    futures: dict[Future[R], T] = {}
    finished: SimpleQueue[Future[R]] = SimpleQueue()  # `as_completed` takes locks that an interrupt can leave taken
    run = partial(_cancelling, work, cancel) if isinstance(executor, ThreadPoolExecutor) else work
    try:
        with interrupts_deferred():
            for task in tasks:
                future = executor.submit(run, task)
                futures[future] = task
                future.add_done_callback(finished.put)
        stopped: Stopped | None = None
        for _ in futures:
            future = _next(finished, waiting)
            try:
                result = future.result()
            except Stopped as error:  # another job failed: its error is about to arrive
                stopped = error
                continue
            done(futures[future], result)
        if stopped:
            raise stopped
    except BaseException:
        cancel.cancel()
        for future in futures:
            future.cancel()
        executor.shutdown(wait=True)
        raise


def _next(queue: SimpleQueue[T], waiting: Callable[[], object]) -> T:
    """Wait for an item, in a way that lets Ctrl-C arrive."""
    while True:
        with suppress(Empty):
            return queue.get(timeout=_LOOK_SECONDS)
        waiting()


def _cancelling(work: Callable[[T], R], cancel: CancelToken, task: T) -> R:
    """Do a task in a thread. If it fails, cancel at once: before the thread takes its next task."""
    try:
        return work(task)
    except BaseException:
        cancel.cancel()
        raise


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends: inside `submit` it could leave the executor's own lock taken."""
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
