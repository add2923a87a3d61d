"""The entry point of vLLM's plug-ins: registers what reads CSF checkpoints, and imports next to nothing itself.

vLLM runs it in each of its processes, in some of them before it imports its own loaders, or without importing them at
all. So what has to be changed in a module of vLLM is changed when vLLM has imported that module.
"""

import logging
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

REMEDY = "csf-tool expand writes a checkpoint that vLLM reads without csf-tool; VLLM_PLUGINS chooses plug-ins"

logger = logging.getLogger("vllm.csf_tool")
"""A logger under vLLM's own, so that its settings are followed."""

_Change = Callable[[ModuleType], None]


def register() -> None:
    """Have vLLM read checkpoints with CSF streams. May be called again, and in every process."""
    _when_imported("vllm.model_executor.model_loader", _register_loader)
    _when_imported("vllm.engine.arg_utils", _resolve_containers)


def _register_loader(module: ModuleType) -> None:
    from csf_tool.engines.vllm.formats import register_loader

    register_loader(module)


def _resolve_containers(module: ModuleType) -> None:
    from csf_tool.engines.vllm.containers import resolve_containers

    resolve_containers(module)


def _when_imported(name: str, change: _Change) -> None:
    """Change a module, now or when it is imported. What goes wrong is one warning, and vLLM is as it was."""
    try:
        if module := sys.modules.get(name):
            change(module)
        elif name not in (finder.name for finder in sys.meta_path if isinstance(finder, _Watch)):
            sys.meta_path.insert(0, _Watch(name, change))
    except Exception as error:
        warn(error)


def warn(error: Exception) -> None:
    """Say, once of each error, that a vLLM cannot be changed, and what to do."""
    _say_once(f"{type(error).__name__}: {error}")


@cache
def _say_once(what: str) -> None:
    logger.warning("csf-tool could not be registered, so CSF checkpoints will not load (%s). %s", what, REMEDY)


class _Watch(MetaPathFinder):
    """Finds one module as it would be found anyway, and has it changed once it has been executed."""

    def __init__(self, name: str, change: _Change) -> None:
        self.name = name
        self._change = change
        self._is_asking = False

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        """See `MetaPathFinder.find_spec`; None for all other modules."""
        if fullname != self.name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._is_asking = False
        if spec and spec.loader:
            spec.loader.exec_module = partial(self._execute, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            self._change(module)
        except Exception as error:
            warn(error)
