"""Checkpoints of which transformers makes no right model, in CSF or dense: it is said when one is opened.

Of its own it would say nothing, or nothing that leads to the cause.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import __version__
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from csf_tool.checkpoint.config import load_config, quantization_config
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.codec.formats import NVFP4
from csf_tool.engines.version_range import VersionRange, warn_once
from csf_tool.errors import CsfToolError

TESTED = VersionRange("transformers", (5, 0), (5, 24))
"""The versions of transformers that this was tried with."""

logger = logging.getLogger("transformers.csf_tool")
"""A logger under transformers' own, so that its settings are followed."""


def say_limits(folder: Path, planes: list[Plane]) -> None:
    """Warn, once a folder, where the model that transformers makes of these planes will not be right."""
    for limit in _limits(_quantization(folder), planes):
        warn_once(logger, f"{folder}: {limit}")
    TESTED.warn_of(__version__, logger)


def _limits(quantization: dict[str, Any] | None, planes: list[Plane]) -> Iterator[str]:
    if quantization is None:
        return
    method = quantization.get("quant_method")
    if method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        stated = f"quantised by {method}, which" if method else "quantised, and config.json does not say how:"
        yield f"{stated} transformers {__version__} cannot apply; it cannot load the dense checkpoint either (vLLM can)"
    elif method == "compressed-tensors" and any(_is_global_scaled_expert(plane) for plane in planes):
        yield (
            f"transformers {__version__} ignores the global scales of NVFP4 experts, here and in the dense"
            " checkpoint: the model's outputs are wrong (vLLM's are right)"
        )


def _is_global_scaled_expert(plane: Plane) -> bool:
    return plane.fmt == NVFP4 and ".experts." in plane.name


def _quantization(folder: Path) -> dict[str, Any] | None:
    """The quantization_config of a folder's model; None where there is no config that can be read."""
    try:
        config = load_config(folder)
    except CsfToolError:
        return None
    return None if config is None else quantization_config(config)
