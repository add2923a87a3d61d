"""Places where vLLM does not look for weights: containers, and shards that the index places in folders.

It takes the shards in the model's folder alone. A container's model, with config and tokenizer, is its folder
metadata/, and the weights lie beside that.
"""

from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_args, get_type_hints

from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from csf_tool.checkpoint.index import INDEX_NAME, find_index
from csf_tool.checkpoint.names import STREAM_MARK
from csf_tool.disk.reader import is_folder
from csf_tool.engines.containers import container_of
from csf_tool.engines.vllm.containers import download
from csf_tool.loading.tensors import opened

_SAFETENSORS_FORMATS = {"auto", "hf", "safetensors", "fastsafetensors", "instanttensor"}

_Prepared = tuple[Any, ...]
"""Result of `DefaultModelLoader._prepare_weights`: folder, files, whether these are safetensors, and in newer versions
the name of the index."""


def weights_in_csf_layout(
    load_config: LoadConfig, model: str, subfolder: str | None, revision: str | None, patterns: list[str] | None
) -> _Prepared | None:
    """The folder and the files of a checkpoint with streams that vLLM has not found; None where none is wanted.

    Raises:
        CheckpointError: it is one, but broken or incomplete.
    """
    if load_config.load_format not in _SAFETENSORS_FORMATS:
        return None
    folder = Path(model if is_folder(Path(model)) else _fetched(load_config, model, revision), subfolder or "")
    root = container_of(folder) or (folder if _index_lists_streams(folder) else None)
    if root is None:
        return None
    files = [str(shard.path) for shard in opened(root).shards if _is_allowed(shard.name, patterns)]
    if not files:
        return None
    prepared = str(root), files, True, INDEX_NAME
    return prepared[: len(get_args(get_type_hints(DefaultModelLoader._prepare_weights)["return"]))]


def _fetched(load_config: LoadConfig, model: str, revision: str | None) -> str:
    """The folder into which vLLM has downloaded weights from the Hub, with the documents that are beside them."""
    folder = download(load_config, model, revision, "*.json")
    if container_of(Path(folder)):  # its index may be the one of the dense checkpoint, by which vLLM downloads
        download(load_config, model, revision, "*/*.safetensors")
    return folder


def _index_lists_streams(folder: Path) -> bool:
    name = find_index(folder)
    return bool(name) and STREAM_MARK.encode() in (folder / str(name)).read_bytes()


def _is_allowed(name: str, patterns: list[str] | None) -> bool:
    """Whether any pattern is that of a shard, by its path or by the name that the dense one has."""
    names = {name, Path(name).name}
    return patterns is None or any(fnmatch(each, pattern) for each in names for pattern in patterns)
