"""The process of a command: Ctrl-C at any moment, standard streams that are closed or full, and the exit.

This module is loaded first and imports next to nothing. It has no effect where csf_tool is used as a library.
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
    import _signal as signal  # signal itself loads enum, and Ctrl-C while modules load before `begin` shows a traceback

NOT_HERE = 3
"""The exit code of a command that this machine could not carry out."""

INTERRUPTED = 130

TRACEBACK_VARIABLE = "CSF_TOOL_TRACEBACK"

COMMAND_BYTES = 104 << 20
"""Address space that a command needs after its start: most of it for numpy, whose BLAS exits with 1 without it."""

_LIBRARY_BYTES = 64 << 20
"""Address space without which a large library or a thread may fail to start."""

_GRACE_SECONDS = 0.6
"""Seconds that an interrupted command has to tidy up. The next run does the rest, as after a kill."""

_LOOK_SECONDS = 0.2
"""Longest wait in one piece: Ctrl-C that arrives as it begins does not end it."""

_SHOW_CURSOR = b"\x1b[?25h"


class _State:
    """The state of the process."""

    command = False
    """Whether a command with something to tidy up is running; otherwise Ctrl-C ends the process at once."""
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
    """End the process, with NOT_HERE in place of 0 if standard output did not take everything written.

    A reader that stops early (`| head`) is no fault, nor is a stream that was closed from the start.
    """
    _flush(sys.stdout)
    lost = getattr(_raw(sys.stdout), "lost", None)
    if lost and lost.errno != errno.EPIPE and not _state.interrupted:
        say(f"standard output: {lost.strerror}: the output is incomplete")
        code = code or NOT_HERE
    _flush(sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # everything is written: Ctrl-C could only disturb the exit
    if _state.interrupted:
        os._exit(code)  # threads that wait for a network or a disk are not waited for
    sys.exit(code)


def say(message: str) -> None:
    """Print one plain line of the program's own to stderr, without importing anything."""
    sys.stderr.write(f"csf-tool: {message}\n")


def shows_tracebacks() -> bool:
    """Whether the user asked for tracebacks of unforeseen errors."""
    return os.environ.get(TRACEBACK_VARIABLE) == "1"


def words_for(error: BaseException) -> str:
    """An unforeseen error in one line, above all a shortage of memory."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) and before not in chain:
        chain.append(before)
    if any(map(_is_shortage, chain)):
        return "not enough memory (is there a limit, for example `ulimit -v`?): run the command again with more"
    if isinstance(error, ImportError):
        return f"cannot be loaded: {_first_line(chain[-1])}: the installation may be damaged: install csf-tool again"
    return f"internal error: {type(error).__name__}: {_first_line(error)} ({TRACEBACK_VARIABLE}=1 shows where)"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def _is_shortage(error: BaseException) -> bool:
    """Whether an error comes from too little memory: loaders and threads raise no error of its own for it."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, ImportError | RuntimeError) and not has_memory(_LIBRARY_BYTES)


def has_memory(nbytes: int) -> bool:
    """Whether so much address space is available; without it, libraries end the process in their own way."""
    import mmap

    try:
        mmap.mmap(-1, nbytes).close()
    except (OSError, MemoryError):
        return False
    return True


class Interruptible:
    """A block in which the first Ctrl-C raises KeyboardInterrupt, because there is something to tidy up.

    The time for that is short, and further ones are ignored. `words` say what was interrupted.
    """

    def __init__(self, words: str) -> None:
        self._words = words

    def __enter__(self) -> None:
        _state.words, _state.command = self._words, True

    def __exit__(self, *_: object) -> None:
        _state.command = False


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed, which later errors are taken to come from."""
    return _state.interrupted


def say_interrupted(words: str) -> None:
    """Print once that the command was interrupted."""
    if not _state.said:
        _state.said = True
        say(words)


def cursor_is_hidden(hidden: bool) -> None:
    """Note whether a progress bar has hidden the terminal's cursor, to show it again at the end."""
    _state.cursor_hidden = hidden


def _on_interrupt(_number: int, _frame: "FrameType | None") -> None:
    if _state.interrupted:
        return
    _state.interrupted = True
    if not _state.command:
        _end_at_once()
    try:
        _thread.start_new_thread(_end_late, ())
    except RuntimeError:  # no memory for a thread
        _end_at_once()
    raise KeyboardInterrupt


def _end_late() -> None:
    """End the process before it is done: it may be waiting for a network, or a library may have lost the interrupt."""
    time.sleep(_GRACE_SECONDS)
    _end_at_once()


def _end_at_once() -> "NoReturn":
    line = b"" if _state.said else f"csf-tool: {_state.words}\n".encode()
    if _state.cursor_hidden:
        line = b"\r" + _SHOW_CURSOR + line
    try:
        import select

        if line and select.select([], [2], [], 0)[1]:  # do not block if nobody reads it
            os.write(2, line)
    except Exception:
        pass
    finally:
        os._exit(INTERRUPTED)


def _report_unraisable(event: "sys.UnraisableHookArgs") -> None:
    """Suppress the report of a Ctrl-C where Python cannot raise it: the process ends all the same."""
    if not isinstance(event.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(event)


def _reserve_descriptors() -> None:
    """Open the null device as 0, 1 and 2 where they are closed: a file with such a number would get the output."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


class _Output(io.FileIO):
    """A standard stream that never raises: output that it does not take is dropped, and the reason is kept."""

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
            if done is None:  # another process has made the stream non-blocking
                import select

                while not select.select([], [self], [], _LOOK_SECONDS)[1]:
                    pass
            left = left[done or 0 :]
        return nbytes


def _standard(stream: "TextIO | None", descriptor: int) -> "TextIO":
    """A standard stream over `_Output` that escapes characters that its encoding lacks."""
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
    """The raw file below a text stream, which has no buffer with PYTHONUNBUFFERED."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def _flush(stream: "TextIO") -> None:
    try:  # noqa: SIM105 (contextlib is not loaded yet)
        stream.flush()
    except (OSError, ValueError):
        pass
