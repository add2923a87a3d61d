"""vLLM's loading in this process without an engine: a loader, and a model that takes what it gives."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

Weights = dict[str, bytes]


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor."""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def loader(load_format: str = "auto", **options: Any) -> Any:
    """The loader that vLLM takes for a format, csf_tool's plug-in being registered."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    return get_model_loader(LoadConfig(load_format=load_format, use_tqdm_on_load=False, **options))


def stock(load_format: str = "auto", **options: Any) -> Any:
    """The loader that vLLM has without the plug-in."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    return DefaultModelLoader(LoadConfig(load_format=load_format, use_tqdm_on_load=False, **options))


def weights(loader: Any, folder: Path | str, **source: Any) -> Weights:
    """Names and bytes of what a loader reads from a source."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    where = DefaultModelLoader.Source(str(folder), source.pop("revision", None), **source)
    found = list(loader._get_weights_iterator(where))
    assert len(found) == len(dict(found)), "a weight came twice"
    return {name: raw(tensor) for name, tensor in found}


class Module(torch.nn.Module):
    """A model that keeps what it is given; with the attributes by which models ask for more."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.found: Weights = {}
        for name, value in attributes.items():
            setattr(self, name, value)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        self.found = {name: raw(tensor) for name, tensor in weights}
        return set(self.found)


def parameters(folder: Path) -> dict[str, bytes]:
    """The bytes of every parameter of the real model, built by vLLM and loaded, before a kernel's layout is made."""
    return {name: raw(parameter) for name, parameter in built(folder).named_parameters()}


def built(folder: Path) -> torch.nn.Module:
    """The real model, built by vLLM and loaded."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model

    config = config_of(folder)
    with set_current_vllm_config(config):
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = initialize_model(config)
            for parameter in model.parameters():
                parameter.data.reshape(-1).view(torch.uint8).zero_()  # some are not in a checkpoint
            get_model_loader(config.load_config).load_weights(model, config.model_config)
        finally:
            torch.set_default_dtype(torch.float32)
    found: torch.nn.Module = model
    return found


def config_of(folder: Path) -> Any:
    """vLLM's config for a model on one rank, which this process is from then on."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel, model_parallel_is_initialized
    from vllm.engine.arg_utils import EngineArgs

    arguments = EngineArgs(model=str(folder), enforce_eager=True, max_model_len=64, dtype="bfloat16")
    config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        if not model_parallel_is_initialized():
            meeting = Path(tempfile.mkdtemp(), "meeting")
            init_distributed_environment(1, 0, meeting.as_uri(), 0, "gloo")
            initialize_model_parallel(1, 1)
    return config
