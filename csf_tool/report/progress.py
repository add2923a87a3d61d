"""Progress on stderr: one line that is drawn again and again on a terminal, and lines of a log everywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from csf_tool import process
from csf_tool.progress import NOTHING, Amount, Progress, Silent
from csf_tool.report.tally import Tally
from csf_tool.report.volume import is_quiet
from csf_tool.text import count, verb

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_DRAW_SECONDS = 0.1

_FIRST_SECONDS = 2.0
"""Seconds of work before the first line of a log: short runs have none."""

_SHARD_SECONDS = 5.0
"""Least seconds between two lines of a log: small shards finish by the hundred."""

_LINE_SECONDS = 30.0
"""Most seconds between two lines of a log."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A `Progress` that is shown on stderr: drawn where a terminal can do that, and in lines where none can."""
    if is_quiet():
        yield Silent()
    elif console := _terminal():
        bar = _Bar(console)
        try:
            yield bar
        finally:
            bar.close()
    else:
        lines = LogLines(process.say)
        yield lines
        lines.close()


def _terminal() -> "Console | None":
    """The terminal that stderr is, if it can draw a line again."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console  # costs time that runs without a terminal need not take

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


class _Shown(Progress):
    """The parts that both ways of showing have in common."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._say = say
        self._clock = clock
        self._tally: Tally | None = None
        self._is_resumed = False

    def resume(self, finished: int, shards: int) -> None:
        """See `Progress.resume`; said once."""
        if finished and not self._is_resumed:
            self._is_resumed = True
            self._say(f"continuing: {finished:,} of {count(shards, 'shard')} {verb(finished, 'is', 'are')} finished")

    def start(self, what: str, total: Amount, there: Amount = NOTHING) -> None:
        """See `Progress.start`."""
        self._tally = Tally(what, total, there, self._clock)

    def advance(self, nbytes: int) -> None:
        """See `Progress.advance`."""
        if self._tally:
            self._tally.add(nbytes)
            self._show(self._tally)

    def shard_done(self) -> None:
        """See `Progress.shard_done`."""
        if self._tally:
            self._tally.add_shard()
            self._show(self._tally)

    def _show(self, tally: Tally) -> None:
        raise NotImplementedError


class LogLines(_Shown):
    """Progress in lines of a log: one for each finished shard, but not too many, and one every half minute."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Say each line with `say`."""
        super().__init__(say, clock)
        self._said = 0.0
        self._is_untold = False
        """Whether a shard has finished since the last line."""
        self._lines = 0

    def start(self, what: str, total: Amount, there: Amount = NOTHING) -> None:
        """See `Progress.start`."""
        self.close()
        super().start(what, total, there)
        self._said, self._is_untold, self._lines = self._clock(), False, 0

    def shard_done(self) -> None:
        """See `Progress.shard_done`."""
        self._is_untold = True
        super().shard_done()

    def close(self) -> None:
        """Say how the work ended, if there were lines before."""
        if self._tally and self._lines and self._is_untold:
            self._tell(self._tally)

    def _show(self, tally: Tally) -> None:
        waited = self._clock() - self._said
        least = _SHARD_SECONDS if self._lines else _FIRST_SECONDS
        if waited >= _LINE_SECONDS or (self._is_untold and waited >= least):
            self._tell(tally)

    def _tell(self, tally: Tally) -> None:
        self._said, self._is_untold, self._lines = self._clock(), False, self._lines + 1
        self._say(f"{tally.what}: {tally.words()}")


class _Bar(_Shown):
    """Progress as one line of a terminal, which disappears at the end."""

    def __init__(self, console: "Console") -> None:
        super().__init__(process.say, time.monotonic)
        self._console = console
        self._live: Live | None = None
        self._drawn = 0.0

    def start(self, what: str, total: Amount, there: Amount = NOTHING) -> None:
        super().start(what, total, there)
        if self._live is None:
            from rich.live import Live

            process.cursor_is_hidden(True)
            self._live = Live(
                console=self._console,
                get_renderable=self._line,
                transient=True,
                auto_refresh=False,  # that takes a thread, and a process that has two must not fork
                redirect_stdout=False,
            )
            self._live.start()
        self._drawn = time.monotonic()
        self._live.refresh()

    def close(self) -> None:
        """Remove the line."""
        if self._live:
            self._live.stop()
        process.cursor_is_hidden(False)

    def _show(self, tally: Tally) -> None:  # noqa: ARG002
        now = time.monotonic()
        if self._live and now - self._drawn > _DRAW_SECONDS:
            self._drawn = now
            self._live.refresh()

    def _line(self) -> str:
        bar = "#." if self._console.options.ascii_only else "━─"
        return self._tally.line(self._console.width - 1, *bar) if self._tally else ""
