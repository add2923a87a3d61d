"""The checkpoints of the matrix: one small model in every layout, with every kind of evidence, in two revisions.

Both revisions have the same names, shapes and sizes, and other bytes: that of a file from the wrong download.
"""

import hashlib
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.building import (
    MXFP4,
    NVFP4,
    Codec,
    Tensor,
    change_json,
    compressed,
    etag,
    index_of,
    is_scale,
    make_scales,
    mini_container,
    model,
    recipes_config,
    sha256,
    shard_bytes,
    without_receipts,
    write_files,
    write_hf,
    write_shard,
)

Shards = dict[str, list[Tensor]]

SHARDS = 2
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DOWNLOAD_NOTES = ".cache/huggingface/download"
SUMS = "SHA256SUMS"
CODE, TEMPLATE, ADAPTER = "modeling_mini.py", "chat_template.jinja", "adapter_config.json"
DRAFT = "draft/model.safetensors"
"""The shard of a checkpoint that is nested in the model's."""
MODEL_FILES = (
    "config.json", "hf_quant_config.json", "generation_config.json", "tokenizer.json", CODE, TEMPLATE, ADAPTER,
)  # fmt: skip
"""What a runtime reads beside shards and index."""


@dataclass(frozen=True)
class Kind:
    """One layout with the evidence that lies in it.

    `build` writes revision 0 or 1 of it into a folder, and `checkpoint` is where in there the checkpoint is.
    `vouched` says of a file of it whether there is a published hash for its bytes. `evidence` is where the hashes
    lie, if not in the layout's own files.
    """

    name: str
    build: Callable[[Path, int], object]
    vouched: Callable[[Path, str], bool]
    codec: Codec = NVFP4
    checkpoint: str = "."
    evidence: str = ""
    is_container: bool = False
    has_receipts: bool = False
    is_dense: bool = False

    @property
    def is_single_file(self) -> bool:
        """Whether the checkpoint is one file."""
        return self.checkpoint == SINGLE

    @property
    def model_folder(self) -> str:
        """Where configs, tokenizer and index lie, as the start of a path."""
        return "metadata/" if self.has_receipts else ""

    def folder(self, root: Path) -> Path:
        """The checkpoint's folder."""
        return root if self.is_single_file else root / self.checkpoint


def tensors(codec: Codec, revision: int) -> Shards:
    """The dense model: `building.model` with bytes of their own for every tensor and revision."""
    return {name: [_filled(t, codec, revision) for t in shard] for name, shard in model(codec, SHARDS).items()}


def _filled(tensor: Tensor, codec: Codec, revision: int) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(f"{revision} {tensor.name}".encode()).digest()[:4], "little")
    if is_scale(tensor):
        rows, cols = tensor.shape
        scales = bytearray(make_scales(rows, cols, codec, seed))
        scales[3 * cols + 1] = 0xA0 + seed % 16  # an exception that every plane has, each another
        data = bytes(scales)
    elif tensor.dtype == "F32":
        data = struct.pack("<f", random.Random(seed).uniform(0.1, 0.9))
    else:
        data = random.Random(seed).randbytes(len(tensor.data))
    return Tensor(tensor.name, tensor.dtype, tensor.shape, data)


def side_files(codec: Codec, revision: int, *, csf: bool) -> dict[str, bytes]:
    """Configs, as a CSF checkpoint marks them or as a dense one has them, and what else lies beside shards."""
    recipes = recipes_config(SHARDS, csf=csf)
    hidden = {"hidden_size": 64 + 8 * revision, "eos_token_id": 2}
    config: dict[str, Any] = {**recipes, **hidden} if codec is NVFP4 else {"model_type": "mini", **hidden}
    quantized = recipes["quantization_config"]["quantized_layers"]
    documents: dict[str, Any] = {
        "config.json": config,
        "generation_config.json": {"temperature": 0.5 + revision / 4, "top_k": 20},
        "tokenizer.json": {"version": "1.0", "vocab": {"a": 0, "b": 1 + revision}},
    }
    if codec is NVFP4:
        algorithm = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8" if revision else "NONE"}
        documents["hf_quant_config.json"] = {"quantization": {**algorithm, "quantized_layers": quantized}}
    files = {name: json.dumps(document, indent=1).encode() for name, document in documents.items()}
    draft = Tensor("draft.weight", "BF16", (8,), random.Random(revision).randbytes(16))
    return {
        **files,
        CODE: f"REVISION = {revision}\n".encode(),
        "draft/config.json": json.dumps({"model_type": "draft", "hidden_size": 8 + revision}).encode(),
        DRAFT: shard_bytes([draft], {"format": "pt"}),
        "README.md": f"# Mini\n\nRevision {revision}.\n".encode(),
    }


