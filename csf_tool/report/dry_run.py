"""The report of `--dry-run`."""

from itertools import islice

from rich.console import RenderableType

from csf_tool.report.compress import left_dense_lines
from csf_tool.report.console import SHOWN_ROWS
from csf_tool.report.table import Table
from csf_tool.report.written import complete_already, some_files, written_lines
from csf_tool.text import count, escape, size
from csf_tool.write.compress import Compressed
from csf_tool.write.dry_run import Action, DryRun
from csf_tool.write.run import Written

_WORDS = {
    Action.WRITE: "would be written",
    Action.LINK: "would be linked",
    Action.KEEP: "finished by an earlier run",
    Action.COMPARE: "there, would be compared",
    Action.LATER: "left for other parts",
}


def dry_run_report(done: Written) -> list[RenderableType]:
    """The files, the sums, and what would not be carried over, removed or compressed."""
    plan = done.dry_run or DryRun()
    if not done.was_complete:
        lines = [*_files(plan), "", *_sums(done, plan)]
    elif done.dry_run is None:
        lines = complete_already(done)
    else:  # of a run that has removed its source, but for these shards
        lines = [f"{escape(done.destination)} is already complete, made from {escape(done.source)}."]
    if plan.removes:
        lines.append(f"Would REMOVE {count(len(plan.removes), 'source shard')}: {some_files(plan.removes)}.")
    if not done.was_complete:
        lines += written_lines(done)
    if isinstance(done, Compressed):
        lines += left_dense_lines(done.left)
    return [*lines, "Dry run: nothing was written."]


def _files(plan: DryRun) -> list[RenderableType]:
    result = Table("file", "bytes", "what would happen")
    for file in islice(plan.files, SHOWN_ROWS):
        result.add_row(escape(file.name), f"{file.size:,}", _WORDS[file.action])
    more = len(plan.files) - SHOWN_ROWS
    return [result, *([f"... and {more:,} more; --json lists all"] if more > 0 else [])]


def _sums(done: Written, plan: DryRun) -> list[RenderableType]:
    parts = []
    for action, words in _WORDS.items():
        if files := plan.of(action):
            parts.append(f"{count(len(files), 'file')} {words}, {size(sum(file.size for file in files))}")
    fetched = f", {size(plan.bytes_to_fetch)} fetched from the Hub" if plan.bytes_to_fetch else ""
    free = "an unknown amount" if plan.room_free is None else size(plan.room_free)
    return [
        f"{escape(done.destination)}: {'; '.join(parts)}.",
        f"{size(plan.bytes_to_read)} of the source would be read{fetched}.",
        f"Disk space: at most {size(plan.room_needed)} needed, {free} free.",
    ]
