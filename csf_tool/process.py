"""The process that a command runs in: Ctrl-C at any moment, standard streams that are closed or full, and its end.

It is loaded before all else, and loads next to nothing itself. Nothing of it is in force where csf_tool is a library.
"""

import _thread
import errno
import io
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from types import FrameType
    from typing import Any, NoReturn, TextIO
else:
    import _signal as signal  # signal itself loads enum, and whatever loads before `begin` lets Ctrl-C be a traceback

NOT_HERE = 3
"""The exit code where something could not be done here."""

INTERRUPTED = 130

TRACEBACK_VARIABLE = "CSF_TOOL_TRACEBACK"

COMMAND_BYTES = 104 << 20
"""Address space that any command takes on top of its start: most of it numpy's, whose BLAS ends the process with 1."""

_LIBRARY_BYTES = 64 << 20
"""Address space without which a large library, or a thread, may find none."""

_GRACE_SECONDS = 0.6
"""Seconds that an interrupted command may tidy up. The next run does the rest, as after a kill."""

_SHOW_CURSOR = b"\x1b[?25h"


class _State:
    """The state of the process."""

    command = False
    """Whether a command is at work, which has something to tidy up; before and after, Ctrl-C ends the process."""
    interrupted = False
    words = "interrupted"
    said = False
    cursor_hidden = False


_state = _State()


def begin() -> None:
    """Make this process one that runs a command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored, as under nohup
        signal.signal(signal.SIGINT, _on_interrupt)
    _reserve_descriptors()
    sys.stdout, sys.stderr = _standard(sys.stdout, 1), _standard(sys.stderr, 2)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.unraisablehook = _report_unraisable


def end(code: int) -> "NoReturn":
    """End the process, with NOT_HERE in place of 0 where standard output did not take all that was written.

    A reader that has seen enough (`| head`) is no fault, and a stream that was closed from the start wants nothing.
    """
    _flush(sys.stdout)
    lost = getattr(_raw(sys.stdout), "lost", None)
    if lost and lost.errno != errno.EPIPE and not _state.interrupted:
        say(f"standard output: {lost.strerror}: not all of it is there")
        code = code or NOT_HERE
    _flush(sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said: it could only end the ending
    if _state.interrupted:
        os._exit(code)  # what still waits for a network or a disk is left to it
    sys.exit(code)


def say(message: str) -> None:
    """Print one plain line of the program's own to stderr, with nothing but what is loaded by now."""
    sys.stderr.write(f"csf-tool: {message}\n")


def shows_tracebacks() -> bool:
    """Whether the user wants to see where an unforeseen error comes from."""
    return os.environ.get(TRACEBACK_VARIABLE) == "1"


def words_for(error: BaseException) -> str:
    """The meaning of an unforeseen error in one line: most of all, that memory is short."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) and before not in chain:
        chain.append(before)
    if any(map(_is_shortage, chain)):
        return "memory is too short (a limit, as of `ulimit -v` or a container?): run it again with more"
    if isinstance(error, ImportError):
        return f"cannot be loaded: {_first_line(chain[-1])}: the installation may be damaged: repeat it"
    return f"internal error: {type(error).__name__}: {_first_line(error)} ({TRACEBACK_VARIABLE}=1 shows where)"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def _is_shortage(error: BaseException) -> bool:
    """Whether an error comes of too little memory: loaders and threads have no kind of their own for it."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, ImportError | RuntimeError) and not has_memory(_LIBRARY_BYTES)


def has_memory(nbytes: int) -> bool:
    """Whether so much address space is to be had: where it is not, libraries end the process their own way."""
    import mmap

    try:
        mmap.mmap(-1, nbytes).close()
    except (OSError, MemoryError):
        return False
    return True


class Interruptible:
    """A block in which the first Ctrl-C is raised as KeyboardInterrupt: there is something to tidy up.

    It gets little time for that, and further ones are not heard. `words` say what was interrupted.
    """

    def __init__(self, words: str) -> None:
        self._words = words

    def __enter__(self) -> None:
        _state.words, _state.command = self._words, True

    def __exit__(self, *_: object) -> None:
        _state.command = False


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed: what else went wrong since then came of it."""
    return _state.interrupted


def say_interrupted(words: str) -> None:
    """Say that the command was interrupted; once."""
    if not _state.said:
        _state.said = True
        say(words)


def cursor_is_hidden(hidden: bool) -> None:
    """Hear whether a progress bar has hidden the terminal's cursor, which must not stay so."""
    _state.cursor_hidden = hidden


def _on_interrupt(_number: int, _frame: "FrameType | None") -> None:
    if _state.interrupted:
        return
    _state.interrupted = True
    if not _state.command:
        _end_at_once()
    try:
        _thread.start_new_thread(_end_late, ())
    except RuntimeError:  # no memory for one
        _end_at_once()
    raise KeyboardInterrupt


def _end_late() -> None:
    """End the process although it is not done: it may wait for a network, or have lost the interrupt on the way."""
    time.sleep(_GRACE_SECONDS)
    _end_at_once()


def _end_at_once() -> "NoReturn":
    line = b"" if _state.said else f"csf-tool: {_state.words}\n".encode()
    if _state.cursor_hidden:
        line = b"\r" + _SHOW_CURSOR + line
    try:
        import select

        if line and select.select([], [2], [], 0)[1]:  # nobody may read it, and then it is not waited for
            os.write(2, line)
    except Exception:
        pass
    finally:
        os._exit(INTERRUPTED)


def _report_unraisable(event: "sys.UnraisableHookArgs") -> None:
    """Say nothing of a Ctrl-C that came where Python can only report it: the process ends all the same."""
    if not isinstance(event.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(event)


def _reserve_descriptors() -> None:
    """Open 0, 1 and 2 on nothing where they are closed: a file would get that number, and with it what is printed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


class _Output(io.FileIO):
    """A standard stream that does not stop the work: what it does not take is dropped, and the reason is kept."""

    lost: OSError | None = None

    def write(self, data: "Any", /) -> int:
        left = memoryview(data).cast("B")
        nbytes = len(left)
        while left and not self.lost:
            try:
                done = super().write(left)
            except OSError as error:
                self.lost = error
                break
            if done is None:  # another process has made it non-blocking
                import select

                select.select([], [self], [])
            left = left[done or 0 :]
        return nbytes


def _standard(stream: "TextIO | None", descriptor: int) -> "TextIO":
    """A standard stream over `_Output`, with letters that its encoding lacks as escapes."""
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(_Output(descriptor, "w", closefd=False)), "utf-8", "backslashreplace")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    if type(_raw(stream)) is not io.FileIO:  # a terminal of Windows
        stream.reconfigure(errors="backslashreplace")
        return stream
    stream.flush()
    raw = _Output(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        raw if stream.buffer is _raw(stream) else io.BufferedWriter(raw),
        stream.encoding,
        "backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _raw(stream: "Any") -> "Any":
    """The file below a text stream; with PYTHONUNBUFFERED there is no buffer in between."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def _flush(stream: "TextIO") -> None:
    try:  # noqa: SIM105 (contextlib is not loaded yet)
        stream.flush()
    except (OSError, ValueError):
        pass
