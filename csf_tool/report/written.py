"""The parts that the reports of `expand`, `compress` and `convert` have in common."""

from rich.console import RenderableType

from csf_tool.checkpoint.causes import sentences_of
from csf_tool.text import count, escape, size, some, verb
from csf_tool.write.run import Written

SHOWN_NAMES = 10
"""Most names of a list in a sentence."""


def head_lines(written: Written, layout: str = "", what: str = "", work: str = "") -> list[str]:
    """The first sentence: `what` was written, or how many files, by this run; `work` went into its shards."""
    to = escape(written.destination) + (f" ({layout})" if layout else "")
    files = [
        (len(written.new_shards), "shard", f" ({len(written.linked)} linked)" if written.linked else ""),
        (len(set(written.other_files) - set(written.adopted_files)), "other file", ""),
    ]
    counts = " and ".join(count(number, noun) + more for number, noun, more in files if number)
    if not counts:
        return [f"There was nothing left to write into {to}."]
    done = f"Wrote {to}: {what or counts}; " if what else f"Wrote {to}: {counts}, "
    return [done + _pace(written) + (f"; {work}." if work and written.new_shards else ".")]


def _pace(written: Written) -> str:
    """The bytes that this run wrote, and the time; a rate only of a time that is long enough to tell one."""
    seconds = written.seconds
    rate = f" ({size(int(written.bytes_written / seconds))}/s)" if seconds >= 1 else ""
    return f"{size(written.bytes_written)} in {max(seconds, 0.1):.1f} s{rate}"


def written_lines(written: Written) -> list[str]:
    """Sentences on files that the run found in the destination, on what is still to be done, and on oddities."""
    lines = []
    if written.resumed_shards:
        number = len(written.resumed_shards)
        lines.append(f"{count(number, 'shard')} {verb(number, 'was', 'were')} already finished by an earlier run.")
    if written.adopted_files:
        number = len(written.adopted_files)
        were = verb(number, "was", "were")
        lines.append(f"Kept {count(number, 'file')} that {were} already there, after comparing each.")
    if written.removed_sources:
        lines.append(f"Removed {count(len(written.removed_sources), 'source shard')}, each after its copy was proved.")
    if written.missing:
        lines.append(f"Not complete yet: {count(len(written.missing), 'shard')} left for other parts to write.")
    lines += [f"Not copied ({cause}): {some_files(names)}." for cause, names in written.left_out.items()]
    return lines + [f"Note: {note}" for note in sentences_of(written.notes)]


def some_files(names: list[str]) -> str:
    """Names as a list in a sentence, many of them cut short."""
    return escape(some(names, SHOWN_NAMES)) + (" (--json lists all)" if len(names) > SHOWN_NAMES else "")


def complete_already(written: Written) -> list[RenderableType]:
    """The report of a run that had nothing to do."""
    lines = [
        f"{escape(written.destination)} is already complete: it has what the same command writes from "
        f"{escape(written.source)}, by the names and sizes of all files, the headers of shards, and the bytes of files "
        "that are copied. Nothing was written, and no tensor was compared. To prove the tensors: csf-tool verify. "
        "To compare them with the source: --recheck."
    ]
    return [*lines, *(f"Note: {note}" for note in sentences_of(written.notes))]
