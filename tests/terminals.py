"""Commands on a pseudo-terminal, and what it is sent."""

import os
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType


def on_terminal(
    words: Iterable[object],
    columns: int = 0,
    environment: Mapping[str, str] = MappingProxyType({}),
    *,
    shows_stderr: bool = False,
    folder: Path | None = None,
    exit_code: int | None = 0,
) -> str:
    """All that a terminal is sent by a command, which ends with this exit code, or with any if None."""
    import fcntl  # here, for Windows has none of these
    import pty
    import termios

    ours, theirs = pty.openpty()
    if columns:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    usual = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    command = [sys.executable, "-m", "csf_tool", *map(str, words)]
    stderr = theirs if shows_stderr else subprocess.DEVNULL
    with subprocess.Popen(command, stdout=theirs, stderr=stderr, env={**usual, **environment}, cwd=folder) as process:
        os.close(theirs)
        shown = b"".join(iter(lambda: _next(ours), b""))
    os.close(ours)
    assert exit_code in (None, process.returncode)
    return shown.decode().replace("\r\n", "\n")


def _next(terminal: int) -> bytes:
    """What is sent next; nothing once the other side has closed it, which systems call an error."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""
