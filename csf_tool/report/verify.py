"""The report of `verify`."""

from rich.console import RenderableType
from rich.text import Text

from csf_tool.checkpoint.causes import lines_of
from csf_tool.checkpoint.problems import Severity
from csf_tool.prove.verdict import Check, Status, Verified
from csf_tool.report.console import hint
from csf_tool.text import escape

_STYLES = {Status.PASSED: "green", Status.FAILED: "bold red", Status.WARNING: "yellow", Status.SKIPPED: "dim"}


def verify_report(verified: Verified) -> list[RenderableType]:
    """The report for people: a line a check with its faults below, and what was proved and what was not."""
    lines: list[RenderableType] = [f"{escape(verified.path)}: {verified.kind}"]
    for check in verified.checks:
        lines += _check(check)
    lines.append(_last_line(verified))
    return lines


def _check(check: Check) -> list[RenderableType]:
    looked_at = "" if check.status is Status.SKIPPED else f"{check.checked:>9,}"
    head = Text.assemble(
        f"{check.name:<10}",
        (f"{check.status.value:<8}", _STYLES[check.status]),
        f"{looked_at:>9}  {escape(check.note)}",
    )
    lines = lines_of([*check.failures, *check.warnings])
    styles = {Severity.ERROR: _STYLES[Status.FAILED], Severity.WARNING: _STYLES[Status.WARNING]}
    said = [Text.assemble(("  ", ""), (line.text, styles[line.severity])) for line in lines]
    return [head, *said, *(f"  {line}" for line in hint(lines, "--json"))]


def _last_line(verified: Verified) -> Text:
    """The verdict, with what was proved and what was not: never a bare OK."""
    proved = f" Proved: {'; '.join(verified.proved)}." if verified.proved else " Nothing was proved."
    unproved = f" Not proved: {'; '.join(verified.unproved)}." if verified.unproved else ""
    return Text.assemble((verified.verdict, _style(verified)), escape(proved), escape(unproved))


def _style(verified: Verified) -> str:
    """The style of the verdict."""
    if not verified.ok:
        return "bold red"
    return "green" if verified.is_proved and not verified.uncovered else "yellow"
