"""The versions of vLLM that csf_tool knows, and whether the one that runs needs it at all."""

import re
from functools import cache

from csf_tool.engines.own_reader import reads_by_itself
from csf_tool.engines.vllm.plugin import logger

OLDEST, NEWEST = (0, 26), (0, 33)
"""The oldest and the newest minor version of vLLM whose loader was tried or read; docs/serving.md says which how."""

_READERS = ("model_executor/layers/quantization", "model_executor/model_loader")
"""Folders of vLLM in which the reading of CSF would be."""


def running_version() -> str:
    """The version of the vLLM that runs, as it says itself: its distributions have several names."""
    from vllm.version import __version__

    return str(__version__)


def is_tested(version: str) -> bool:
    """Whether a version is in the tested range; those that do not look like one, as of a fork, are not."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and OLDEST <= (int(match[1]), int(match[2])) <= NEWEST


@cache
def warn_of_untested_version() -> None:
    """Say once in a process that the vLLM that runs is outside the tested range."""
    if not is_tested(version := running_version()):
        tested = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        logger.warning("vLLM %s is outside the range that csf-tool was tested with (%s)", version, tested)


@cache
def vllm_reads(format_name: str) -> bool:
    """Whether this vLLM reads CSF of a format by itself."""
    return reads_by_itself("vllm", _READERS, format_name)
