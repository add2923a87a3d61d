"""Tally of long work: the part done, the rate and the time left, as a line of a terminal and as words of a log."""

import math
import time
from collections.abc import Callable

from csf_tool.progress import Amount
from csf_tool.text import size, unit_for

_RATE_SECONDS = 1.0
"""Seconds of work before a rate is given: one of less says nothing."""

_BAR_COLUMNS = 10
"""Fewest columns of a bar that are worth drawing."""

_MOST_BAR_COLUMNS = 40


class Tally:
    """Adds up one phase of the work."""

    def __init__(self, what: str, total: Amount, there: Amount, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with what is `there` of the `total`; the rate is that of the rest."""
        self.what = what
        self._total = total
        self._there = there.nbytes
        self._nbytes, self._shards = there.nbytes, there.shards
        self._clock = clock
        self._begun = clock()

    def add(self, nbytes: int) -> None:
        """Count bytes that are done."""
        self._nbytes += nbytes

    def add_shard(self) -> None:
        """Count a shard that is finished."""
        self._shards += 1

    def words(self) -> str:
        """The state in words: "12 of 39 shards, 31.2 of 95.1 GiB, 1.20 GiB/s, 54 s left"."""
        left = self._left()
        return ", ".join(self._parts(" of ", f"{_in_words(left)} left" if left else ""))

    def line(self, columns: int, full: str = "━", empty: str = "─") -> str:
        """The state in one line of at most so many columns, with a bar where there is room for one."""
        left = self._left()
        parts = self._parts("/", f"{_as_clock(left)} left" if left else "")
        while len(text := "  ".join([self.what, *parts])) > columns and len(parts) > 1:
            del parts[0]  # the time left, which people look for, stays longest
        room = min(columns - len(text) - 2, _MOST_BAR_COLUMNS)
        if room >= _BAR_COLUMNS:
            done = int(room * self._done() / self._total.nbytes) if self._total.nbytes else 0
            text = "  ".join([self.what, full * done + empty * (room - done), *parts])
        return text[:columns]

    def _parts(self, of: str, left: str) -> list[str]:
        shards, total = min(self._shards, self._total.shards), self._total.shards
        unit, factor = unit_for(self._total.nbytes)
        done, whole = (f"{n / factor:.{1 if factor > 1 else 0}f}" for n in (self._done(), self._total.nbytes))
        rate = self._rate()
        return [
            *([f"{shards:,}{of}{total:,} {'shard' if total == 1 else 'shards'}"] if total else []),
            f"{done}{of}{whole} {unit}",
            *([f"{size(int(rate))}/s"] if rate else []),
            *([left] if left else []),
        ]

    def _done(self) -> int:
        """Bytes done: never more than all, though bytes that are fetched again are reported again."""
        return min(self._nbytes, self._total.nbytes)

    def _rate(self) -> float:
        """Bytes a second of this run; 0 while it is unknown."""
        seconds = self._clock() - self._begun
        return (self._done() - self._there) / seconds if seconds >= _RATE_SECONDS else 0

    def _left(self) -> int:
        """Seconds left; 0 where that is unknown."""
        rate = self._rate()
        return math.ceil((self._total.nbytes - self._done()) / rate) if rate > 0 else 0


def _as_clock(seconds: int) -> str:
    minutes, hours = seconds // 60, seconds // 3600
    return f"{hours}:{minutes % 60:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


def _in_words(seconds: int) -> str:
    minutes, hours = seconds // 60, seconds // 3600
    if hours:
        return f"{hours:,} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"
