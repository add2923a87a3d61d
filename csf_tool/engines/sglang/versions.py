"""The versions of SGLang that csf_tool knows, and whether the one that runs needs it at all."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from csf_tool.engines.own_reader import reads_by_itself
from csf_tool.engines.sglang.plugin import logger
from csf_tool.engines.version_range import VersionRange

TESTED = VersionRange("SGLang", (0, 5, 14), (0, 5, 23))
"""The versions of SGLang whose loader was read."""

_READERS = ("srt/layers/quantization", "srt/model_loader")
"""Folders of SGLang in which the reading of CSF would be."""


def warn_of_untested_version() -> None:
    """Say once in a process that the SGLang that runs is outside the tested range."""
    try:
        running = version("sglang")
    except PackageNotFoundError:
        running = "of unknown version"
    TESTED.warn_of(running, logger)


@cache
def sglang_reads(format_name: str) -> bool:
    """Whether this SGLang reads CSF of a format by itself."""
    return reads_by_itself("sglang", _READERS, format_name)
