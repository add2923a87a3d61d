"""Running jobs in forked workers, where threads that read small pieces would wait for the interpreter lock.

Workers only read; task, result and progress are all that passes between them and their parent. So they can be killed
at any moment.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from csf_tool.cancel import CancelToken
from csf_tool.errors import EnvironmentFault
from csf_tool.process import has_memory
from csf_tool.progress import OnBytes
from csf_tool.running.jobs import interrupts_deferred, run_jobs

R = TypeVar("R")

Work = Callable[[int, OnBytes], R]
"""Does the task of a number, and reports the bytes it has processed."""

_REPORT_BYTES = 16 << 20
"""Bytes that a worker processes between two reports: each report wakes the parent."""

_THREADS = Path("/proc/self/task")
"""The folder in which Linux lists this process's threads, those of libraries included."""

_SEMAPHORES = Path("/dev/shm")
"""The folder in which Linux keeps semaphores, which a process pool needs."""

_POOL_BYTES = 256 << 20
"""Address space for the threads of a pool and its workers, which do not end well where they find none."""

_DESCRIPTORS = Path("/proc/self/fd")
"""The folder in which Linux lists this process's open files."""

_POOL_FILES, _WORKER_FILES = 64, 4
"""Open files of a pool and what is read meanwhile, and of each worker: a pool that finds none waits for ever."""

_work: Work[Any]
_sending: "Connection[Any, Any]"
"""The work of a worker, and the pipe it reports to: set in forked workers alone."""


def may_fork(workers: int) -> bool:
    """Whether so many forked workers can help, and are safe.

    A lock of another thread would stay locked in them for ever; short of memory or of open files, a pool does not end.
    """
    try:
        cores, threads = len(os.sched_getaffinity(0)), len(list(_THREADS.iterdir()))
        files = _files_left()
    except (AttributeError, ImportError, OSError):  # not Linux
        return False
    has_room = files >= _POOL_FILES + _WORKER_FILES * workers and has_memory(_POOL_BYTES)
    return cores > 1 and threads == 1 and os.access(_SEMAPHORES, os.W_OK) and has_room


def _files_left() -> float:
    """Number of files that this process may open still."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if limit == resource.RLIM_INFINITY else limit - len(list(_DESCRIPTORS.iterdir()))


def run_forked(tasks: int, work: Work[R], done: Callable[[int, R], None], workers: int, on_bytes: OnBytes) -> None:
    """Run `work` on the numbers of all tasks, `workers` at a time, in forked workers; otherwise as `run_jobs`.

    `on_bytes` is called in this thread and another. Only for a process that `may_fork`.

    Raises:
        EnvironmentFault: a worker was killed from outside.
    """
    receiving, sending = multiprocessing.Pipe(duplex=False)
    listener = threading.Thread(target=_listen, args=(receiving, on_bytes), name="csf-tool-progress")
    fork = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, fork, _begin_worker, (work, sending, receiving))
    others = set(multiprocessing.active_children())
    forked: list[BaseProcess] = []

    def end_workers() -> None:
        for worker in forked:
            worker.terminate()
        pool.shutdown()  # only now: a pool of Python 3.11 breaks when a task of workers that died is cancelled

    try:
        with interrupts_deferred():
            pool.submit(int)  # the first task starts all workers, while this process has no other thread
            forked += set(multiprocessing.active_children()) - others
            listener.start()
        run_jobs(range(tasks), _run, done, pool, CancelToken(end_workers), lambda: on_bytes(0))
    except BrokenProcessPool as error:
        codes = [worker.exitcode for worker in forked if worker.exitcode not in (0, -signal.SIGTERM)]
        raise EnvironmentFault(
            f"a worker process was ended from outside (exit code {(codes or [-signal.SIGTERM])[0]}; "
            "perhaps for lack of memory): run the same command again, with --jobs 1 if it happens again"
        ) from error
    finally:
        pool.shutdown()
        sending.close()
        listener.join()


def _listen(receiving: "Connection[Any, Any]", on_bytes: OnBytes) -> None:
    """Pass on the reports of workers, until every writing end of the pipe is closed."""
    with receiving, suppress(EOFError):
        while True:
            on_bytes(receiving.recv())


def _begin_worker(work: Work[Any], sending: "Connection[Any, Any]", receiving: "Connection[Any, Any]") -> None:
    """Prepare a forked worker: Ctrl-C is left to its parent, SIGTERM ends it, and so does the end of its parent."""
    global _work, _sending
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    receiving.close()
    _work, _sending = work, sending
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
    os._exit(1)


def _run(task: int) -> Any:
    """Do a task, in a worker. Reports are small enough for the system to write each at once, so none needs a lock."""
    unreported = 0

    def on_bytes(nbytes: int) -> None:
        nonlocal unreported
        unreported += nbytes
        if unreported >= _REPORT_BYTES:
            _sending.send(unreported)
            unreported = 0

    result = _work(task, on_bytes)
    _sending.send(unreported)
    return result
