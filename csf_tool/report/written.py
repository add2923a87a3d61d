"""The parts that the reports of `expand`, `compress` and `convert` have in common."""

from rich.console import RenderableType

from csf_tool.checkpoint.causes import sentences_of
from csf_tool.text import count, escape, size
from csf_tool.write.run import Written

_SHOWN = 10


def written_lines(written: Written) -> list[str]:
    """Sentences on files that the run found in the destination, on what is still to be done, and on oddities."""
    lines = []
    if written.resumed_shards:
        lines.append(f"{count(len(written.resumed_shards), 'shard')} of them had been finished by an earlier run.")
    if written.adopted_files:
        lines.append(f"Kept {count(len(written.adopted_files), 'file')} that lay there already, each compared.")
    if written.removed_sources:
        lines.append(f"Removed {count(len(written.removed_sources), 'source shard')}, each after its proof.")
    if written.missing:
        lines.append(f"Not complete yet: {count(len(written.missing), 'shard')} left for other parts to write.")
    lines += [f"Not carried over, {cause}: {some(names)}." for cause, names in written.left_out.items()]
    return lines + [f"Note: {note}" for note in sentences_of(written.notes)]


def some(names: list[str]) -> str:
    """Names as a list in a sentence, many of them cut short."""
    more = f" and {len(names) - _SHOWN} more (--json names all)" if len(names) > _SHOWN else ""
    return escape(", ".join(names[:_SHOWN])) + more


def complete_already(written: Written) -> list[RenderableType]:
    """The report of a run that had nothing to do."""
    return [
        f"{escape(written.destination)} is complete already, made by the same command from {escape(written.source)}: "
        "nothing was read or written. csf-tool verify proves its bytes; --recheck compares them with the source's."
    ]


def rate(written: Written) -> str:
    """Bytes written a second."""
    return f"{size(int(written.bytes_written / written.seconds))}/s" if written.seconds else "at once"
