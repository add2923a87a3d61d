"""Questions that a copy of the process answers."""

import os
import signal
import threading
from pathlib import Path

import pytest

from csf_tool.checkpoint import background
from csf_tool.checkpoint.background import in_background

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied here"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # a library's threads, which no question touches
]


@pytest.fixture(params=[True, False], ids=["copied", "not copied"])
def copied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether questions are answered by a copy, which the machine is not asked about."""
    monkeypatch.setattr(background, "can_be_copied", lambda: request.param)
    return bool(request.param)


@pytest.mark.parametrize("expected", [True, False])
def test_the_answer_is_the_questions(copied: bool, expected: bool) -> None:
    with in_background(lambda: expected) as answer:
        assert [answer(), answer()] == [expected, expected]


def test_a_copy_leaves_no_trace_here(copied: bool, tmp_path: Path) -> None:
    asked: list[int] = []
    with open(tmp_path / "out", "w") as file:
        file.write("written once")
        with in_background(lambda: asked.__iadd__([1]) == [1]) as answer:
            assert answer()
    assert asked == ([] if copied else [1])
    assert (tmp_path / "out").read_text() == "written once"


def raises() -> bool:
    raise MemoryError


def dies() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


@pytest.mark.parametrize("question", [raises, dies])
def test_a_copy_that_comes_to_grief_has_answered_no(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], question: background.Question
) -> None:
    monkeypatch.setattr(background, "can_be_copied", lambda: True)
    with in_background(question) as answer:
        assert not answer()
    assert capfd.readouterr() == ("", "")


def test_a_copy_is_waited_for_when_its_answer_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(background, "can_be_copied", lambda: True)
    copy = tmp_path / "copy"
    with pytest.raises(ZeroDivisionError), in_background(lambda: bool(copy.write_text(str(os.getpid())))):
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
