"""What a person sees during long work: a line that fits the terminal, lines of a log, and what is there already."""

import re
import sys
from pathlib import Path

import pytest

from csf_tool.progress import NOTHING, Amount
from csf_tool.report.progress import LogLines
from csf_tool.report.tally import Tally
from tests.building import mini_dense, mini_hf, shard_name
from tests.commands import run, says
from tests.fixture_types import Sample
from tests.terminals import on_terminal

GIB = 1 << 30
WHOLE = Amount(int(95.1 * GIB), 39)


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def at_work(clock: Clock, there: Amount = NOTHING) -> Tally:
    """A tally of 12 finished shards, 31.2 GiB and 26 seconds."""
    tally = Tally("expand", WHOLE, there, clock)
    for _ in range(12 - there.shards):
        tally.add_shard()
    tally.add(int(31.2 * GIB) - there.nbytes)
    clock.now += 26
    return tally


def test_one_line_tells_shards_bytes_rate_and_time_left_in_one_system_of_units(clock: Clock) -> None:
    tally = at_work(clock)
    assert tally.line(59) == "expand  12/39 shards  31.2/95.1 GiB  1.20 GiB/s  0:54 left"
    assert tally.words() == "12 of 39 shards, 31.2 of 95.1 GiB, 1.20 GiB/s, 54 s left"
    assert re.fullmatch(r"expand  ━+─+  12/39 shards  31.2/95.1 GiB  1.20 GiB/s  0:54 left", tally.line(79))


@pytest.mark.parametrize("columns", range(1, 200, 7))
def test_a_line_never_takes_more_columns_than_there_are(clock: Clock, columns: int) -> None:
    tally = Tally("compress", Amount(999 << 40, 123_456), NOTHING, clock)
    tally.add(1)
    clock.now += 5000
    assert len(tally.line(columns)) <= columns


def test_no_rate_is_told_of_less_than_a_second(clock: Clock) -> None:
    tally = Tally("expand", WHOLE, NOTHING, clock)
    tally.add(GIB)
    clock.now += 0.9
    assert tally.words() == "0 of 39 shards, 1.0 of 95.1 GiB"


def test_the_rate_is_that_of_this_run_and_the_totals_are_those_of_the_whole(clock: Clock) -> None:
    tally = Tally("expand", Amount(4 * GIB, 4), Amount(2 * GIB, 2), clock)
    clock.now += 2
    assert tally.words() == "2 of 4 shards, 2.0 of 4.0 GiB"
    tally.add(GIB)
    assert tally.words() == "2 of 4 shards, 3.0 of 4.0 GiB, 512.00 MiB/s, 2 s left"


def test_bytes_that_are_fetched_twice_are_not_more_than_all(clock: Clock) -> None:
    tally = Tally("expand", Amount(2 * GIB, 1), NOTHING, clock)
    tally.add(3 * GIB)
    clock.now += 2
    assert tally.words() == "0 of 1 shard, 2.0 of 2.0 GiB, 1.00 GiB/s"


@pytest.mark.parametrize(
    ("seconds", "line", "words"),
    [(59, "0:59", "59 s"), (200, "3:20", "3 min 20 s"), (3_900, "1:05:00", "1 h 5 min")],
)
def test_long_times_are_in_the_units_of_people(clock: Clock, seconds: int, line: str, words: str) -> None:
    tally = Tally("hash", Amount(seconds + 10), NOTHING, clock)
    tally.add(10)
    clock.now += 10
    assert tally.line(80).endswith(f"{line} left")
    assert tally.words().endswith(f"{words} left")


