"""The entry point of SGLang's plug-ins: hooks around the functions by which its loaders find and read weights.

SGLang runs it in each of its processes, and then puts the hooks in place. Checkpoints without streams pass through
them as they are, and nothing of csf_tool but this module and the next is imported for them.
"""

import logging
from importlib import import_module

from csf_tool.engines.sglang.hooks import with_containers, with_scales

REMEDY = "csf-tool expand writes a checkpoint that SGLang reads without csf-tool; SGLANG_PLUGINS chooses plug-ins"

LOADER = "sglang.srt.model_loader.loader"

FINDER = "DefaultModelLoader._prepare_weights"
"""Method that finds the files of a model, or downloads them."""

READERS = (
    "safetensors_weights_iterator",
    "buffered_multi_thread_safetensors_weights_iterator",
    "fastsafetensors_weights_iterator",
    "instanttensor_weights_iterator",
)
"""Functions that read safetensors files, for all loaders alike. Older versions lack the last."""

logger = logging.getLogger("sglang.csf_tool")
"""A logger under SGLang's own, so that its settings are followed."""


def register() -> None:
    """Have SGLang read checkpoints with CSF streams. What goes wrong is one warning, and SGLang is as it was."""
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        loader = import_module(LOADER)
        readers = [name for name in READERS if hasattr(loader, name)]
        if not readers or not hasattr(loader.DefaultModelLoader, "_prepare_weights"):
            raise AttributeError(f"{LOADER} does not have the functions that csf-tool replaces")
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        logger.warning("csf-tool could not be registered, so CSF checkpoints will not load (%s). %s", what, REMEDY)
        return
    for name in readers:
        HookRegistry.register(f"{LOADER}.{name}", with_scales, HookType.AROUND)
    HookRegistry.register(f"{LOADER}.{FINDER}", with_containers, HookType.AROUND)
