"""Keeping files that somebody else has copied into a destination, where they are the right ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

from csf_tool.cancel import CancelToken
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.codes import Code
from csf_tool.disk.reader import is_file
from csf_tool.errors import UsageError
from csf_tool.progress import Amount, OnBytes, SharedProgress
from csf_tool.running.jobs import run_with_progress
from csf_tool.text import count, verb
from csf_tool.write.journal import Journal, Record
from csf_tool.write.output import OutputShard

File = OutputShard | SideFile


def adopt(
    files: Sequence[File],
    journal: Journal,
    right_record: Callable[[OutputShard, OnBytes], Record | None],
    progress: SharedProgress,
    jobs: int,
    cancel: CancelToken,
) -> list[str]:
    """Record in `journal` those of `files` that its destination holds as they should be, and return their names.

    `right_record` reads a shard of the right size, and returns its record where its bytes are right, too.

    Raises:
        UsageError: a file holds something else. It is left as it is, and the right ones stay recorded.
    """
    unrecorded = [file for file in files if journal.is_unrecorded(name_of(file))]
    if unrecorded:
        shards = sum(isinstance(file, OutputShard) for file in unrecorded)
        progress.start("compare", Amount(sum(file.size for file in unrecorded), shards))
    good: list[str] = []
    wrong: list[Path] = []

    def done(file: File, record: Record | None) -> None:
        if isinstance(file, OutputShard):
            progress.shard_done()
        else:
            progress.advance(file.size)
        if record:
            journal.finish(name_of(file), record)
            good.append(name_of(file))
        else:
            wrong.append(journal.path_of(name_of(file)))

    def compare(file: File, on_bytes: OnBytes) -> Record | None:
        path = journal.path_of(name_of(file))
        if path.is_symlink() or not is_file(path) or path.stat().st_size != file.size:
            return None
        if isinstance(file, OutputShard):
            return right_record(file, on_bytes)
        return Record(file.size) if file.is_equal_to(path) else None

    run_with_progress(unrecorded, compare, done, jobs, cancel, progress)
    refuse_wrong(wrong)
    return sorted(good)


def refuse_wrong(wrong: Sequence[Path]) -> None:
    """Refuse a destination in which files are wrong.

    Raises:
        UsageError: there are such files.
    """
    if wrong:
        others = len(wrong) - 1
        more = f", and neither {verb(others, 'does', 'do')} {count(others, 'more file')}" if others else ""
        problem = f"does not belong there{more}: remove the wrong files, and run the command again"
        raise UsageError(problem, Code.WRONG_IN_DESTINATION, str(min(wrong)))


def name_of(file: File) -> str:
    """The path of a file in the destination."""
    return file.target if isinstance(file, SideFile) else file.name
