"""Paths that a mistyped one may stand for. Names in files, of which there are more, are for `csf_tool.nearest`."""

from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from csf_tool.disk.paths import names_in
from csf_tool.disk.reader import exists, is_file, is_folder
from csf_tool.errors import EnvironmentFault

_MOST_COMPARED = 20_000
"""Most names that are compared: more take seconds."""


def nearest_name(name: str, names: Collection[str]) -> str | None:
    """The one of some names that is written most like `name`; None where none is like it, or there are too many."""
    if len(names) > _MOST_COMPARED:
        return None
    by_lower = {known.lower(): known for known in names if known != name}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[found[0]] if found else None


def nearest_path(path: Path) -> Path | None:
    """The path that may be meant by one that leads nowhere: each name of it that is not there, taken for one like it.

    Where nothing is like one of them, the folder that it would be in.
    """
    meant = None
    while not exists(path):
        missing = next((p for p in (path, *path.parents) if exists(p.parent)), path)
        try:
            found = nearest_name(missing.name, names_in(missing.parent)) if missing.name else None
        except EnvironmentFault:  # the folder cannot be listed, and a hint is not worth an error of its own
            return meant
        if found is None:
            return meant
        meant = missing.with_name(found)
        path = meant / path.relative_to(missing)
    return path


def did_you_mean(path: Path) -> str:
    """The end of a sentence about a path that leads nowhere; empty where nothing is called alike."""
    found = nearest_path(path)
    return f"; did you mean {found}?" if found else ""


def not_there(path: Path, wanted: str) -> str:
    """Why a path is not what is `wanted` ("file", "file or folder"): what it leads to instead, or the nearest name."""
    if not exists(path):
        return f"no such {wanted}{did_you_mean(path)}"
    kind = "a folder" if is_folder(path) else "a file" if is_file(path) else "a device, a pipe or a socket"
    return f"is {kind}, not a {wanted}"
