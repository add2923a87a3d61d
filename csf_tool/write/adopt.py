"""Keeping files that lie in a destination already, copied there by somebody else, if they are the right ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

from csf_tool.cancel import CancelToken
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.codes import Code
from csf_tool.disk.reader import is_file
from csf_tool.errors import UsageError
from csf_tool.progress import Progress
from csf_tool.running.jobs import local_executor, run_jobs
from csf_tool.write.journal import Journal, Record
from csf_tool.write.output import OutputShard

File = OutputShard | SideFile


def adopt(
    files: Sequence[File],
    journal: Journal,
    right_record: Callable[[OutputShard], Record | None],
    progress: Progress,
    jobs: int,
    cancel: CancelToken,
) -> list[str]:
    """Record in `journal` those of `files` that are in its destination and right; their names.

    `right_record` reads a shard that has its size, and gives the record of one that is right.

    Raises:
        UsageError: one is something else. It stays as it is, and the good ones stay recorded.
    """
    there = [file for file in files if journal.lies_unrecorded(_name(file))]
    progress.start("compare", sum(file.size for file in there))
    good: list[str] = []
    wrong: list[Path] = []

    def done(file: File, record: Record | None) -> None:
        progress.advance(file.size)
        if record:
            journal.finish(_name(file), record)
            good.append(_name(file))
        else:
            wrong.append(journal.path_of(_name(file)))

    def compare(file: File) -> Record | None:
        path = journal.path_of(_name(file))
        if path.is_symlink() or not is_file(path) or path.stat().st_size != file.size:
            return None
        if isinstance(file, OutputShard):
            return right_record(file)
        return Record(file.size) if file.is_equal_to(path) else None

    with local_executor(jobs) as pool:
        run_jobs(there, compare, done, pool, cancel)
    if wrong:
        more = f", nor do {len(wrong) - 1} more files" if len(wrong) > 1 else ""
        problem = f"does not belong there{more}: remove what is wrong, and run again"
        raise UsageError(problem, Code.WRONG_IN_DESTINATION, str(min(wrong)))
    return sorted(good)


def _name(file: File) -> str:
    return file.target if isinstance(file, SideFile) else file.name
