"""A model whose scales are kept compressed: which of its layers, from when it is built until it is loaded.

While vLLM builds a model it asks the model's quantisation config for the method of each layer. For that time this
stands before the config and has the methods of routed experts keep their scales, wherever that can be.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.experts import USUAL
from csf_tool.engines.expert_groups import ExpertGroup, expert_groups, part_of
from csf_tool.engines.kept_layer import KeptLayer
from csf_tool.engines.layer_workspace import LayerWorkspace
from csf_tool.engines.vllm.kept_experts import HOOKS, SERVE_DECODED, backend_of, keeping_compressed
from csf_tool.engines.vllm.plugin import logger
from csf_tool.engines.vllm.situations import why_not
from csf_tool.errors import UsageError
from csf_tool.look.plan import make_plan
from csf_tool.text import count, escape, size

_LINEAR = {"EMULATION"}
"""Back ends that take scales as they are in a checkpoint."""

_PADDED = {"VLLM_CUTLASS", "FLASHINFER_CUTLASS", "FLASHINFER_B12X", "FLASHINFER_CUTEDSL_BATCHED"}
"""Back ends that take scales in the 128x4 layout, some of them up before gate."""


_MARLIN = {"MARLIN"}
"""Back ends that take scales in Marlin's layout, each byte by a table, which is found by what vLLM makes of them."""


class KeptModel:
    """The layers of a model, and of its checkpoint, that are kept compressed on this rank."""

    def __init__(self, checkpoint: Checkpoint, mapper: Any = None) -> None:
        """`mapper` is vLLM's: from the checkpoint's names to those of its modules."""
        self.checkpoint = checkpoint
        self._groups = {_module_of(group, mapper): group for group in expert_groups(checkpoint).values()}
        self._group_of = {plane.name: group.name for group in self._groups.values() for plane in group.planes}
        self._layers: dict[str, tuple[KeptLayer, Any]] = {}
        self._workspaces: dict[torch.device, LayerWorkspace] = {}
        self._said: set[str] = set()
        self._ranks = 1

    def method_of(self, get_quant_method: Any, layer: Any, prefix: str) -> Any:
        """The method of a layer, as the config has it, made to keep scales if that is for it."""
        method = get_quant_method(layer, prefix)
        group = self._groups.get(prefix)
        if group and method is not None:
            if reason := _why_dense(method):
                self.dense_because(group.name, reason)
            else:
                return self._keeping(method, layer, group)
        return method

    def _keeping(self, method: Any, layer: Any, group: ExpertGroup) -> Any:
        parallel = layer.moe_config.moe_parallel_config
        device = torch.get_default_device()
        workspace = self._workspaces.setdefault(device, LayerWorkspace(device))
        padded = backend_of(method) in _PADDED
        self._ranks = parallel.tp_size
        kept = KeptLayer(group, workspace, parallel.tp_rank, parallel.tp_size, padded=padded)
        keeping = keeping_compressed(method, kept, self.dense_because)
        self._layers[group.name] = kept, keeping
        return keeping

    def dense_because(self, group: str, reason: str) -> None:
        """Warn, once for each reason, of a layer that is loaded as dense."""
        if reason not in self._said:
            self._said.add(reason)
            where = f"{self.checkpoint.label}: {escape(group)}, and perhaps others"
            logger.warning("%s: scales are decoded when loading, not kept compressed: %s", where, reason)

    def loads(self, scale: str) -> bool:
        """Whether a layer that keeps its scales loads this one by itself."""
        group = self._group_of.get(scale)
        return group is not None and group in self._layers and self._layers[group][1].kept is not None

    def require_in_use(self, model: torch.nn.Module) -> None:
        """Check that vLLM has processed the scales of all layers that keep them, and will have them decoded.

        Raises:
            UsageError: it has taken another method for one of them since, which reads what is not there.
        """
        methods = {id(getattr(module, "quant_method", None)) for module in model.modules()}
        for layer, method in self._layers.values():
            if method.kept and not (layer.is_done and id(method) in methods):
                raise UsageError(f"{escape(layer.name)}: vLLM has another method for these experts. {SERVE_DECODED}")

    def finish(self) -> None:
        """Say what is kept, and let go of the checkpoint: the layers serve from now on."""
        self._report()
        for layer, method in self._layers.values():
            layer.forget()
            del method.dense_because

    def _report(self) -> None:
        """Say what is kept, and what it takes beside what `csf-tool plan` predicts."""
        kept = [layer for layer, method in self._layers.values() if method.kept]
        if not kept:
            if not self._said:
                names = ", ".join(map(escape, list(self._groups)[:2])) or "none"
                self.dense_because(
                    "the model", f"no layer of the model has the name of the checkpoint's experts ({names})"
                )
            return
        plan = make_plan(self.part([layer.group for layer in kept]), tp=self._ranks)
        stacks = sum(layer.nbytes for layer in kept)
        workspace = sum(workspace.nbytes for workspace in self._workspaces.values())
        together, planned = stacks + workspace, plan.compressed_bytes + plan.workspace_bytes
        logger.info(
            "%s: csf-tool keeps the block scales of %s compressed: %s and a workspace of %s, together %d bytes "
            "(plan: %d, %+.2f%%; dense: %d)",
            self.checkpoint.label, count(len(kept), "layer"), size(stacks), size(workspace),
            together, planned, 100 * (together / planned - 1), plan.dense_bytes,
        )  # fmt: skip

    def part(self, groups: list[ExpertGroup]) -> Checkpoint:
        """The checkpoint with the planes of some layers alone."""
        parts = [group.part for group in groups]
        planes, dense = ([p for part in parts for p in part.planes], [p for part in parts for p in part.dense_planes])
        return part_of(self.checkpoint, planes, dense)


