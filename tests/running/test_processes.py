"""Work in copies of the process: what comes back, what is told, and what is left when something fails."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from csf_tool.codes import Code
from csf_tool.errors import CheckpointError, EnvironmentFault

if sys.platform != "linux":
    pytest.skip("processes are copied on Linux alone", allow_module_level=True)

from csf_tool.running.processes import run_in_copies

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # a library's threads; no work uses them

ROOT = Path(__file__).parent.parent.parent

OnBytes = Callable[[int], None]


def run(tasks: int, work: Callable[[int, OnBytes], Any], copies: int = 2) -> tuple[dict[int, Any], int]:
    found: dict[int, Any] = {}
    told: list[int] = []
    run_in_copies(range(tasks), work, found.__setitem__, copies, told.append)
    return found, sum(told)


def children() -> list[int]:
    task = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(child) for child in task.read_text().split()]


def test_each_task_in_a_process_of_its_own() -> None:
    found, _ = run(5, lambda task, _: (task, os.getpid()))
    assert {task: value for task, (value, _) in found.items()} == {i: i for i in range(5)}
    assert len({pid for _, pid in found.values()} | {os.getpid()}) == 6


def test_at_most_so_many_at_a_time(tmp_path: Path) -> None:
    def work(task: int, _: OnBytes) -> int:
        (tmp_path / str(task)).touch()
        time.sleep(0.05)
        here = len(list(tmp_path.iterdir()))
        (tmp_path / str(task)).unlink()
        return here

    found, _ = run(6, work, copies=2)
    assert max(found.values()) <= 2


def test_every_byte_is_told_of() -> None:
    def work(_: int, on_bytes: OnBytes) -> None:
        for _ in range(50):
            on_bytes(1_000_003)

    assert run(3, work)[1] == 3 * 50 * 1_000_003


@pytest.mark.parametrize(
    "error", [CheckpointError("broken", Code.TRUNCATED, "x"), EnvironmentFault("cannot be read"), KeyboardInterrupt()]
)
def test_an_error_ends_the_other_copies(tmp_path: Path, error: BaseException) -> None:
    before = children()

    def work(task: int, _: OnBytes) -> None:
        if task == 1:
            raise error
        time.sleep(60)
        (tmp_path / "woke").touch()

    with pytest.raises(type(error), match=str(error) or None):
        run(4, work)
    assert children() == before
    assert not (tmp_path / "woke").exists()  # nobody waited for the sleepers


def test_a_copy_that_is_killed_is_an_error_that_says_so() -> None:
    with pytest.raises(EnvironmentFault, match=r"exit code -9.*--jobs 1"):
        run(2, lambda *_: os.kill(os.getpid(), signal.SIGKILL))


_INTERRUPTED = """
import os, signal, sys, time
from multiprocessing.context import ForkProcess
from csf_tool.running.processes import run_in_copies
from tests.running.test_processes import children

def work(task, on_bytes):
    os.kill(os.getppid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)  # as the terminal does: to this one, too
    time.sleep(60)

start = ForkProcess.start

def start_until_interrupted(copy):
    start(copy)
    while signal.SIGINT not in signal.sigpending():
        time.sleep(0.01)

if sys.argv[1] == "while it starts":
    ForkProcess.start = start_until_interrupted
try:
    run_in_copies(range(1), work, print, 1, lambda _: None)
except KeyboardInterrupt:
    print("interrupted", children())
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while it starts", "at any moment"])
def test_an_interrupt_of_all_processes_is_heard_once_and_leaves_no_copy(moment: str) -> None:
    """In a process of one thread, as those are that may be copied: another's would take the signal."""
    command = [sys.executable, "-c", _INTERRUPTED, moment]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("interrupted []\n", "")


_ORPHANED = """
import os, sys, time
from csf_tool.running.processes import run_in_copies

def work(task, on_bytes):
    os.write(1, b"%d\\n" % os.getpid())
    while True:
        on_bytes(16 << 20)
        time.sleep(0.01)

run_in_copies(range(2), work, print, 2, lambda _: None)
"""


def test_copies_end_when_nobody_listens_any_more() -> None:
    process = subprocess.Popen([sys.executable, "-c", _ORPHANED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert all(int(process.stdout.readline()) for _ in range(2))
    process.kill()
    _, said = process.communicate(timeout=60)  # ends only when both copies have: they hold its output open
    assert said == b""
