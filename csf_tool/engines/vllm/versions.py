"""The versions of vLLM that csf_tool knows, and whether the one that runs needs it at all."""

from functools import cache

from csf_tool.engines.own_reader import reads_by_itself
from csf_tool.engines.version_range import VersionRange
from csf_tool.engines.vllm.plugin import logger

TESTED = VersionRange("vLLM", (0, 26), (0, 33))
"""The versions of vLLM whose loader was tried or read."""

_READERS = ("model_executor/layers/quantization", "model_executor/model_loader")
"""Folders of vLLM in which the reading of CSF would be."""


def running_version() -> str:
    """The version of the vLLM that runs, as it says itself: its distributions have several names."""
    from vllm.version import __version__

    return str(__version__)


def warn_of_untested_version() -> None:
    """Say once in a process that the vLLM that runs is outside the tested range."""
    TESTED.warn_of(running_version(), logger)


@cache
def vllm_reads(format_name: str) -> bool:
    """Whether this vLLM reads CSF of a format by itself."""
    return reads_by_itself("vllm", _READERS, format_name)