def _files_in(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def hf(root: Path, revision: int) -> Path:
    """Hugging Face layout, no hashes."""
    stored = {name: compressed(shard, NVFP4) for name, shard in tensors(NVFP4, revision).items()}
    write_hf(root, stored)
    write_files(root, side_files(NVFP4, revision, csf=True))
    return root


def dense(root: Path, revision: int, codec: Codec = NVFP4) -> Path:
    """The dense checkpoint: a layout of its own, and everybody's reference."""
    write_hf(root, tensors(codec, revision))
    write_files(root, side_files(codec, revision, csf=False))
    return root


SNAPSHOT = f"snapshots/{'a' * 40}"


def hub_cache(root: Path, revision: int) -> Path:
    """Hugging Face layout in a Hub cache: links into blobs that are named after their hashes."""
    snapshot = hf(root / SNAPSHOT, revision)
    (root / "blobs").mkdir()
    for path in _files_in(snapshot):
        blob = root / "blobs" / etag(path)
        path.rename(blob)
        path.symlink_to(Path(*[".."] * len(path.relative_to(root).parts[1:]), "blobs", blob.name))
    return root


def downloaded(root: Path, revision: int) -> Path:
    """Hugging Face layout as `hf download --local-dir` leaves it: a note of commit and ETag for every file."""
    for path in _files_in(hf(root, revision)):
        note = root / DOWNLOAD_NOTES / f"{path.relative_to(root).as_posix()}.metadata"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{str(revision) * 40}\n{etag(path)}\n1767225600.0\n")
    return root


def with_sums(root: Path, revision: int) -> Path:
    """Hugging Face layout with a SHA256SUMS file over everything."""
    files = _files_in(hf(root, revision))
    lines = [f"{sha256(path.read_bytes())}  {path.relative_to(root).as_posix()}\n" for path in files]
    (root / SUMS).write_text("".join(lines))
    return root


def container(root: Path, revision: int, codec: Codec) -> Path:
    """A container with receipts."""
    shards = tensors(codec, revision)
    index = json.dumps(index_of(shards)).encode()
    mini_container(root, codec, content=shards, metadata={**side_files(codec, revision, csf=False), INDEX: index})
    for name in ("manifest.json", "build-contract.json"):
        change_json(root / name, lambda document: document.update(source_revision=str(revision) * 40))
    return root


def bare_container(root: Path, revision: int) -> Path:
    """A user's container: shard and metadata hashes in its manifest, no receipts, no contract."""
    return without_receipts(container(root, revision, NVFP4))


def single_file(root: Path, revision: int) -> Path:
    """All streams in one file."""
    stored = [t for shard in tensors(NVFP4, revision).values() for t in compressed(shard, NVFP4)]
    return write_shard(root / SINGLE, stored, {"format": "pt"})


def _nothing(_: Path, __: str) -> bool:
    return False


def _all_but_evidence(_: Path, name: str) -> bool:
    return name != SUMS and not name.startswith(DOWNLOAD_NOTES)


def _linked(folder: Path, name: str) -> bool:
    """A blob's name vouches for its bytes as long as there is a link to it; a whole one of another file is in order."""
    path = folder / name
    return path.is_symlink() and not (path.exists() and etag(path) == path.readlink().name)


def _shards_and_metadata(_: Path, name: str) -> bool:
    return name.startswith(("tensors/", "metadata/"))


def _all_but_manifest(_: Path, name: str) -> bool:
    return name != "manifest.json"


HF = Kind("Hugging Face layout", hf, _nothing)
HUB = Kind("Hub cache", hub_cache, _linked, checkpoint=SNAPSHOT, evidence="blobs")
DOWNLOAD = Kind("`hf download`", downloaded, _all_but_evidence, evidence=DOWNLOAD_NOTES)
WITH_SUMS = Kind("`SHA256SUMS`", with_sums, _all_but_evidence, evidence=SUMS)
NVFP4_CONTAINER = Kind(
    "NVFP4 container with receipts", partial(container, codec=NVFP4), _shards_and_metadata, NVFP4,
    is_container=True, has_receipts=True,
)  # fmt: skip
MXFP4_CONTAINER = Kind(
    "MXFP4 container with receipts", partial(container, codec=MXFP4), _shards_and_metadata, MXFP4,
    is_container=True, has_receipts=True,
)  # fmt: skip
BARE_CONTAINER = Kind("Container without receipts", bare_container, _all_but_manifest, is_container=True)
DENSE = Kind("Dense checkpoint", dense, _nothing, is_dense=True)
SINGLE_FILE = Kind("Single file", single_file, _nothing, checkpoint=SINGLE)

HASHED = (HUB, DOWNLOAD, WITH_SUMS)
"""The Hugging Face layout with each kind of hashes beside it."""
