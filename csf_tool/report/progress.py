"""A progress bar on stderr: bytes, rate, time left. Nothing where stderr is no terminal."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from csf_tool import process
from csf_tool.progress import Progress, Silent
from csf_tool.report.volume import is_quiet

if TYPE_CHECKING:
    from rich import progress as rich_progress

_DRAW_SECONDS = 0.1


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A `Progress` that draws on stderr, or draws nothing where nobody watches."""
    if is_quiet() or not sys.stderr.isatty():
        yield Silent()
        return
    from rich import progress as rich_progress  # costs time that runs without a terminal need not take
    from rich.console import Console

    bar = rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(binary_units=True),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,  # that takes a thread, and a process that has two must not fork
    )
    process.cursor_is_hidden(bar.console.is_terminal and not bar.console.is_dumb_terminal)
    try:
        with bar:
            yield _Bar(bar)
    finally:
        process.cursor_is_hidden(False)


class _Bar:
    """Feeds a rich progress bar."""

    def __init__(self, bar: "rich_progress.Progress") -> None:
        self._bar = bar
        self._task: rich_progress.TaskID | None = None
        self._drawn = 0.0

    def start(self, what: str, total_bytes: int) -> None:
        self._task = self._bar.add_task(what, total=total_bytes)
        self._draw()

    def advance(self, nbytes: int) -> None:
        if self._task is not None:
            self._bar.advance(self._task, nbytes)
            self._draw()

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._drawn > _DRAW_SECONDS:
            self._drawn = now
            self._bar.refresh()
