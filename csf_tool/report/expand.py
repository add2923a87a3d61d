"""The report of `expand`."""

from typing import Any

from rich.console import RenderableType

from csf_tool.text import count, escape, size
from csf_tool.write.expand import Expanded

SCHEMA = "csf-tool.expand/1"


def expand_json(expanded: Expanded) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema": SCHEMA,
        "source": expanded.source,
        "destination": expanded.destination,
        "device": expanded.device,
        "planes": expanded.planes,
        "shards": expanded.shards,
        "proved_shards": expanded.proved_shards,
        "resumed_shards": expanded.resumed_shards,
        "adopted_files": expanded.adopted_files,
        "missing_shards": expanded.missing,
        "removed_sources": expanded.removed_sources,
        "other_files": expanded.other_files,
        "licences": expanded.licences,
        "origin": expanded.origin or None,
        "notes": expanded.notes,
        "bytes_written": expanded.bytes_written,
        "seconds": round(expanded.seconds, 3),
    }


def expand_report(expanded: Expanded) -> list[RenderableType]:
    """The summary for people, and what it does and does not prove."""
    written = f"{count(len(expanded.shards), 'shard')} and {count(len(expanded.other_files), 'other file')}"
    rate = f"{size(int(expanded.bytes_written / expanded.seconds))}/s" if expanded.seconds else "at once"
    lines: list[RenderableType] = [
        f"Wrote {escape(expanded.destination)}: {written}, {size(expanded.bytes_written)} in "
        f"{expanded.seconds:.1f} s ({rate}); {count(expanded.planes, 'plane')} decoded on {expanded.device}."
    ]
    if expanded.resumed_shards:
        lines.append(f"{count(len(expanded.resumed_shards), 'shard')} of them had been finished by an earlier run.")
    if expanded.adopted_files:
        lines.append(f"Kept {count(len(expanded.adopted_files), 'file')} that lay there already, each compared.")
    if expanded.removed_sources:
        lines.append(f"Removed {count(len(expanded.removed_sources), 'source shard')}, each after its proof.")
    if expanded.missing:
        lines.append(f"Not complete yet: {count(len(expanded.missing), 'shard')} left for other parts to write.")
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
