"""Remains of downloads beside the files: notes of their origin, and files that are not complete."""

from fnmatch import fnmatchcase
from pathlib import Path

from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.codes import Code
from csf_tool.disk.headers import LENGTH_BYTES, SHARD_SUFFIX, read_header
from csf_tool.disk.own_files import is_partial
from csf_tool.disk.paths import names_in, relative_files
from csf_tool.disk.reader import RandomReader, file_size, is_file
from csf_tool.errors import CheckpointError, EnvironmentFault

NOTES = ".cache/huggingface/download"
"""Folder in which `hf download --local-dir` notes each file's commit and ETag, and keeps incomplete files."""

_TEMPORARY = "._____temp"
"""Folder in which ModelScope keeps files until they are complete."""

_UNFINISHED = (
    "*.incomplete",  # hf download
    "*.aria2",  # aria2, and hfd with it: beside a file that may have its full size already
    "*.part",
    "*.partial",  # rclone, curl wrappers, browsers
    "*.crdownload",
    ".*.safetensors.??????",  # rsync
)


def unfinished_downloads(folder: Path) -> list[Path]:
    """Files in and around a checkpoint's folder that a downloader has begun and not finished.

    Only the places where downloaders keep them are searched: a path given by mistake may be a whole disk. Unfinished
    files of csf-tool's own runs are not listed: these have a journal.

    Raises:
        EnvironmentFault: a folder cannot be listed.
    """
    around = [*(folder / layout.shard_folder for layout in LAYOUTS), folder / "blobs"]
    if folder.parent.name == "snapshots":
        around.append(folder.parent.parent / "blobs")
    beside = {
        place / name
        for place in around
        for name in names_in(place)
        if _is_begun(place / name) and not is_partial(Path(name))
    }
    noted = {folder / NOTES / name for name in relative_files(folder / NOTES) if name.endswith(".incomplete")}
    kept = {folder / _TEMPORARY / name for name in relative_files(folder / _TEMPORARY)}
    return sorted(beside | noted | kept)


def _is_begun(file: Path) -> bool:
    """Whether a file is called as unfinished ones are, or as a shard and more, and is the beginning of one."""
    if any(fnmatchcase(file.name, pattern) for pattern in _UNFINISHED):
        return True
    return f"{SHARD_SUFFIX}." in file.name and is_file(file) and _is_cut_shard(file)


def _is_cut_shard(file: Path) -> bool:
    """Whether a file begins as a shard does and ends before its header says, or was never filled."""
    head = b""
    try:
        size = file_size(file, file.name)
        with RandomReader(file, file.name) as reader:
            head = bytes(reader.read(0, min(size, LENGTH_BYTES + 1)))
            return any(fault.code is Code.TRUNCATED for fault in read_header(reader, size).faults)
    except CheckpointError as error:
        return error.code is Code.NEVER_FILLED or head[LENGTH_BYTES:] == b"{"
    except EnvironmentFault:
        return False
