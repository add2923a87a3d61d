"""Jobs in forked workers: what comes back, what is reported, and what is left when something fails."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from csf_tool.codes import Code
from csf_tool.errors import CheckpointError, EnvironmentFault

if sys.platform != "linux":
    pytest.skip("workers are forked on Linux alone", allow_module_level=True)

from csf_tool.running.forked import may_fork, run_forked
from tests.building import mini_hf

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # a library's threads; no work uses them

ROOT = Path(__file__).parent.parent.parent

OnBytes = Callable[[int], None]


def run(tasks: int, work: Callable[[int, OnBytes], Any], workers: int = 2) -> tuple[dict[int, Any], int]:
    found: dict[int, Any] = {}
    told: list[int] = []
    run_forked(tasks, work, found.__setitem__, workers, told.append)
    return found, sum(told)


def children() -> list[int]:
    task = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(child) for child in task.read_text().split()]


def test_tasks_are_done_in_other_processes() -> None:
    found, _ = run(5, lambda task, _: (task, os.getpid()))
    assert {task: value for task, (value, _) in found.items()} == {i: i for i in range(5)}
    assert os.getpid() not in {pid for _, pid in found.values()}


def test_nothing_of_a_run_is_left() -> None:
    before = children(), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        run(3, lambda task, _: task)
    assert (children(), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))) == before


def test_at_most_so_many_at_a_time(tmp_path: Path) -> None:
    def work(task: int, _: OnBytes) -> int:
        (tmp_path / str(task)).touch()
        time.sleep(0.05)
        here = len(list(tmp_path.iterdir()))
        (tmp_path / str(task)).unlink()
        return here

    found, _ = run(6, work, workers=2)
    assert max(found.values()) <= 2


def test_every_byte_is_told_of() -> None:
    def work(_: int, on_bytes: OnBytes) -> None:
        for _ in range(50):
            on_bytes(1_000_003)

    assert run(3, work)[1] == 3 * 50 * 1_000_003


@pytest.mark.parametrize(
    "error", [CheckpointError("broken", Code.TRUNCATED, "x"), EnvironmentFault("cannot be read"), KeyboardInterrupt()]
)
def test_an_error_ends_the_other_workers(tmp_path: Path, error: BaseException) -> None:
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


def test_a_worker_that_is_killed_is_an_error_that_says_so() -> None:
    with pytest.raises(EnvironmentFault, match=r"exit code -9.*--jobs 1"):
        run(2, lambda *_: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.parametrize("size", [100, 10_000_000])
def test_results_of_any_size_come_back(size: int) -> None:
    assert run(3, lambda task, _: bytes([task]) * size)[0] == {task: bytes([task]) * size for task in range(3)}


def test_a_second_thread_forbids_workers() -> None:
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        assert not may_fork(2)
    finally:
        ended.set()
        other.join()


_INTERRUPTED = """
import os, signal, sys, time
from multiprocessing.context import ForkProcess
from csf_tool.running.forked import may_fork, run_forked
from tests.running.test_forked import children

def work(task, on_bytes):
    os.kill(os.getppid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)  # as the terminal does: to this one, too
    time.sleep(60)

def start_until_interrupted(process):
    start(process)
    os.kill(os.getpid(), signal.SIGINT)

start = ForkProcess.start
if sys.argv[1] == "while it starts":
    ForkProcess.start = start_until_interrupted
os.sched_getaffinity = lambda _: {0, 1}
assert may_fork(2)
begun = time.monotonic()
try:
    run_forked(1, work, print, 1, lambda _: None)
except KeyboardInterrupt:
    print("interrupted", children(), time.monotonic() - begun < 30)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while it starts", "at any moment"])
def test_an_interrupt_of_all_processes_is_heard_once_and_leaves_no_worker(moment: str) -> None:
    """Run in a process of one thread, as forking needs: another thread would take the signal."""
    command = [sys.executable, "-c", _INTERRUPTED, moment]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("interrupted [] True\n", "")


_ORPHANED = """
import os, sys, time
from csf_tool.running.forked import run_forked

def work(task, on_bytes):
    os.write(1, b"%d\\n" % os.getpid())
    while sys.argv[1] == "busy":
        on_bytes(16 << 20)
        time.sleep(0.01)
    while sys.argv[1] == "silent" or task == 0:
        time.sleep(0.01)

run_forked(2, work, lambda *_: None, 2, lambda _: None)
"""


@pytest.mark.parametrize("they_are", ["busy", "silent", "idle"])
def test_workers_end_with_their_parent(they_are: str) -> None:
    """Workers of a killed parent end, too, whether or not they report."""
    command = [sys.executable, "-c", _ORPHANED, they_are]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert all(int(process.stdout.readline()) for _ in range(2))
    process.kill()
    _, said = process.communicate(timeout=60)  # ends only when both workers have: they hold its output open
    assert said == b""


_FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), 4096))
from csf_tool.cli import main
sys.argv[1:] = ["verify", sys.argv[2], "--jobs", "2", "--device", "cpu"]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("files", [9, 12, 13, 15, 18, 24, 40, 70, 80])
def test_few_open_files_end_no_check_and_keep_none_waiting(tmp_path: Path, files: int) -> None:
    """A pool of processes that cannot be started whole waits for ever."""
    root = mini_hf(tmp_path)
    command = [sys.executable, "-c", _FEW_FILES, str(files), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