@contextmanager
def keeping(checkpoint: Checkpoint, vllm_config: Any, model_config: Any) -> Iterator[KeptModel | None]:
    """While a model is built and loaded: have its layers keep their scales; None where that is not for this model."""
    kept = _kept_model(checkpoint, vllm_config, model_config)
    if kept is None:
        yield None
        return
    config = vllm_config.quant_config
    original, another = config.get_quant_method, vars(config).get("get_quant_method")
    config.get_quant_method = lambda layer, prefix: kept.method_of(original, layer, prefix)
    try:
        yield kept
    finally:
        if another:  # of another plug-in
            config.get_quant_method = another
        else:
            del config.get_quant_method
    kept.finish()


def _kept_model(checkpoint: Checkpoint, vllm_config: Any, model_config: Any) -> KeptModel | None:
    no_config = "vLLM has no quantisation config for it" if vllm_config.quant_config is None else None
    if reason := no_config or why_not(vllm_config, model_config):
        KeptModel(checkpoint).dense_because("the model", reason)
        return None
    from vllm.model_executor.model_loader.utils import get_model_architecture

    model_class, _ = get_model_architecture(model_config)
    return KeptModel(checkpoint, getattr(model_class, "hf_to_vllm_mapper", None))


def _why_dense(method: Any) -> str | None:
    backend = backend_of(method)
    if not all(hasattr(method, hook) for hook in HOOKS):
        return f"vLLM's {type(method).__name__} does not have the functions that csf-tool overrides"
    if backend not in _LINEAR | _PADDED | _MARLIN:
        return f"csf-tool does not write the layout of the back end {backend}; moe_backend=emulation has one that works"
    return None


def _module_of(group: ExpertGroup, mapper: Any) -> str:
    """The name that vLLM's module has."""
    if mapper is None:
        return group.name
    mapped = mapper.apply_list([group.planes[0].name])
    return (mapped and USUAL.group_of(mapped[0])) or next(iter(mapper.apply_list([group.name])), group.name)
