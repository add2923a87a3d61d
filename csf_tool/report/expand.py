"""The report of `expand`."""

from typing import Any

from rich.console import RenderableType

from csf_tool.report.written import complete_already, rate, written_json, written_lines
from csf_tool.text import count, escape, size
from csf_tool.write.expand import Expanded

SCHEMA = "csf-tool.expand/1"


def expand_json(expanded: Expanded) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema": SCHEMA,
        **written_json(expanded),
        "device": expanded.device,
        "planes": expanded.planes,
        "proved_shards": expanded.proved_shards,
        "licences": expanded.licences,
        "origin": expanded.origin or None,
    }


def expand_report(expanded: Expanded) -> list[RenderableType]:
    """The summary for people, and what it does and does not prove."""
    if expanded.was_complete:
        return complete_already(expanded)
    written = f"{count(len(expanded.shards), 'shard')} and {count(len(expanded.other_files), 'other file')}"
    lines: list[RenderableType] = [
        f"Wrote {escape(expanded.destination)}: {written}, {size(expanded.bytes_written)} in "
        f"{expanded.seconds:.1f} s ({rate(expanded)}); {count(expanded.planes, 'plane')} decoded on {expanded.device}."
    ]
    lines += written_lines(expanded)
    lines += [f"Note: {escape(note)}" for note in expanded.notes]
    if expanded.licences:
        lines.append(f"Its terms travel with it: {escape(', '.join(expanded.licences))}.")
    of = f" of {escape(expanded.origin)}" if expanded.origin else ""
    proved = len(expanded.proved_shards)
    if proved == len(expanded.shards):
        lines.append(f"Every shard has the SHA-256 of the original{of}: restored bit for bit.")
    elif proved:
        lines.append(f"{proved} of {len(expanded.shards)} shards have the SHA-256 of their original.")
    else:
        lines.append("The originals' hashes are not known: csf-tool verify --against a dense copy proves the bytes.")
    return lines
