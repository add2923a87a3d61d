"""Whole valid checkpoints of every layout, as folders in memory, each with the dense tensors it stands for."""

import functools
import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from tests.building import (
    CODECS,
    NVFP4,
    Codec,
    Tensor,
    compressed,
    home_made,
    index_of,
    matrix,
    mini_container,
    recipes_config,
    shard_bytes,
    shard_name,
    write_files,
    write_hf,
)
from tests.codec.vectors import golden
from tests.fuzz.folders import Folder, read
from tests.oracle import Stored, Tensors

ODD_PREFIXES = (
    "",
    "model.language_model.",
    "é日本 ",
    "[bold]x[/] :fire: ",
    'a"b\\',
    "e\x1b[2J\u202e\x7f\u009b",
    "[/].",
)
"""What names may begin with: other prefixes, other scripts, markup, quotes, and what acts on a terminal."""


@dataclass(frozen=True)
class Spec:
    """What a checkpoint is to be like."""

    kind: str
    codec: str
    prefix: str
    shards: int
    rows: int
    cols: int
    two_d: bool
    split: bool
    folder: str
    with_index: bool


@dataclass(frozen=True)
class Case:
    """A valid checkpoint: its files, the dense reference's files, and the dense tensors themselves."""

    folder: Folder
    reference: Folder
    dense: Tensors


KINDS = ("hf", "container", "home-made", "dense", "file", "golden")


def specs(kind: str) -> st.SearchStrategy[Spec]:
    """Checkpoints of one kind; there are few of each, so that building them costs little."""
    codecs = [NVFP4] if kind == "hf" else CODECS
    return st.sampled_from(codecs).flatmap(
        lambda codec: st.builds(
            Spec,
            kind=st.just(kind),
            codec=st.just(codec.name),
            prefix=st.sampled_from(ODD_PREFIXES),
            shards=st.just(1) if kind in ("file", "golden") else st.integers(1, 3),
            rows=st.sampled_from([16, 32]),
            cols=st.sampled_from([2, 6] if codec is NVFP4 else [3, 8, 9]),
            two_d=st.booleans(),
            split=st.booleans(),
            folder=st.sampled_from(["", "tensors"] if kind == "hf" else [""]),
            with_index=st.booleans(),
        )
    )


@functools.lru_cache(maxsize=4096)
def build(spec: Spec) -> Case:
    """The checkpoint of a spec."""
    codec = next(c for c in CODECS if c.name == spec.codec)
    dense = _golden(codec) if spec.kind == "golden" else _model(spec, codec)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_hf(root / "reference", dense, config=_config(spec, csf=False))
        write_files(root / "reference", _BESIDE if spec.kind in ("hf", "container", "dense") else {})
        _write(root / "source", spec, codec, dense)
        source, reference = read(root / "source"), read(root / "reference")
    tensors = {t.name: Stored(t.dtype, t.shape, t.data) for shard in dense.values() for t in shard}
    return Case(source, reference, tensors)


def _model(spec: Spec, codec: Codec) -> dict[str, list[Tensor]]:
    """One BF16 tensor and two matrices a shard, one of them with no more than exceptions at both ends."""
    shards = {}
    for number in range(spec.shards):
        layer = f"{spec.prefix}layers.{number}"
        tensors = [Tensor(f"{layer}.norm.weight", "BF16", (5,), bytes(range(10)))]
        for i, part in enumerate(("gate_proj", "down_proj")):
            module = f"{layer}.mlp.experts.{i}.{part}"
            tensors += matrix(module, codec, seed=10 * number + i, rows=spec.rows, cols=spec.cols)
        shards[shard_name(number + 1, spec.shards)] = tensors
    return shards


def _golden(codec: Codec) -> dict[str, list[Tensor]]:
    """The smaller golden planes, each beside a weight."""
    tensors = []
    for vector in golden():
        if vector.fmt.name == codec.name and vector.scales is not None and vector.scales.size <= 4096:
            module, packed = f"model.layers.0.mlp.experts.{vector.name}", vector.cols * codec.group // 2
            weight = hashlib.shake_128(vector.name.encode()).digest(vector.rows * packed)
            scale = Tensor(f"{module}.weight_scale", codec.dtype, (vector.rows, vector.cols), vector.scales.tobytes())
            tensors += [Tensor(f"{module}.weight", "U8", (vector.rows, packed), weight), scale]
    return {"model.safetensors": tensors}


def _golden_streams(codec: Codec, tensors: list[Tensor], *, two_d: bool) -> list[Tensor]:
    """The same with the golden streams themselves: made by other software than any here."""
    vectors = {f"model.layers.0.mlp.experts.{v.name}.weight_scale": v for v in golden() if v.fmt.name == codec.name}
    stored = []
    for tensor in tensors:
        if vector := vectors.get(tensor.name):
            fixed = vector.fixed.tobytes()
            slabs = vector.rows // 16
            shape = (slabs, len(fixed) // slabs) if two_d else (len(fixed),)
            words = vector.exceptions.astype("<u4").tobytes()
            stored.append(Tensor(f"{tensor.name}.{codec.name}_csf_fixed", "U8", shape, fixed))
            stored.append(Tensor(f"{tensor.name}.{codec.name}_csf_exceptions", "U32", (len(words) // 4,), words))
        else:
            stored.append(tensor)
    return stored


_BESIDE = {
    "tokenizer.json": b'{"a": 1, "b": [true, 0, "1"]}',
    "modeling_mini.py": b"pass\n",
    "draft/config.json": b'{"a": 1}',
    "draft/model.safetensors": shard_bytes([Tensor("draft.weight", "BF16", (2,), b"\1\2\3\4")]),
}
"""What lies beside the shards of a checkpoint and of its reference."""


def _config(spec: Spec, *, csf: bool) -> dict[str, object]:
    config = recipes_config(spec.shards, csf=csf)
    quantization = config["quantization_config"]
    layers = quantization["quantized_layers"]
    quantization["quantized_layers"] = {
        module.replace("model.", spec.prefix, 1): recipe for module, recipe in layers.items()
    }
    return config


def _write(root: Path, spec: Spec, codec: Codec, dense: dict[str, list[Tensor]]) -> None:
    if spec.kind == "dense":
        write_hf(root, dense, config=_config(spec, csf=False), index=spec.with_index)
        write_files(root, _BESIDE)
    elif spec.kind == "container":
        documents = {"config.json": _config(spec, csf=False), "model.safetensors.index.json": index_of(dense)}
        files = {name: json.dumps(document).encode() for name, document in documents.items()}
        mini_container(root, codec, content=dense, metadata=files | _BESIDE, two_d=spec.two_d)
    elif spec.kind == "home-made":
        home_made(root, codec, content=dense, two_d=spec.two_d)
    else:
        stored = {
            name: _golden_streams(codec, tensors, two_d=spec.two_d)
            if spec.kind == "golden"
            else compressed(tensors, codec, two_d=spec.two_d)
            for name, tensors in dense.items()
        }
        if spec.split:
            _split(stored)
        single = spec.kind != "hf"
        config = None if single else _config(spec, csf=True)
        write_hf(root, stored, config=config, index=not single, folder=spec.folder)
        if single:
            next(root.glob("*.safetensors")).rename(root / "model.safetensors")
        else:
            write_files(root, _BESIDE)


def _split(stored: dict[str, list[Tensor]]) -> None:
    """Move an exception list to the end of the last shard, away from its fixed stream."""
    first, last = next(iter(stored.values())), list(stored.values())[-1]
    moved = next(t for t in first if t.name.endswith("_exceptions"))
    first.remove(moved)
    last.append(moved)
