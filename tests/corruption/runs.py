"""Running the commands on a damaged checkpoint, and saying in a few words what each made of it."""

import contextlib
import io
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

import typer

from csf_tool.cli import look, prove, write
from tests.building import tree

NOTHING = "-"
STATS, VERIFY, AGAINST, EXPAND, IDENTITY = "stats", "verify", "verify --against", "expand", "identity --hash"
COMMANDS = (STATS, VERIFY, AGAINST, EXPAND, IDENTITY)

_CHECKS = ("structure", "streams", "decode", "stored", "source", "against")


@dataclass(frozen=True)
class Ran:
    """A command's exit code and streams."""

    code: int
    out: str
    err: str

    @property
    def verdict(self) -> str:
        """The end of stdout: the verdict, what was proved and what was not."""
        found = re.search(r"^(VERIFIED|NO FAULT FOUND|FAILED).*", self.out, re.MULTILINE | re.DOTALL)
        return found[0] if found else ""

    @property
    def claimed(self) -> str:
        """The verdict without what it says was not proved."""
        return "".join(line for line in self.verdict.splitlines(True) if not line.startswith("Not proved: "))


def run(command: Callable[..., None], argument: str | list[str], **options: object) -> Ran:
    """Run a command of the command line in this process; some take several checkpoints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command(**{next(iter(signature(command).parameters)): argument}, **options)
        except typer.Exit as done:
            return Ran(done.exit_code, out.getvalue(), err.getvalue())
    raise AssertionError("every command ends with typer.Exit")


@dataclass(frozen=True)
class Runs:
    """Commands run on one checkpoint, by their names in the document, and the files that expand wrote."""

    ran: dict[str, Ran]
    written: dict[str, bytes]


def run_commands(checkpoint: Path, reference: Path, out: Path, names: tuple[str, ...] = COMMANDS) -> Runs:
    """Run commands on the checkpoint at a path; `out` is a folder for expand, gone afterwards."""
    device: dict[str, object] = {"device": "cpu", "jobs": 1}
    it = str(checkpoint)
    how: dict[str, Callable[[], Ran]] = {
        STATS: lambda: run(look.stats, [it]),
        VERIFY: lambda: run(prove.verify, [it], **device),
        AGAINST: lambda: run(prove.verify, [it], against=str(reference), **device),
        EXPAND: lambda: run(write.expand, it, destination=out, **device),
        IDENTITY: lambda: run(prove.identity, it, compute_hashes=True),
    }
    try:
        return Runs({name: how[name]() for name in names}, tree(out))
    finally:
        shutil.rmtree(out, ignore_errors=True)


def in_words(runs: Runs, good: Runs) -> dict[str, str]:
    """What each command made of a damaged checkpoint; `good` are its runs on the undamaged one."""
    words = {STATS: _stats, VERIFY: _verify, AGAINST: _verify, IDENTITY: _identity}
    return {
        name: _expand(runs, good) if name == EXPAND else words[name](ran, good.ran[name])
        for name, ran in runs.ran.items()
    }


def _stats(ran: Ran, good: Ran) -> str:
    if ran.code:
        return "error"
    return "warning" if ran.err.count("warning: ") > good.err.count("warning: ") else NOTHING


def _verify(ran: Ran, good: Ran) -> str:
    """The checks that failed, or else those that warn of something or have lost what they went by."""
    if not ran.out:
        return "refused"
    found, usual = _statuses(ran.out), _statuses(good.out)
    failed = [name for name, status in found.items() if status == "failed"]
    assert bool(failed) == (ran.code == 1)
    other = [f"({name} {status})" for name, status in found.items() if status != usual[name]]
    other += ["(in part)"] if "IN PART" in ran.verdict and "IN PART" not in good.verdict else []
    return ", ".join(failed or other) or NOTHING


def _statuses(out: str) -> dict[str, str]:
    return dict(re.findall(rf"^({'|'.join(_CHECKS)}) +(\w+)", out, re.MULTILINE))


def _expand(runs: Runs, good: Runs) -> str:
    if good.ran[EXPAND].code:
        return "nothing to do"
    if runs.ran[EXPAND].code:
        assert not [name for name in runs.written if name.endswith(".json") and not name.startswith(".csf-tool/")]
        return "refuses"
    return "right" if runs.written == good.written else "writes it"


def _identity(ran: Ran, good: Ran) -> str:
    if good.code:
        return "none"
    if ran.code:
        return "refused"
    return "same" if ran.out.split()[0] == good.out.split()[0] else "other"


def is_found(words: str) -> bool:
    """Whether a command ended with exit code 1 for a damage."""
    return words != NOTHING and not words.startswith("(") and words != "warning"
