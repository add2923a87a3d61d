"""Shards in flight together, each in a copy of this process: threads that read small pieces wait for one another.

The copies only read. What they find comes back by a pipe, so they can be ended at any moment.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from csf_tool.errors import EnvironmentFault

T = TypeVar("T")
R = TypeVar("R")

Work = Callable[[T, Callable[[int], None]], R]
"""A task, and whom to tell of bytes that are done."""

_REPORT_BYTES = 16 << 20
"""How much a copy does between two reports: each wakes the process that waits."""


@dataclass(frozen=True)
class _Report(Generic[R]):
    """What a copy says: that so many bytes are done, and at last what came of it all."""

    nbytes: int
    results: tuple[R, ...] = ()
    error: BaseException | None = None


class _Teller:
    """Tells the process that waits of bytes, a good many at once."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe
        self.untold = 0

    def advance(self, nbytes: int) -> None:
        """Hear that so many more are done."""
        self.untold += nbytes
        if self.untold >= _REPORT_BYTES:
            self._pipe.send(_Report[Any](self.untold))
            self.untold = 0


def run_in_copies(
    tasks: Iterable[T], work: Work[T, R], done: Callable[[T, R], None], copies: int, on_bytes: Callable[[int], None]
) -> None:
    """Run `work` on every task, each in a copy of this process, at most `copies` at a time.

    `done` hears of each result, and `on_bytes` of progress, in this thread. When a task fails, or the user
    interrupts, the other copies are ended, and the first error is raised once they are gone.
    The process must be one that `background.can_be_copied`.

    Raises:
        EnvironmentFault: the system ended a copy.
    """
    left = iter(tasks)
    running: dict[Any, tuple[BaseProcess, T]] = {}
    try:
        while True:
            for task in islice(left, copies - len(running)):
                with _interrupts_held():
                    copy, pipe = _start(task, work)
                    running[pipe] = copy, task
            if not running:
                return
            for pipe in wait(list(running)):
                copy, task = running[pipe]
                report = _receive(pipe, copy)
                on_bytes(report.nbytes)
                if report.error:
                    raise report.error
                for result in report.results:
                    del running[pipe]
                    _end(copy, pipe)
                    done(task, result)
    finally:
        for pipe, (copy, _) in running.items():
            copy.kill()
            _end(copy, pipe)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A copy begun in here never hears an interrupt, though the terminal sends it one; this process does afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(task: T, work: Work[T, R]) -> tuple[BaseProcess, Any]:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    copy = multiprocessing.get_context("fork").Process(target=_run, args=(task, work, theirs, ours), daemon=True)
    copy.start()
    theirs.close()  # so that ours ends when the copy does
    return copy, ours


def _run(task: T, work: Work[T, R], pipe: "Connection[Any, Any]", other_end: "Connection[Any, Any]") -> None:
    """What a copy does. It ends without a word when nobody listens any more."""
    other_end.close()  # or there would always be one who listens
    teller = _Teller(pipe)
    try:
        report = _Report(0, (work(task, teller.advance),))
    except BrokenPipeError:
        return
    except BaseException as error:
        report = _Report(0, error=error)
    with suppress(BrokenPipeError):
        pipe.send(_Report(teller.untold, report.results, report.error))


def _receive(pipe: Any, copy: BaseProcess) -> _Report[Any]:
    try:
        report: _Report[Any] = pipe.recv()
    except EOFError as error:
        copy.join()
        raise EnvironmentFault(
            f"a process that went through a shard was ended from outside (exit code {copy.exitcode}; memory may have "
            "been short): run the same command again, with --jobs 1 if it happens again"
        ) from error
    return report


def _end(copy: BaseProcess, pipe: Any) -> None:
    copy.join()
    pipe.close()
