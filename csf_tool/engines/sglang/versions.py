"""The versions of SGLang that csf_tool knows, and whether the one that runs needs it at all."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from csf_tool.engines.sglang.plugin import logger

OLDEST, NEWEST = (0, 5, 14), (0, 5, 23)
"""The oldest and the newest version of SGLang whose loader was read; docs/serving.md says what was run."""

_READERS = ("srt/layers/quantization", "srt/model_loader")
"""Folders of SGLang in which the reading of CSF would be."""


def is_tested(running: str) -> bool:
    """Whether a version is in the tested range; those that do not look like one, as of a fork, are not."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", running)
    return match is not None and OLDEST <= (int(match[1]), int(match[2]), int(match[3])) <= NEWEST


@cache
def warn_of_untested_version() -> None:
    """Say once in a process that the SGLang that runs is outside the tested range."""
    try:
        running = version("sglang")
    except PackageNotFoundError:
        running = "of unknown version"
    if not is_tested(running):
        tested = " to ".join(".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        logger.warning("SGLang %s is outside the range that csf-tool was tested with (%s)", running, tested)


@cache
def sglang_reads(format_name: str) -> bool:
    """Whether this SGLang reads CSF of a format by itself: then its source has the streams' name.

    Looked for in the text of its loaders and quantisations, a few megabytes, once there are streams to read.
    """
    return any(f"{format_name}_csf" in text for text in _texts())


def _texts() -> Iterator[str]:
    spec = find_spec("sglang")
    for root in (spec.submodule_search_locations if spec else None) or ():
        for folder in _READERS:
            for path in sorted(Path(root, folder).rglob("*.py")):
                yield path.read_text(encoding="utf-8", errors="replace")
