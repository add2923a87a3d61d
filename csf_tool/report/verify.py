"""The report of `verify`: for people, and as the JSON document csf-tool.verify/1."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from csf_tool.checkpoint.causes import lines_of
from csf_tool.checkpoint.problems import Severity
from csf_tool.prove.verdict import Check, Status, Verified
from csf_tool.report.console import hint, problem_json
from csf_tool.text import escape

SCHEMA = "csf-tool.verify/1"

_STYLES = {Status.PASSED: "green", Status.FAILED: "bold red", Status.WARNING: "yellow", Status.SKIPPED: "dim"}


def verify_json(verified: Verified) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema": SCHEMA,
        "ok": verified.ok,
        "checkpoint": verified.path,
        "kind": verified.kind,
        "against": verified.against,
        "device": verified.device,
        "quick": verified.quick,
        "shards": dict(zip(("checked", "of"), verified.shards, strict=True)),
        "failed_files": verified.failed_files,
        "checks": [
            {
                "name": check.name,
                "status": check.status.value,
                "checked": check.checked,
                "failures": list(map(problem_json, check.failures)),
                "warnings": list(map(problem_json, check.warnings)),
                "note": check.note,
            }
            for check in verified.checks
        ],
        "verdict": _verdict(verified)[0],
        "proved": verified.proved,
        "unproved": verified.unproved,
    }


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
    return Text.assemble(_verdict(verified), escape(proved), escape(unproved))


def _verdict(verified: Verified) -> tuple[str, str]:
    """The verdict in a few words, and their style."""
    in_part, shade = (" IN PART", "yellow") if verified.uncovered else ("", "green")
    failed = [check.name for check in verified.checks if check.status is Status.FAILED]
    if failed:
        head, style = f"FAILED: {', '.join(failed)}.", "bold red"
    elif verified.quick:
        head, style = "NO FAULT FOUND in headers and sizes; no data was read.", "yellow"
    elif verified.source.holds or verified.reference.holds:
        head, style = f"VERIFIED{in_part}.", shade
    elif verified.stored.holds and verified.stored.list_name:
        name = escape(verified.stored.list_name)
        head, style = f"VERIFIED AS LISTED in {name}{in_part}; what the original was, nothing here says.", shade
    elif verified.stored.holds:
        head, style = f"VERIFIED AS PUBLISHED{in_part}; what the original was, nothing here says.", shade
    elif verified.decode.checked:
        head, style = "NO FAULT FOUND, which proves little: a zeroed stream is well-formed too.", "yellow"
    else:
        head, style = "NO FAULT FOUND, which proves little: nothing here says what the bytes should be.", "yellow"
    checked, total = verified.shards
    if checked < total:
        head += f" Only {checked} of {total} shards were looked at."
    return head, style
