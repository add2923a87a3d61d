"""The report of `expand`."""

from shlex import quote

from rich.console import RenderableType

from csf_tool.report.written import complete_already, head_lines, some_files, written_lines
from csf_tool.text import count, escape, verb
from csf_tool.write.expand import Expanded


def expand_report(expanded: Expanded) -> list[RenderableType]:
    """The summary for people, and what it does and does not prove."""
    if expanded.was_complete:
        return complete_already(expanded)
    work = f"{count(expanded.decoded_planes, 'plane')} decoded on {expanded.device}"
    lines: list[RenderableType] = [*head_lines(expanded, work=work), *written_lines(expanded)]
    if expanded.licences:
        lines.append(f"Copied with their terms: {escape(', '.join(expanded.licences))}.")
    return [*lines, *(_proof(expanded) if expanded.shards else [])]


def _proof(expanded: Expanded) -> list[str]:
    """The part of the result that the run has proved, or all of it; if it is none, what would prove it."""
    if expanded.proved_shards:
        return [_proved(expanded)]
    lines = ["Not compared with the original (no hashes known)."]
    if expanded.removed_sources or expanded.missing:  # who has no room for a copy has no original at hand
        return lines
    return [*lines, f"To compare: csf-tool verify {escape(quote(expanded.destination))} --against ORIGINAL"]


def _proved(expanded: Expanded) -> str:
    """The shards and files that have their original's hash."""
    proved = len(expanded.proved_shards)
    if proved < len(expanded.shards) or expanded.missing:
        of = len(expanded.shards) + len(expanded.missing)
        have = verb(proved, "has the SHA-256 of its", "have the SHA-256 of their")
        return f"{proved} of {of} shards {have} original."
    every = "Every shard has the SHA-256 of the original"
    every += f" of {escape(expanded.origin)}" if expanded.origin else ""
    if expanded.is_restored:
        return f"{every}: restored bit for bit."
    if expanded.proved_files:
        others = "other file has that" if expanded.proved_files == 1 else "other files have that"
        every += f", and {expanded.proved_files} {others} of the manifest"
    lacking = f"; not covered by a hash: {some_files(expanded.unproved_files)}" if expanded.unproved_files else ""
    return f"{every}{lacking}."
