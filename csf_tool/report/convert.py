"""The report of `convert`."""

from rich.console import RenderableType

from csf_tool.report.written import complete_already, written_lines
from csf_tool.text import count, escape, size
from csf_tool.write.convert import Converted


def convert_report(converted: Converted) -> list[RenderableType]:
    """The summary for people."""
    if converted.was_complete:
        return complete_already(converted)
    linked = f" ({len(converted.linked)} linked)" if converted.linked else ""
    written = f"{count(len(converted.shards), 'shard')}{linked} and {count(len(converted.other_files), 'other file')}"
    head = f"Wrote {escape(converted.destination)} ({converted.target.value}): {written}, "
    return [
        head + f"{size(converted.bytes_written)} in {converted.seconds:.1f} s; no plane was decoded.",
        *written_lines(converted),
    ]
