"""Engines that read CSF by themselves, forks or later versions: their source has the streams' name."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path


def reads_by_itself(package: str, folders: Iterable[str], format_name: str) -> bool:
    """Whether the source of an engine names CSF streams of a format, in the folders where their reader would be.

    A few megabytes of text are looked through, so ask once, and only when there are streams to read.
    """
    spec = find_spec(package)
    roots = (spec.submodule_search_locations if spec else None) or ()
    files = (path for root in roots for folder in folders for path in sorted(Path(root, folder).rglob("*.py")))
    return any(f"{format_name}_csf" in path.read_text(encoding="utf-8", errors="replace") for path in files)
