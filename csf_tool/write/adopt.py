"""Keeping files that lie in a destination already, copied there by somebody else, if they are the right ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

from csf_tool.checkpoint.logical import DenseShard
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.disk.hashing import sha256_of
from csf_tool.errors import UsageError
from csf_tool.running.jobs import SharedProgress, local_executor, run_jobs
from csf_tool.write.journal import Journal, Record


def adopt(
    files: Sequence[DenseShard | SideFile],
    journal: Journal,
    is_right: Callable[[DenseShard], bool],
    progress: SharedProgress,
    jobs: int,
) -> list[str]:
    """Record in `journal` those of `files` that are in its destination and right; their names.

    A shard is right by the original's SHA-256; where that is unknown, `is_right` compares its bytes.

    Raises:
        UsageError: one is something else. It stays as it is, and the good ones stay recorded.
    """
    there = [file for file in files if journal.lies_unrecorded(file.name)]
    progress.start("compare", sum(file.size for file in there))
    good: list[str] = []
    wrong: list[Path] = []

    def done(file: DenseShard | SideFile, is_good: bool) -> None:
        progress.advance(file.size)
        if is_good:
            journal.finish(file.name, Record(file.size, file.sha256 if isinstance(file, DenseShard) else None))
            good.append(file.name)
        else:
            wrong.append(journal.path_of(file.name))

    with local_executor(jobs) as pool:
        run_jobs(there, lambda file: _belongs(file, journal.path_of(file.name), is_right), done, pool, progress.stop)
    if wrong:
        more = f", nor do {len(wrong) - 1} more files" if len(wrong) > 1 else ""
        raise UsageError(f"{min(wrong)}: does not belong there{more}: remove what is wrong, and run again")
    return sorted(good)


def _belongs(file: DenseShard | SideFile, path: Path, is_right: Callable[[DenseShard], bool]) -> bool:
    if path.is_symlink() or not path.is_file() or path.stat().st_size != file.size:
        return False
    if isinstance(file, SideFile):
        return file.is_equal_to(path)
    if file.sha256:
        return sha256_of(path, file.name) == file.sha256
    return is_right(file)
