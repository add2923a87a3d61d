"""The report of `verify`."""

import re

from rich.console import RenderableType
from rich.text import Text

from csf_tool.checkpoint.causes import Line, lines_of
from csf_tool.checkpoint.problems import Severity
from csf_tool.prove.verdict import Check, Status, Verified
from csf_tool.report.problems import hint
from csf_tool.report.written import SHOWN_NAMES, some_files
from csf_tool.text import escape

_STYLES = {Status.PASSED: "green", Status.FAILED: "bold red", Status.WARNING: "yellow", Status.SKIPPED: "dim"}

_VERDICTS = r"^(VERIFIED( AS (PUBLISHED|LISTED))?( IN PART)?|NO FAULT FOUND|FAILED)"


def verify_report(verified: Verified) -> list[RenderableType]:
    """The report for people: a line a check with its faults below, what was proved and what not, and what to do."""
    lines: list[RenderableType] = [f"{escape(verified.path)}: {verified.kind}"]
    for check in verified.checks:
        lines += _check(check)
    return [*lines, *_conclusions(verified), *_next_steps(verified)]


def verdict_words(verified: Verified) -> str:
    """The verdict without its reasons."""
    found = re.match(_VERDICTS, verified.verdict)
    return found[0] if found else verified.verdict


def _check(check: Check) -> list[RenderableType]:
    looked_at = "" if check.status is Status.SKIPPED else f"{check.checked:>9,}"
    head = Text.assemble(
        f"{check.name:<10}",
        (f"{check.status.value:<8}", _STYLES[check.status]),
        f"{looked_at:>9}  {escape(check.note)}",
    )
    lines = lines_of([*check.failures, *check.warnings])
    return [head, *(_fault(check, line) for line in lines), *(f"  {line}" for line in hint(lines, "--json"))]


def _fault(check: Check, line: Line) -> Text:
    """A line on a fault; where it is a warning of a check that failed, it says so."""
    word = "warning: " if check.failures and line.severity is Severity.WARNING else ""
    return Text.assemble("  ", (word, _STYLES[Status.WARNING]), line.text)


def _conclusions(verified: Verified) -> list[RenderableType]:
    """The verdict, and what was proved and what was not, a fact a line: never a bare OK."""
    verdict = Text(verified.verdict)
    verdict.highlight_regex(_VERDICTS, _style(verified))
    proved = [f"Proved: {escape(fact)}." for fact in verified.proved] or ["Nothing was proved."]
    return [verdict, *proved, *(f"Not proved: {escape(fact)}." for fact in verified.unproved)]


def _style(verified: Verified) -> str:
    if not verified.ok:
        return "bold red"
    return "green" if verified.is_proved and not verified.uncovered else "yellow"


def _next_steps(verified: Verified) -> list[RenderableType]:
    """Say what to do next."""
    if files := verified.again:
        lines = [f"Download again: {some_files(files)}"]
        if verified.download and len(files) <= SHOWN_NAMES:
            lines.append(f"  {escape(verified.download.command(files))}")
        return [*lines]
    if not verified.ok and verified.is_as_published:
        return ["Another download would give the same files, because these are the published ones. Tell the publisher."]
    return [f"To prove more: {', or '.join(verified.more)}"] if verified.more else []
