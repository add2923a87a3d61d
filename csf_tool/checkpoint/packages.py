"""Packages of other tools: what a checkpoint without FP4 planes, or a folder without shards, is instead."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES, load_config, quantization_config
from csf_tool.checkpoint.names import PREDECESSOR_STREAMS
from csf_tool.checkpoint.stored import Stored
from csf_tool.disk.paths import names_in
from csf_tool.text import count, escape


class Other(NamedTuple):
    """Files that are no safetensors: one of them in words, which begin with a letter that is spoken, and a remedy."""

    noun: str
    more: str = ""
    remedy: str = "csf-tool reads safetensors only: look for another repository or branch that has such files"

    @property
    def one(self) -> str:
        """One of them: "a GGUF file (llama.cpp)"."""
        article = "an" if self.noun[0] in "AEIOUaeiou" else "a"
        return f"{article} {self.noun}{self.more}"

    def several(self, n: int) -> str:
        """Some of them: "2 GGUF files (llama.cpp)"."""
        return f"{count(n, self.noun)}{self.more}"


_UNPACK = "unpack it first"

OTHER_WEIGHTS = {
    ".gguf": Other("GGUF file", " (llama.cpp)"),
    ".ggml": Other("GGML file", " (llama.cpp)"),
    ".bin": Other("PyTorch .bin file"),
    ".pt": Other("PyTorch .pt file"),
    ".pth": Other("PyTorch .pth file"),
    ".ckpt": Other("PyTorch .ckpt file"),
    ".distcp": Other("file", " of a distributed checkpoint of PyTorch"),
    ".npz": Other("numpy .npz file"),
    ".npy": Other("numpy .npy file"),
    ".onnx": Other("ONNX file"),
    ".engine": Other("TensorRT engine"),
    ".plan": Other("TensorRT engine"),
    ".h5": Other("Keras or TensorFlow file"),
    ".keras": Other("Keras or TensorFlow file"),
    ".tflite": Other("TensorFlow Lite file"),
    ".msgpack": Other("Flax file"),
    ".nemo": Other("NeMo archive"),
    ".pte": Other("ExecuTorch file"),
    ".mlpackage": Other("Core ML package"),
    ".mlmodelc": Other("Core ML package"),
    ".csf": Other(".csf file", ", of another format with that name", "here CSF is a compression of block scales"),
    ".tar": Other("tar archive", "", _UNPACK),
    ".tgz": Other("tar archive", ", gzip-compressed", _UNPACK),
    ".gz": Other("gzip-compressed file", "", _UNPACK),
    ".zst": Other("zstd-compressed file", "", _UNPACK),
    ".xz": Other("xz-compressed file", "", _UNPACK),
    ".bz2": Other("bzip2-compressed file", "", _UNPACK),
    ".lz4": Other("lz4-compressed file", "", _UNPACK),
    ".zip": Other("ZIP archive", "", _UNPACK),
    ".7z": Other("7z archive", "", _UNPACK),
    ".rar": Other("RAR archive", "", _UNPACK),
}
"""Suffixes of weights that are no safetensors, of archives, and of files that only share a name with the format."""

_PIPELINE, _ADAPTER = "model_index.json", "adapter_config.json"
"""Files that say what a folder is: those of diffusers and of peft."""


class _Looks(NamedTuple):
    """Marks of a package: the last parts of its tensors' names, all names, its files and its config."""

    lasts: set[str]
    names: list[str]
    files: set[str]
    config: dict[str, Any]

    @property
    def method(self) -> str:
        """The method of quantisation that the config names."""
        method = quantization_config(self.config).get("quant_method")
        return method.lower() if isinstance(method, str) else ""

    def may_be(self, method: str) -> bool:
        """Whether the config names a method of quantisation of this kind, or none."""
        return not self.method or method in self.method

    def mostly_has(self, *parts: str) -> bool:
        """Whether most names have one of these parts between dots."""
        having = sum(not set(name.split(".")).isdisjoint(parts) for name in self.names)
        return 2 * having > len(self.names)


_PACKAGES: list[tuple[str, Callable[[_Looks], object]]] = [
    ("streams of x4t, the predecessor of CSF", lambda has: has.lasts & PREDECESSOR_STREAMS),
    (
        "a LoRA or another adapter, not a whole model",
        lambda has: (
            (_ADAPTER in has.files and not has.config) or has.mostly_has("lora_A", "lora_B", "lora_down", "lora_up")
        ),
    ),
    (
        "bitsandbytes' layout",
        lambda has: any(last.startswith("bitsandbytes__") for last in has.lasts) or "SCB" in has.lasts,
    ),
    ("nunchaku's layout (SVDQuant)", lambda has: has.lasts >= {"qweight", "wscales"}),
    (
        "AWQ's layout",
        lambda has: (
            has.lasts >= {"qweight", "qzeros"} and has.may_be("awq") and (has.method or "g_idx" not in has.lasts)
        ),
    ),
    ("GPTQ's layout", lambda has: has.lasts >= {"qweight", "qzeros"} and has.may_be("gptq")),
    ("ExLlama's layout", lambda has: has.lasts & {"q_weight", "trellis"}),
    ("MLX's layout", lambda has: has.lasts >= {"scales", "biases"}),
    (
        "a single file of ComfyUI",
        lambda has: "comfy_quant" in has.lasts or any(n.startswith("model.diffusion_model.") for n in has.names),
    ),
    ("a TensorRT-LLM checkpoint", lambda has: _is_of_ranks(has.config)),
    (f"part of a diffusers pipeline, {_PIPELINE}", lambda has: _PIPELINE in has.files),
]
"""Packages in words, each with how it is told, the surer first."""

_OF_NO_OTHER = {"", "modelopt", "compressed-tensors", "nvfp4", "mxfp4"}
"""Methods of quantisation that may mean FP4 as it is read here."""


def other_package(checkpoint: Checkpoint, stored: Stored) -> str:
    """Name the package that a checkpoint without FP4 planes is, in a few words; empty where nothing tells."""
    files = {*names_in(checkpoint.path), *(checkpoint.hub.files if checkpoint.hub else ())}
    config = load_config(checkpoint.path) if CONFIG_FILES[0] in files else None
    has = _Looks(set(stored.rows_by_last), stored.names, files, config if isinstance(config, dict) else {})
    if found := next((words for words, is_one in _PACKAGES if is_one(has)), ""):
        return found
    return f"quantised by {escape(has.method)[:40]}, by its config" if has.method not in _OF_NO_OTHER else ""


def _is_of_ranks(config: dict[str, Any]) -> bool:
    mapping = config.get("mapping")
    return isinstance(mapping, dict) and "world_size" in mapping


def other_weights(names: Iterable[str]) -> str:
    """Name the files of a folder without shards, as the end of a sentence; empty where nothing tells."""
    names = list(names)
    if _PIPELINE in names:
        return f"; this is a diffusers pipeline ({_PIPELINE}): give one of the folders in it"
    found = Counter(suffix for name in names if (suffix := Path(name).suffix.lower()) in OTHER_WEIGHTS)
    if not found:
        return ""
    [(suffix, n)] = found.most_common(1)
    return f"; it has {OTHER_WEIGHTS[suffix].several(n)}: {OTHER_WEIGHTS[suffix].remedy}"
