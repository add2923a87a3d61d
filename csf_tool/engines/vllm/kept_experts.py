"""vLLM's methods of routed experts, made to decode their scales before they run.

A method is replaced by one of a class derived from its own, under the same name: vLLM loads weights by that name. What
it overrides are the five functions that all versions have.
"""

from functools import cache
from typing import Any

import torch

from csf_tool.engines.kept_layer import KeptLayer
from csf_tool.engines.vllm.kernel_tensors import kernel_tensors
from csf_tool.errors import UsageError

HOOKS = (
    "create_weights",
    "process_weights_after_loading",
    "get_fused_moe_quant_config",
    "apply",
    "apply_monolithic",
)

SERVE_DECODED = "Serve with decoded scales (CSF_TOOL_VLLM=dense)"

NO_RELOADING = (
    "scales that are kept compressed cannot be loaded again: restart the server, or serve with decoded scales"
)


class KeepsCompressed:
    """Mixed into the class of a method whose layer keeps its scales compressed."""

    kept: KeptLayer | None
    """The layer's scales; None where they are dense after all."""

    def create_weights(self: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
        """Make the parameters, those of the scales in the workspace."""
        super().create_weights(layer, *args, **kwargs)  # type: ignore[misc]
        if self.kept and (reason := self.kept.lay(layer)):
            self.leave_dense(reason)

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        """Have the engine process the scales as if they were dense."""
        if self.kept and self.kept.is_done:
            raise UsageError(f"{self.kept.name}: {NO_RELOADING}")
        kept = self.kept
        if kept:
            kept.fill(layer)
        super().process_weights_after_loading(layer)  # type: ignore[misc]
        if self.kept:
            self.settle(layer)
        if kept and not kept.finish(layer, kernel_tensors(self, layer)) and self.kept:
            self.leave_dense(f"the scales are not where the kernel of {backend_of(self)} reads them")

    def get_fused_moe_quant_config(self: Any, layer: Any) -> Any:
        """Give the kernel the parameters in the workspace."""
        if self.kept:
            self.settle(layer)
        return super().get_fused_moe_quant_config(layer)  # type: ignore[misc]

    def apply(self: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Decode the scales of the chosen experts, and run them."""
        if self.kept:
            self.kept.decode(_choices(args, kwargs))
        return super().apply(layer, *args, **kwargs)  # type: ignore[misc]

    def apply_monolithic(self: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Decode all scales, and run the experts: the kernel chooses them by itself."""
        if self.kept:
            self.kept.decode()
        return super().apply_monolithic(layer, *args, **kwargs)  # type: ignore[misc]

    def settle(self: Any, layer: Any) -> None:
        """Find what the engine has made of the scales; where it is nothing that can be decoded, they stay dense."""
        if reason := self.kept.settle(layer):
            self.leave_dense(f"{reason} ({backend_of(self)})")

    def leave_dense(self: Any, reason: str) -> None:
        """Have the layer's scales dense."""
        kept, self.kept = self.kept, None
        self.dense_because(kept.name, reason)


def keeping_compressed(method: Any, kept: KeptLayer, dense_because: Any) -> Any:
    """The method, made to keep its layer's scales compressed; `dense_because` is told of a layer that cannot."""
    base: type = type(method)
    keeping: Any = object.__new__(_keeping(base))
    vars(keeping).update(vars(method), kept=kept, dense_because=dense_because)
    return keeping


def backend_of(method: Any) -> str:
    """The name of the back end that a method has chosen."""
    backend = getattr(method, "nvfp4_backend", None) or getattr(method, "mxfp4_backend", None)
    return str(getattr(backend, "name", backend))


def refuse_reloading(model: torch.nn.Module) -> None:
    """Refuse to give weights to a model whose scales are compressed already.

    Raises:
        UsageError: there is such a layer.
    """
    for module in model.modules():
        kept = getattr(getattr(module, "quant_method", None), "kept", None)
        if kept and kept.is_done:
            raise UsageError(f"{kept.name}: {NO_RELOADING}")


def _choices(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The argument `topk_ids` of `apply(layer, x, topk_weights, topk_ids, ...)`."""
    chosen = kwargs.get("topk_ids", args[2] if len(args) > 2 else None)
    return chosen if isinstance(chosen, torch.Tensor) and not chosen.is_floating_point() else None


@cache
def _keeping(base: type) -> type:
    return type(base.__name__, (KeepsCompressed, base), {"__module__": base.__module__, "__doc__": base.__doc__})