def logged(clock: Clock, shards: int, seconds: float, pieces: int = 1) -> list[str]:
    """The log of a run whose shards of 1 GiB take so long each, and report so many times."""
    said: list[str] = []
    lines = LogLines(said.append, clock)
    lines.start("expand", Amount(shards * GIB, shards))
    for _ in range(shards):
        for _ in range(pieces):
            clock.now += seconds / pieces
            lines.advance(GIB // pieces)
        lines.shard_done()
    lines.close()
    return said


def test_a_log_has_a_line_for_each_finished_shard(clock: Clock) -> None:
    assert logged(clock, 3, 10) == [
        "expand: 1 of 3 shards, 1.0 of 3.0 GiB, 102.40 MiB/s, 20 s left",
        "expand: 2 of 3 shards, 2.0 of 3.0 GiB, 102.40 MiB/s, 10 s left",
        "expand: 3 of 3 shards, 3.0 of 3.0 GiB, 102.40 MiB/s",
    ]


def test_a_log_has_a_line_every_half_minute_while_a_shard_takes_long(clock: Clock) -> None:
    assert len(logged(clock, 1, 600, pieces=600)) == 20 + 1  # and the end


def test_a_log_goes_on_while_nothing_is_reported(clock: Clock) -> None:
    """The workers of a cluster report no bytes, and networks stall."""
    said: list[str] = []
    lines = LogLines(said.append, clock)
    lines.start("expand", Amount(GIB, 1))
    for _ in range(61):
        clock.now += 1
        lines.advance(0)
    assert said == ["expand: 0 of 1 shard, 0.0 of 1.0 GiB"] * 2


def test_many_small_shards_do_not_fill_a_log(clock: Clock) -> None:
    said = logged(clock, 10_000, 0.01)
    assert 10 <= len(said) <= 25
    assert said[-1].startswith("expand: 10,000 of 10,000 shards")


def test_a_short_run_logs_nothing(clock: Clock) -> None:
    assert logged(clock, 9, 0.1) == []


def test_each_phase_has_its_own_lines(clock: Clock) -> None:
    said: list[str] = []
    lines = LogLines(said.append, clock)
    for what in ("encode", "compress"):
        lines.resume(1, 3)
        lines.start(what, Amount(GIB, 2))
        clock.now += 2
        lines.shard_done()
    assert said == [
        "continuing: 1 of 3 shards is finished",
        "encode: 1 of 2 shards, 0.0 of 1.0 GiB",
        "compress: 1 of 2 shards, 0.0 of 1.0 GiB",
    ]


def interrupted(source: Path, out: Path) -> None:
    """Leave a destination in which one shard of three is finished."""
    assert run("expand", source, out, "--shards", "1/3").exit_code == 0


@pytest.mark.parametrize("flags", [(), ("--json",), ("--recheck",), ("--quiet",)], ids=str)
def test_a_run_that_goes_on_says_first_what_is_there(tmp_path: Path, flags: tuple[str, ...]) -> None:
    source, out = mini_hf(tmp_path / "in", 3), tmp_path / "out"
    interrupted(source, out)
    again = run("expand", source, out, *flags)
    expected = "" if "--quiet" in flags else "csf-tool: continuing: 1 of 3 shards is finished\n"
    assert (again.exit_code, again.stderr) == (0, expected)


def test_compress_says_so_before_it_encodes(tmp_path: Path) -> None:
    dense, out = mini_dense(tmp_path / "in", shards=3), tmp_path / "out"
    assert run("compress", dense, out, "--to", "container", "--keep-larger", "--shards", "2/3").exit_code == 0
    again = run("compress", dense, out, "--to", "container", "--keep-larger")
    assert again.stderr == "csf-tool: continuing: 1 of 3 shards is finished\n"
    says(again, f"Wrote {out} (CSF container): 2 shards and ", "All shards together: 9 NVFP4 planes, ")


def test_the_end_counts_what_this_run_did_and_what_was_there(tmp_path: Path) -> None:
    source, out = mini_hf(tmp_path / "in", 3), tmp_path / "out"
    interrupted(source, out)
    nothing = run("expand", source, out, "--shards", "1/3")
    says(nothing, f"There was nothing left to write into {out}.", "1 shard was already finished by an earlier run.")
    done = run("expand", source, out)
    says(done, f"Wrote {out}: 2 shards and 2 other files, ", "; 6 planes decoded on CPU (numpy).")
    says(done, "1 shard was already finished by an earlier run.")


def test_adopted_files_are_not_written_ones(tmp_path: Path) -> None:
    source, out = mini_hf(tmp_path / "in", 3), tmp_path / "out"
    assert run("expand", source, out).exit_code == 0
    (out / shard_name(2, 3)).unlink()
    done = run("expand", source, out, "--adopt")
    says(done, f"Wrote {out}: 1 shard, ", "; 3 planes decoded", "Kept 4 files that were already there")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_a_terminal_shows_one_line_that_fits_and_gets_its_cursor_back(
    sample: Sample, tmp_path: Path, columns: int, terminal: str
) -> None:
    words = ["expand", sample("nvfp4-csf-hf"), tmp_path / "out", "--device", "cpu"]
    shown = on_terminal(words, columns, {"TERM": terminal}, shows_stderr=True)
    frames = re.findall(r"expand  [^\x1b\r\n]*", shown)
    if terminal == "dumb":
        assert "\x1b" not in shown
        assert not frames
        return
    assert frames
    assert all(len(frame) < columns for frame in frames)
    assert re.match(r"expand  [━─]+  0/3 shards  0.0/3.3 MiB", frames[0])
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
