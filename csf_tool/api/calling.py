"""The parts that all public functions share: arguments, opening checkpoints, progress, errors."""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from csf_tool.arguments import as_path, check_arguments, home_expanded
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.errors import CsfToolError, UsageError, system_fault
from csf_tool.hub.name import find_source
from csf_tool.progress import NOTHING, Amount, Progress, SharedProgress, Silent
from csf_tool.running.jobs import default_jobs

P = ParamSpec("P")
R = TypeVar("R")

Source = Checkpoint | str | os.PathLike[str]
"""A folder, a file, a repository on the Hub (`org/name`, `org/name@revision`), or what `open_checkpoint` gave."""

OnProgress = Callable[[int, int], object]
"""Called with the bytes that are done and the bytes to do, from any thread, one call at a time."""


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of every call, and raise what the system refuses as an `EnvironmentFault`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        check_arguments(function, signature.bind(*args, **kwargs).arguments)
        try:
            return function(*args, **kwargs)
        except OSError as error:
            if isinstance(error, CsfToolError):
                raise
            raise system_fault(error) from error

    return called


@contextmanager
def opened(name: str, source: Source, *, all_shards: bool = False) -> Iterator[Checkpoint]:
    """The checkpoint that the argument `name` means; one that is opened here is closed at the end."""
    if isinstance(source, Checkpoint):
        if all_shards and not source.all_shards:
            raise UsageError(f"all_shards: {source.label} was opened without it")
        yield source
        return
    path = as_path(name, source)
    place = find_source(home_expanded(source), lambda _: None) if isinstance(source, str) else path
    checkpoint = open_checkpoint(place, all_shards=all_shards)
    try:
        yield checkpoint
    finally:
        checkpoint.stop_fetching()


def progress_to(on_progress: OnProgress | None) -> Progress:
    """Progress that a callback of the caller's is told of."""
    return SharedProgress(_Told(on_progress)) if on_progress else Silent()


def number_of_jobs(jobs: int | None) -> int:
    """The number of shards in flight together."""
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs {jobs}: give 1 or more")
    return jobs or default_jobs()


def path_or_none(name: str, path: str | os.PathLike[str] | None) -> Path | None:
    """The path that an optional argument names."""
    return None if path is None else as_path(name, path)


class _Told(Silent):
    """Adds up what is done."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._done = self._total = 0

    def start(self, what: str, total: Amount, there: Amount = NOTHING) -> None:  # noqa: ARG002
        """See `Progress.start`."""
        self._done, self._total = there.nbytes, total.nbytes
        self._on_progress(self._done, self._total)

    def advance(self, nbytes: int) -> None:
        """See `Progress.advance`."""
        self._done += nbytes
        self._on_progress(self._done, self._total)
