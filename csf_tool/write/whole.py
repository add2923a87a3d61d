"""Whether a destination holds the whole result of a run already.

It is told by the names, sizes and headers of the shards, by the bytes of the files beside them, and by the sizes of the
documents that state the shards' hashes. No tensor is read: `--recheck` does that.
"""

from collections.abc import Iterator
from pathlib import Path

from csf_tool.checkpoint.side_files import SideFile
from csf_tool.codes import Code
from csf_tool.disk.paths import relative_files
from csf_tool.disk.reader import RandomReader, is_file, is_folder
from csf_tool.errors import UsageError
from csf_tool.write.journal import Record
from csf_tool.write.output import UNKNOWN_HASH, Output, OutputShard


def holds_whole(destination: Path, output: Output, *, was_finished: bool) -> bool:
    """Whether a folder without a journal holds every file of an output.

    With a note that such a run was finished there, other files may have been put beside them; without one, they would
    make it another folder.

    Raises:
        UsageError: such a run was finished there, and a file of its result is missing, or not what it would write now.
    """
    if not is_folder(destination):
        return False
    unlike = next(_unlike(destination, output), None)
    if not was_finished:
        return unlike is None and not {*relative_files(destination)} - names_of(output)
    if unlike is None:
        return True
    is_there = is_file(destination / unlike)
    lacks = f"{unlike} is not what the command would write there now" if is_there else f"{unlike} is missing"
    problem = f"is not empty; give a new or empty folder, or --adopt to keep what is right in the result: {lacks}"
    raise UsageError(problem, Code.WRONG_IN_DESTINATION if is_there else Code.LOST_OUTPUT, str(destination))


def names_of(output: Output) -> set[str]:
    """The names of all files of an output."""
    return _named_ahead(output) | {*output.document_names}


def files_made(output: Output) -> set[str]:
    """The names of the files that a run over what is left of the source makes: all, unless shards were removed."""
    return _named_ahead(output) | {file.target for file in _stating(output)}


def _named_ahead(output: Output) -> set[str]:
    return {*(shard.name for shard in output.shards), *(file.target for file in output.side_files)}


def _unlike(destination: Path, output: Output) -> Iterator[str]:
    """The files of an output that a folder lacks, or holds otherwise."""
    for shard in output.shards:
        if not _has_header(destination / shard.name, shard):
            yield shard.name
    for file in output.side_files:
        if not file.is_equal_to(destination / file.target):
            yield file.target
    for document in _stating(output):
        path = destination / document.target
        if not is_file(path) or path.stat().st_size != document.size:
            yield document.target


def _stating(output: Output) -> Iterator[SideFile]:
    """The receipts and documents of an output, of the sizes that they will have."""
    yield from filter(None, map(output.renderer.foreseen_receipt, output.shards))
    yield from output.foreseen_documents({shard.name: Record(shard.size, UNKNOWN_HASH) for shard in output.shards})


def _has_header(path: Path, shard: OutputShard) -> bool:
    if not is_file(path) or path.stat().st_size != shard.size:
        return False
    with RandomReader(path, shard.name) as reader:
        return reader.read(0, len(shard.header)) == shard.header
