"""SGLang's own sources of plug-ins and of loading weights, run without the rest of it and without its dependencies.

Its loaders import half of SGLang, which wants CUDA. Here all but the modules in `OURS` are stubs, and so are
packages that are not installed.
"""

import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

OURS = (
    "sglang.srt.configs.load_config",
    "sglang.srt.environ",
    "sglang.srt.model_loader.loader",
    "sglang.srt.model_loader.weight_utils",
    "sglang.srt.plugins",
    "sglang.srt.plugins.hook_registry",
)
"""Modules that are SGLang's own."""

_PACKAGES = ("sglang", "sglang.srt", "sglang.srt.configs", "sglang.srt.model_loader")
"""Packages around them, of which nothing is run."""

_NEEDS = ("filelock", "orjson")

IS_HERE = find_spec("sglang") is not None


class Stub:
    """Whatever is asked of it is another stub, and false."""

    def __call__(self, *_: Any, **__: Any) -> "Stub":
        return self

    def __getattr__(self, name: str) -> "Stub":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class StubFinder(MetaPathFinder, Loader):
    """Finds stubs in the place of modules."""

    def __init__(self) -> None:
        self._missing = [name for name in _NEEDS if find_spec(name) is None]
        spec = PathFinder.find_spec("sglang")
        self._root = spec.submodule_search_locations if spec else None

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        top = fullname.partition(".")[0]
        if fullname in OURS or (top != "sglang" and top not in self._missing):
            return None
        found = ModuleSpec(fullname, self, is_package=True)
        inside = fullname.split(".")[1:]
        found.submodule_search_locations = ["/".join([root, *inside]) for root in self._root or ()]
        return found

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        if spec.name not in _PACKAGES:
            module.__getattr__ = Stub().__getattr__  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def forget() -> None:
    """Forget all modules that were imported of SGLang."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("sglang", *_NEEDS)]:
        if isinstance(getattr(sys.modules[name].__spec__, "loader", None), StubFinder) or name.startswith("sglang"):
            del sys.modules[name]
