"""Remains of downloads beside the files: notes of their origin, and files that are not complete."""

from fnmatch import fnmatchcase
from pathlib import Path

from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.disk.own_files import is_partial
from csf_tool.disk.paths import names_in, relative_files

NOTES = ".cache/huggingface/download"
"""Folder in which `hf download --local-dir` notes each file's commit and ETag, and keeps incomplete files."""

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
        if any(fnmatchcase(name, pattern) for pattern in _UNFINISHED) and not is_partial(Path(name))
    }
    noted = {folder / NOTES / name for name in relative_files(folder / NOTES) if name.endswith(".incomplete")}
    return sorted(beside | noted)
