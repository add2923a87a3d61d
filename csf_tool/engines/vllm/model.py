"""Facts about a model that vLLM has built: the device that its weights go to, and layers that other ranks have."""

from collections.abc import Callable

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """The GPU that has any of the model's parameters; the CPU where none has."""
    devices = {parameter.device for parameter in model.parameters()}
    return next((device for device in devices if device.type == "cuda"), torch.device("cpu"))


def is_all_on(model: nn.Module, device: torch.device) -> bool:
    """Whether all parameters of a model are on a device, none elsewhere or without data."""
    return all(parameter.device == device for parameter in model.parameters())


def missing_on_this_rank(model: nn.Module) -> Callable[[str], bool]:
    """Whether a weight of this name belongs to a layer that another rank of the pipeline has."""
    from vllm.model_executor.models import utils  # it imports the loaders, and may be half there when ours comes in

    layers = getattr(utils, "get_pp_missing_layer_names", None)
    missing = tuple(layers(model)) if layers else ()
    mapper = getattr(model, "hf_to_vllm_mapper", None)

    def is_missing(name: str) -> bool:
        mapped = mapper._map_name(name) if mapper else name
        return mapped is not None and mapped.startswith(missing)

    return is_missing if missing else lambda _: False
