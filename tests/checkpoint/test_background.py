"""Work that a copy of the process does."""

import marshal
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from csf_tool.checkpoint import background
from csf_tool.checkpoint.background import in_background

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied here"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # a library's threads, which no work touches
]


@pytest.fixture(params=[True, False], ids=["copied", "not copied"])
def copied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether work is done by a copy, which the machine is not asked about."""
    monkeypatch.setattr(background, "can_be_copied", lambda: request.param)
    return bool(request.param)


RESULTS = [True, None, list(range(1 << 17))]  # the last is more than a pipe holds


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("expected", RESULTS, ids=["true", "nothing", "much"])
def test_the_result_is_the_works(expected: object) -> None:
    with in_background(lambda: expected) as result:
        assert result() == expected


def test_a_copy_leaves_no_trace_here(copied: bool, tmp_path: Path) -> None:
    asked: list[int] = []
    with open(tmp_path / "out", "w") as file:
        file.write("written once")
        with in_background(lambda: asked.__iadd__([1]) == [1]) as result:
            assert result()
    assert asked == ([] if copied else [1])
    assert (tmp_path / "out").read_text() == "written once"


def raises() -> bool:
    raise MemoryError


def dies() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def gives_no_plain_data() -> object:
    return [b"x" * (1 << 20), object()]


@pytest.mark.parametrize("work", [raises, dies, gives_no_plain_data])
def test_a_copy_that_comes_to_grief_has_no_result(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], work: Callable[[], object]
) -> None:
    monkeypatch.setattr(background, "can_be_copied", lambda: True)
    with in_background(work) as result:
        assert result() is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("left", [0, 1, 100, 1 << 20])
def test_a_copy_that_ends_while_it_sends_has_no_result(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    monkeypatch.setattr(background, "can_be_copied", lambda: True)
    really_dumps = marshal.dumps
    monkeypatch.setattr(marshal, "dumps", lambda value: really_dumps(value)[:left])
    with in_background(lambda: [b"x" * (1 << 19)] * 3 + [b"y" * (1 << 19)] * 2) as result:
        assert result() is None


def test_where_the_system_waits_for_copies_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does where SIGCHLD is ignored, which a process inherits from what started it."""
    monkeypatch.setattr(background, "can_be_copied", lambda: True)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with in_background(lambda: "done") as result:
            assert result() == "done"
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("nbytes", [1, 1 << 20], ids=["little", "more than a pipe holds"])
def test_a_copy_ends_when_its_result_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nbytes: int
) -> None:
    monkeypatch.setattr(background, "can_be_copied", lambda: True)
    copy = tmp_path / "copy"

    def work() -> bytes:
        copy.write_text(str(os.getpid()))
        return bytes(nbytes)

    with pytest.raises(ZeroDivisionError), in_background(work):
        _ = 1 / 0
    with pytest.raises(ChildProcessError):
        os.waitpid(int(copy.read_text()), 0)


def test_a_process_with_a_second_thread_is_not_copied() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not background.can_be_copied()
    finally:
        done.set()
        thread.join()
