"""The command line in real processes, to which something happens at the n-th change that they make to the disk.

A step is one call that changes something on the disk, or one read of a shard. At a step a process can be killed
(a write is then half done), interrupted as by Ctrl-C, refused the call with an error, or have a source shard
moved away or rewritten under it.

This file is also the program that does so: importing takes longer than a small run, so one server imports, and
forks a child for every order.
"""

import contextlib
import errno
import functools
import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHANGES = ("write", "pwrite", "copy_file_range", "mkdir", "fsync", "fdatasync", "rename", "replace", "unlink", "rmdir")


@dataclass(frozen=True)
class Order:
    """What to run, and what happens to it: `action` at step `at`, counted from 1, on the files of `target`.

    Actions: kill, interrupt, the name of an error (ENOSPC: that call fails so, once), move (target[0] goes to
    target[1]), rewrite (target[0] gets other bytes and another time).
    `reads` makes reads of shards steps, too. `bad` is a file of which reads past its header fail with EIO.
    `free` is what the system says of free space, whatever there is. `direct`: shards are written past the page cache.
    """

    argv: list[str]
    at: int = 0
    action: str = ""
    target: list[str] = field(default_factory=list)
    reads: bool = False
    bad: str = ""
    free: int | None = None
    direct: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its exit code, or minus the signal that killed it; the steps that it came to by name."""

    code: int
    out: str
    err: str
    steps: list[str]


class Server:
    """Runs orders in forked children, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._process.communicate()

    def run(self, order: Order) -> Outcome:
        """Carry out one order."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps(asdict(order)), file=self._process.stdin, flush=True)
        return Outcome(**json.loads(self._process.stdout.readline()))


def start(order: Order) -> subprocess.Popen[str]:
    """Carry out one order in a new process of its own, beside this one."""
    command = [sys.executable, __file__, json.dumps(asdict(order))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> Outcome:
    """How a process that was started ended."""
    out, err = process.communicate(timeout=120)
    return Outcome(process.returncode, out, err, [])


State = frozenset[tuple[str, bytes | None]]
"""Files by name and content, and folders by name."""


def state(folder: Path) -> State:
    """All that a killed run left: files and folders by name, without what is random in the names of partial files."""
    paths = folder.rglob("*") if folder.exists() else []
    return frozenset(
        (re.sub(r"-[0-9]+-[0-9a-f]{8}\.partial$", ".partial", str(path)), path.read_bytes() if path.is_file() else None)
        for path in paths
    )


class _Steps:
    """Counts steps, and does what was ordered at one of them."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.seen: list[str] = []

    def install(self) -> None:
        for name in CHANGES:
            setattr(os, name, self._counted(name, getattr(os, name)))
        if self._order.free is not None:
            import shutil

            usage = shutil.disk_usage("/")._replace(free=self._order.free)
            shutil.disk_usage = lambda path: usage  # noqa: ARG005 (the real one's signature)
        if self._order.direct:
            write_directly()
        self._hook_reading()

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "copy_file_range" and self._is_bad(args[0], args[3]):
                raise OSError(errno.EIO, "Input/output error")
            if self._is_now(name):
                if name == "write" and self._order.action == "kill":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                if name == "pwrite" and self._order.action == "kill":
                    real(args[0], args[1][: len(args[1]) // 8192 * 4096], args[2])
                self._act()
            return real(*args, **kwargs)

        return call

    def _is_now(self, name: str) -> bool:
        self.seen.append(name)
        return len(self.seen) == self._order.at

    def _act(self) -> None:
        action, target = self._order.action, self._order.target
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "interrupt":
            signal.raise_signal(signal.SIGINT) if _is_main_thread() else os.kill(os.getpid(), signal.SIGINT)
        elif action == "move":
            subprocess.run(["mv", *target], check=True)
        elif action == "rewrite":
            with open(target[0], "r+b") as file:
                file.seek(-64, 2)
                file.write(b"\xff" * 64)
        else:
            code = int(getattr(errno, action))
            raise OSError(code, os.strerror(code))

    def _is_bad(self, fd: int, begin: int) -> bool:
        bad = self._order.bad
        return bool(bad) and begin > 16 and os.path.samestat(os.fstat(fd), Path(bad).stat())

    def _hook_reading(self) -> None:
        from csf_tool.disk.reader import RandomReader

        real = RandomReader.read_into

        class Failing:
            def seek(self, _: int) -> None:
                raise OSError(errno.EIO, "Input/output error")

        def read_into(reader: Any, view: memoryview, begin: int) -> None:
            fails = self._is_bad(reader.fileno(), begin)
            if self._order.reads and self._is_now("read"):
                fails = self._order.action == "EIO"
                if not fails:
                    self._act()
            if not fails:
                real(reader, view, begin)
                return
            file, reader._file = reader._file, Failing()
            try:
                real(reader, view, begin)
            finally:
                reader._file = file

        RandomReader.read_into = read_into  # type: ignore[method-assign, assignment]


def write_directly() -> None:
    """Have this process write all files of a known size past the page cache, however small they are."""
    from csf_tool.disk import appenders, new_file

    def make(fd: int, name: str, nbytes: int) -> appenders.Appender:
        if nbytes:
            with contextlib.suppress(OSError):  # a file system without O_DIRECT
                return appenders.DirectAppender(fd, name)
        return appenders.CachedAppender(fd, name)

    new_file.make_appender = make  # type: ignore[attr-defined]


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def _obey(order: Order, steps_file: Path | None) -> int:
    import csf_tool.cli

    steps = _Steps(order)
    steps.install()
    sys.argv = ["csf-tool", *order.argv]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server's own commands have ended, and ignore it
    code: object = None
    try:
        csf_tool.cli.main()
    except SystemExit as ended:
        code = ended.code
    if steps_file:
        steps_file.write_text(json.dumps(steps.seen))
    return code if isinstance(code, int) else 0


def _serve(folder: Path) -> None:
    import typer.main

    import csf_tool.cli
    import csf_tool.report.progress

    # Here everything is imported, and the parser of the command line built, so that the children need not.
    typer.main.get_command = functools.cache(typer.main.get_command)
    for operation in ("expand", "compress", "convert --to hf"):
        sys.argv = ["csf-tool", *operation.split(), str(folder / "nothing"), str(folder / "nowhere")]
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            csf_tool.cli.main()
    gc.freeze()  # or every child would copy most of memory to count references
    files = [folder / name for name in ("out", "err", "steps")]
    for line in sys.stdin:
        files[2].write_text("[]")
        child = os.fork()
        if not child:
            for fd, path in zip((1, 2), files, strict=False):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
            order = Order(**json.loads(line))
            code = _obey(order, files[2])
            if order.action == "interrupt":
                sys.exit(code)  # which waits for threads that run still
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        out, err, steps = (path.read_text() for path in files)
        print(json.dumps({"code": code, "out": out, "err": err, "steps": json.loads(steps)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1].startswith("{"):
        sys.exit(_obey(Order(**json.loads(sys.argv[1])), None))
    _serve(Path(sys.argv[1]))
