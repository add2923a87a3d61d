"""Registration of the loader for the load formats that vLLM's default loader has."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


def register_loader(loaders: ModuleType) -> None:
    """Register csf_tool's loader wherever vLLM, or another plug-in, has left vLLM's default loader.

    `loaders` is vllm.model_executor.model_loader. When anything goes wrong, all formats are as they were.
    """
    registered = loaders._LOAD_FORMAT_TO_MODEL_LOADER
    default = [name for name, loader in registered.items() if loader is loaders.DefaultModelLoader]
    if not default:
        return
    from csf_tool.engines.vllm.loader import CsfModelLoader

    before = dict(registered)
    try:
        with _silent(loaders.__name__):  # it warns of every format that is replaced
            for name in default:
                loaders.register_model_loader(name)(CsfModelLoader)
    except Exception:
        registered.update(before)
        raise


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keep a logger from saying anything."""

    def nothing(_: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger(name)
    logger.addFilter(nothing)
    try:
        yield
    finally:
        logger.removeFilter(nothing)
