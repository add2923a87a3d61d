"""vLLM's default loader, with the block scales of CSF checkpoints decoded while they are loaded.

Which files are read, downloaded or left out, and in which order, stays vLLM's own: this loader takes what that gives,
puts scales in the place of streams, and has stored tensors on the GPU already where all of each is needed there.
"""

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import parse_expert_id

from csf_tool.engines.lost_streams import refuse_lost_streams
from csf_tool.engines.vllm import keep_choice
from csf_tool.engines.vllm.model import device_of, is_all_on, missing_on_this_rank
from csf_tool.engines.vllm.plugin import logger
from csf_tool.engines.vllm.streams import formats_in
from csf_tool.engines.vllm.versions import vllm_reads, warn_of_untested_version

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.load import LoadConfig

    from csf_tool.checkpoint.checkpoint import Checkpoint
    from csf_tool.engines.vllm.keeping import KeptModel

Weights = Generator[tuple[str, torch.Tensor], None, None]


class CsfModelLoader(DefaultModelLoader):  # type: ignore[misc]
    """Loads checkpoints with CSF streams as if they were dense, and all others as `DefaultModelLoader` does."""

    def __init__(self, load_config: "LoadConfig") -> None:
        self._choice, load_config = keep_choice.taken(load_config)
        super().__init__(load_config)
        self._device = torch.device("cpu")
        self._fills_gpu = False
        self._is_missing: Callable[[str], bool] = lambda _: False
        self._prepared: tuple[tuple[Any, ...], Any] | None = None
        self._kept: KeptModel | None = None
        self._opened: Checkpoint | None = None

    def load_model(self, vllm_config: "VllmConfig", model_config: ModelConfig, *args: Any, **kwargs: Any) -> nn.Module:
        """See `BaseModelLoader.load_model`; where it is asked for, scales are kept compressed."""
        load: Callable[[], nn.Module] = partial(super().load_model, vllm_config, model_config, *args, **kwargs)
        checkpoint = self._csf_checkpoint(model_config) if self._choice.may_keep else None
        if checkpoint is None:
            return load()
        self._choice.require_known()
        from csf_tool.engines.vllm.keeping import keeping

        try:
            with keeping(checkpoint, vllm_config, model_config) as self._kept:
                model = load()
                if self._kept:
                    self._kept.require_in_use(model)
                return model
        finally:
            self._kept = self._opened = None

    def get_all_weights(self, model_config: ModelConfig, model: nn.Module) -> Weights:
        """See `DefaultModelLoader.get_all_weights`; called for a model that serves, too, to load it anew."""
        if self._choice.may_keep:
            from csf_tool.engines.vllm.kept_experts import refuse_reloading

            refuse_reloading(model)
        weights: Weights = super().get_all_weights(model_config, model)
        return weights

    def _csf_checkpoint(self, model_config: ModelConfig) -> "Checkpoint | None":
        """The checkpoint of a model's weights; None if it has no streams, or vLLM reads them by itself."""
        try:
            folder, files, use_safetensors, *_ = self._prepare_weights(
                model_config.model, None, model_config.revision, True, None
            )
        except (RuntimeError, OSError):  # the model may ask for other files; if not, vLLM will say what is missing
            return None
        formats = formats_in(files) if use_safetensors else set()
        return None if all(map(vllm_reads, formats)) else self._checkpoint(folder, files)

    def _checkpoint(self, folder: str, files: list[str], *, chosen: bool = False) -> "Checkpoint":
        """The checkpoint of these files; what vLLM leaves out of it is not asked for."""
        from csf_tool.engines.read_files import checkpoint_of, holds

        if not (self._opened and holds(self._opened, files)):
            self._opened = checkpoint_of(folder, files, chosen=chosen)
        return self._opened

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """See `DefaultModelLoader.load_weights`."""
        self._device = device_of(model)
        # What is on no device yet is put there when its layer is complete: vLLM keeps the tensors until then.
        self._fills_gpu = self._device.type == "cuda" and is_all_on(model, self._device)
        self._is_missing = missing_on_this_rank(model)
        super().load_weights(model, model_config)

    def _prepare_weights(
        self,
        model_name_or_path: str,
        subfolder: str | None,
        revision: str | None,
        fall_back_to_pt: bool,
        allow_patterns_overrides: list[str] | None,
    ) -> Any:
        """The folder and the files of a model's weights, those of CSF layouts that vLLM does not look for as well."""
        asked = model_name_or_path, subfolder, revision, fall_back_to_pt, allow_patterns_overrides
        if self._prepared and self._prepared[0] == asked:
            return self._prepared[1]
        try:
            return super()._prepare_weights(*asked)
        except (RuntimeError, FileNotFoundError):
            from csf_tool.engines.vllm.places import weights_in_csf_layout

            found = weights_in_csf_layout(
                self.load_config, model_name_or_path, subfolder, revision, allow_patterns_overrides
            )
            if found is None:
                raise
            return found

    def _get_weights_iterator(self, source: DefaultModelLoader.Source) -> Weights:
        """Names and tensors of a source, as of a dense checkpoint."""
        asked = (
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        prepared = self._prepare_weights(*asked)
        self._prepared = asked, prepared  # it would be asked for again, and a download looked up again
        try:
            folder, files, use_safetensors, *_ = prepared
            formats = formats_in(files) if use_safetensors else set()
            if use_safetensors and not formats:
                refuse_lost_streams(folder)
            if all(map(vllm_reads, formats)):  # there are none, say
                weights: Weights = super()._get_weights_iterator(source)
                return weights
            chosen = source.allow_patterns_overrides is not None
            return self._with_scales(source, self._checkpoint(folder, files, chosen=chosen))
        finally:
            self._prepared = None

    def _with_scales(self, source: DefaultModelLoader.Source, checkpoint: "Checkpoint") -> Weights:
        from csf_tool.engines.vllm.mapped import mapped

        warn_of_untested_version()
        is_unused = getattr(source, "is_unused_weight", None)
        plain = replace(source, prefix="")
        if is_unused:
            plain.is_unused_weight = lambda stored: is_unused(_dense_name(stored))
        # A GPU takes most from elsewhere, and a rank of several may leave most out.
        are_copied = self._device.type == "cpu" and self.local_expert_ids is None
        stored = mapped(super()._get_weights_iterator(plain), checkpoint, are_copied=are_copied)
        kept = self._kept if self._kept and self._kept.checkpoint is checkpoint else None
        if kept:
            stored = ((name, tensor) for name, tensor in stored if not kept.loads(name))

        def wanted(name: str) -> bool:
            unused = (is_unused and is_unused(name)) or (kept and kept.loads(name))
            return not unused and self._has_room_for(source.prefix + name)

        return ((source.prefix + name, tensor) for name, tensor in self._decode(stored, checkpoint, wanted))

    def _has_room_for(self, name: str) -> bool:
        """Whether this rank has room for a weight: its layer is here, and its expert where vLLM filters experts."""
        if self._is_missing(name):
            return False
        expert = parse_expert_id(name) if self.local_expert_ids is not None else None
        return expert is None or expert in self.local_expert_ids

    def _takes_all_of_each(self) -> bool:
        """Whether this rank copies all of every tensor that vLLM asks for to its GPU, or of its experts at least.

        Ranks that share a tensor copy a part of it. Without vLLM's filter, they are given other ranks' experts, too.
        """
        from vllm.config import get_current_vllm_config_or_none

        config = get_current_vllm_config_or_none()
        if config is None or not self._fills_gpu:
            return False
        ranks = config.parallel_config
        number = ranks.tensor_parallel_size * ranks.data_parallel_size * ranks.prefill_context_parallel_size
        return number == 1 or self.local_expert_ids is not None

    def _decode(self, stored: Weights, checkpoint: "Checkpoint", wanted: Callable[[str], bool]) -> Weights:
        from csf_tool.engines.decoded import Tally, decoded_weights

        begun, tally = time.perf_counter(), Tally()
        bring = self._takes_all_of_each()
        yield from decoded_weights(stored, checkpoint, self._device, tally, wanted, bring=bring)
        seconds = time.perf_counter() - begun
        if tally.planes or not self._kept:
            logger.info("%s: csf-tool %s of the %.2f s that loading took", checkpoint.path, tally, seconds)


def _dense_name(stored: str) -> str:
    """The name that a stored tensor has in a dense checkpoint."""
    from csf_tool.checkpoint.names import parse_stream_name

    stream = parse_stream_name(stored)
    return stream.scale if stream else stored
