"""The versions of SGLang that csf_tool knows, and whether the one that runs needs it at all."""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from csf_tool.engines.own_reader import reads_by_itself
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
    """Whether this SGLang reads CSF of a format by itself."""
    return reads_by_itself("sglang", _READERS, format_name)
