"""Small synthetic checkpoints, written with struct-level code of its own: an oracle that shares nothing with csf_tool.

The model: every shard is a layer with one BF16 norm, experts of three projections each, and, for NVFP4, the
FP32 scalars beside them. Scales are seeded; every plane has exceptions at its first and its last position.
"""

import base64
import functools
import hashlib
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
GATE = "model.layers.0.mlp.experts.0.gate_proj"
"""The first matrix of the NVFP4 model."""

BITS = {"U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E8M0": 8, "BF16": 16, "F16": 16, "F32": 32, "U32": 32, "I32": 32, "F4": 4}


@dataclass(frozen=True)
class Codec:
    """One of the two codecs, in the format note's own words."""

    name: str
    bits: int
    group: int
    dtype: str
    schema: str
    codec: str
    top_base: int


NVFP4 = Codec(
    "nvfp4", 4, 16, "F8_E4M3", "lil-nvfp4-csf-checkpoint/1", "byte-window4-fixed-stream-u24-exceptions/1", 240
)
MXFP4 = Codec("mxfp4", 1, 32, "F8_E8M0", "lil-mxfp4-csf-checkpoint/1", "row-base-offset1-u24-exceptions/1", 254)
CODECS = (NVFP4, MXFP4)


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: its data are as long as its dtype and shape say, unless a test wants otherwise."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    """A header's entry for one tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def raw_file(header: object, data: bytes = b"", *, pad: bool = False) -> bytes:
    """A safetensors file of any header (an object, or the JSON's bytes as they are) and any data."""
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    if pad:
        raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + data


def header_of(tensors: Iterable[Tensor], metadata: dict[str, str] | None = None) -> dict[str, Any]:
    """The header document of tensors laid out one after another."""
    document: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for tensor in tensors:
        document[tensor.name] = entry(tensor.dtype, list(tensor.shape), at, at + len(tensor.data))
        at += len(tensor.data)
    return document


def shard_bytes(tensors: list[Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """A valid shard."""
    return raw_file(header_of(tensors, metadata), b"".join(t.data for t in tensors), pad=True)


def write_shard(path: Path, tensors: list[Tensor], metadata: dict[str, str] | None = None) -> Path:
    """Write a valid shard and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(shard_bytes(tensors, metadata))
    return path


def write_json(path: Path, document: object) -> Path:
    """Write a JSON file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1))
    return path


def write_files(root: Path, files: dict[str, bytes]) -> None:
    """Files at paths below a folder."""
    for name, data in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    """Load a JSON file, let `change` work on the document, write it back."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document, indent=1))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder by its path, hidden ones too, links followed."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def sha256(data: bytes) -> str:
    """The SHA-256 of `data` as hex digits."""
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    """The name that git gives a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag(path: Path) -> str:
    """What the Hub calls a file: SHA-256 where LFS holds it, git's name where git does."""
    data = path.read_bytes()
    return sha256(data) if path.suffix == ".safetensors" else git_sha1(data)


def make_scales(rows: int, cols: int, codec: Codec, seed: int) -> bytes:
    """Scales mostly inside one window a row, with NaN, sign and zero bytes astray, and both ends exceptional."""
    rng = random.Random(seed)
    out = bytearray()
    for _ in range(rows):
        base = rng.randrange(0x20, 0x60)
        out += bytes(base + rng.randrange(1 << codec.bits) for _ in range(cols))
    for position, value in zip((0, rows * cols - 1, cols + 1, 2 * cols + 2), (0xFF, 0x00, 0x7F, 0x80), strict=True):
        out[position] = value
    return bytes(out)


@functools.cache
def encode(scales: bytes, cols: int, codec: Codec) -> tuple[bytes, bytes]:
    """The fixed stream and the exception list, a scale at a time."""
    rows = len(scales) // cols
    window, row_bytes = 1 << codec.bits, -(-cols * codec.bits // 8)
    fixed, exceptions = b"", b""
    for slab in range(0, rows, 16):
        bases, codes = b"", b""
        for row in range(slab, slab + 16):
            values = scales[row * cols : (row + 1) * cols]
            covered = [sum(b <= v < b + window for v in values) for b in range(codec.top_base + 1)]
            base = covered.index(max(covered))
            packed = 0
            for col, value in enumerate(values):
                if base <= value < base + window:
                    packed |= (value - base) << (col * codec.bits)
                else:
                    exceptions += (value << 24 | row * cols + col).to_bytes(4, "little")
            bases += bytes([base])
            codes += packed.to_bytes(row_bytes, "little")
        fixed += bases + codes
    return fixed, exceptions


def streams(scale: Tensor, codec: Codec, *, two_d: bool | None = None) -> list[Tensor]:
    """The two streams of a dense scale, fixed stream first; in two dimensions where the codec's writers do so."""
    rows, cols = scale.shape
    fixed, exceptions = encode(scale.data, cols, codec)
    slabs = rows // 16
    shape = (slabs, len(fixed) // slabs) if (codec is NVFP4 if two_d is None else two_d) else (len(fixed),)
    return [
        Tensor(f"{scale.name}.{codec.name}_csf_fixed", "U8", shape, fixed),
        Tensor(f"{scale.name}.{codec.name}_csf_exceptions", "U32", (len(exceptions) // 4,), exceptions),
    ]


def is_scale(tensor: Tensor) -> bool:
    """Whether a tensor of the model is a block scale."""
    return tensor.name.endswith((".weight_scale", ".scale"))


def codec_of(scale: Tensor, codec: Codec) -> Codec:
    """The codec for a block scale by its dtype; `codec` where the dtype does not say."""
    return next((known for known in CODECS if known.dtype == scale.dtype), codec)


def compressed(tensors: Iterable[Tensor], codec: Codec, *, two_d: bool | None = None) -> list[Tensor]:
    """Tensors with every block scale replaced by the streams of its own codec, or else of `codec`."""
    out: list[Tensor] = []
    for tensor in tensors:
        out += streams(tensor, codec_of(tensor, codec), two_d=two_d) if is_scale(tensor) else [tensor]
    return out


def matrix(module: str, codec: Codec, seed: int, *, rows: int = 16, cols: int | None = None) -> list[Tensor]:
    """An FP4 weight with its scales: ModelOpt's names for NVFP4, DeepSeek's for MXFP4."""
    cols = cols or (4 if codec is NVFP4 else 3)
    packed = cols * codec.group // 2
    weight = random.Random(seed).randbytes(rows * packed)
    scales = make_scales(rows, cols, codec, seed)
    if codec is MXFP4:
        return [
            Tensor(f"{module}.scale", codec.dtype, (rows, cols), scales),
            Tensor(f"{module}.weight", "I8", (rows, packed), weight),
        ]
    return [
        Tensor(f"{module}.input_scale", "F32", (), b"\x00\x00\x80\x3f"),
        Tensor(f"{module}.weight", "U8", (rows, packed), weight),
        Tensor(f"{module}.weight_scale", codec.dtype, (rows, cols), scales),
        Tensor(f"{module}.weight_scale_2", "F32", (), b"\x00\x00\x00\x3e"),
    ]


def layer(number: int, codec: Codec, experts: int = 1) -> list[Tensor]:
    """The tensors of one layer."""
    parts = ("gate_proj", "up_proj", "down_proj") if codec is NVFP4 else ("w1", "w3", "w2")
    name = "model.layers.{}.mlp.experts" if codec is NVFP4 else "layers.{}.ffn.experts"
    tensors = [Tensor(f"model.layers.{number}.norm.weight", "BF16", (5,), bytes(range(10)))]
    for expert in range(experts):
        for i, part in enumerate(parts):
            tensors += matrix(f"{name.format(number)}.{expert}.{part}", codec, seed=100 * number + 10 * expert + i)
    return tensors


def shard_name(number: int, total: int) -> str:
    """The name of shard `number`, counted from 1."""
    return f"model-{number:05d}-of-{total:05d}.safetensors"


def model(codec: Codec, shards: int = 2, experts: int = 1) -> dict[str, list[Tensor]]:
    """The dense model: tensors by shard name."""
    return {shard_name(i + 1, shards): layer(i, codec, experts) for i in range(shards)}


def recipes_config(layers: int, *, csf: bool = True, codec: Codec = NVFP4) -> dict[str, Any]:
    """A config.json whose recipes cover the experts of `layers` layers."""
    recipe = {"quant_algo": codec.name.upper(), "group_size": codec.group}
    if csf:
        recipe["weight_scale_encoding"] = "csf"
    layers_map = {f"model.layers.{i}.mlp.experts": dict(recipe) for i in range(layers)}
    return {
        "model_type": "mini",
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": layers_map,
        },
    }


def index_of(shards: dict[str, list[Tensor]]) -> dict[str, Any]:
    """The index document of shards."""
    weight_map = {tensor.name: name for name, tensors in shards.items() for tensor in tensors}
    total = sum(len(tensor.data) for tensors in shards.values() for tensor in tensors)
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def write_hf(
    root: Path, shards: dict[str, list[Tensor]], *, config: object = None, index: bool = True, folder: str = ""
) -> Path:
    """Write tensors by shard name as a Hugging Face directory, shards in `folder` where one is given."""
    root.mkdir(parents=True, exist_ok=True)
    placed = {f"{folder}/{name}" if folder else name: tensors for name, tensors in shards.items()}
    for name, tensors in placed.items():
        write_shard(root / name, tensors, {"format": "pt"})
    if index:
        write_json(root / "model.safetensors.index.json", index_of(placed))
    if config is not None:
        write_json(root / "config.json", config)
    return root


def mini_hf(root: Path, shards: int = 2, *, config: object = None) -> Path:
    """An NVFP4 CSF checkpoint in the Hugging Face layout, with recipes in its config."""
    stored = {name: compressed(tensors, NVFP4) for name, tensors in model(NVFP4, shards).items()}
    return write_hf(root, stored, config=recipes_config(shards) if config is None else config)


def mini_dense(root: Path, codec: Codec = NVFP4, shards: int = 2) -> Path:
    """The same model, dense."""
    return write_hf(root, model(codec, shards), config=recipes_config(shards, csf=False, codec=codec))


MAIN_EXPERTS = "model.layers.{}.mlp.experts"
DRAFT_EXPERTS = "mtp.layers.0.mlp.experts"
"""The experts of `two_codecs`: those of a layer, and those of the draft layer."""


def two_codecs(main: Codec = NVFP4, draft: Codec = MXFP4, shards: int = 2) -> dict[str, list[Tensor]]:
    """A dense model: a layer of two experts of one codec in each shard, in the last a draft layer's of another, too.

    All their projections are called alike, and have as many rows and columns.
    """

    def experts(module: str, codec: Codec, seed: int) -> list[Tensor]:
        parts = [f"{module}.{i}.{part}" for i in range(2) for part in ("gate_proj", "up_proj", "down_proj")]
        return [t for i, part in enumerate(parts) for t in matrix(part, codec, seed + i, cols=8)]

    dense = {shard_name(i + 1, shards): experts(MAIN_EXPERTS.format(i), main, 100 * i) for i in range(shards)}
    dense[shard_name(shards, shards)] += experts(DRAFT_EXPERTS, draft, 900)
    return dense


def two_codecs_config(shards: int = 2, *, csf: bool) -> dict[str, Any]:
    """The config of `two_codecs`, with a recipe of its own for the draft layer."""
    config = recipes_config(shards, csf=csf)
    draft = {"quant_algo": "MXFP4", "group_size": 32} | ({"weight_scale_encoding": "csf"} if csf else {})
    config["quantization_config"]["quantized_layers"][DRAFT_EXPERTS] = draft
    return config


def dense_two_codecs(root: Path, shards: int = 2) -> Path:
    """`two_codecs` as a dense checkpoint."""
    return write_hf(root, two_codecs(shards=shards), config=two_codecs_config(shards, csf=False))


def csf_two_codecs(root: Path) -> Path:
    """`two_codecs` in the Hugging Face layout, as CSF."""
    stored = {name: compressed(tensors, MXFP4) for name, tensors in two_codecs().items()}
    return write_hf(root, stored, config=two_codecs_config(csf=True))


@dataclass
class _Written:
    """What a container's shard and receipt say, as they are collected."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    original_bytes: int = 0
    compressed_bytes: int = 0
    planes: int = 0


def mini_container(
    root: Path,
    codec: Codec = NVFP4,
    shards: int = 2,
    *,
    content: dict[str, list[Tensor]] | None = None,
    metadata: dict[str, bytes] | None = None,
    two_d: bool | None = None,
) -> Path:
    """A container with manifest, contract, receipts, metadata and verification record."""
    dense = content or model(codec, shards)
    identity = {
        "schema": codec.schema,
        "codec": codec.codec,
        "family": "mini",
        "source_model_id": "example/mini",
        "source_revision": "0" * 40,
    }
    written = _Written()
    for name, tensors in dense.items():
        _write_container_shard(root, name, tensors, codec, written, two_d)
    files = {
        "config.json": b'{"model_type": "mini"}',
        "model.safetensors.index.json": json.dumps(index_of(dense)).encode(),
    }
    files = files if metadata is None else metadata
    for name, data in files.items():
        (root / "metadata" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "metadata" / name).write_bytes(data)
    index_hash = sha256(files["model.safetensors.index.json"]) if "model.safetensors.index.json" in files else None
    source = sum(row["source_file_bytes"] for row in written.rows)
    target = sum(row["target_file_bytes"] for row in written.rows)
    manifest: dict[str, Any] = {
        **identity,
        "status": "complete",
        "shards": written.rows,
        "metadata_sha256": {name: sha256(data) for name, data in files.items()},
        "compressed_scale_count": written.planes,
        "original_scale_bytes": written.original_bytes,
        "compressed_scale_bytes": written.compressed_bytes,
        "source_weight_file_bytes": source,
        "compressed_weight_file_bytes": target,
        "saved_weight_file_bytes": source - target,
    }
    contract: dict[str, Any] = {**identity, "compressed_scale_count": written.planes}
    if index_hash:
        manifest["source_index_sha256"] = contract["source_index_sha256"] = index_hash
    contract["source_names"] = {t.name: name for name, tensors in dense.items() for t in tensors}
    write_json(root / "manifest.json", manifest)
    write_json(root / "build-contract.json", contract)
    record = {"schema": codec.schema, "passed": True, "shards": len(dense), "scale_matrices": written.planes}
    write_json(root / "verification.json", record)
    return root


def _write_container_shard(
    root: Path, name: str, tensors: list[Tensor], codec: Codec, written: _Written, two_d: bool | None
) -> None:
    source = shard_bytes(tensors, {"format": "pt"})
    header = source[: 8 + int.from_bytes(source[:8], "little")]
    stored = compressed(tensors, codec, two_d=two_d)
    metadata = {"format": "pt", "schema": codec.schema, "codec": codec.codec}
    target = write_shard(root / "tensors" / name, stored, metadata).read_bytes()
    row = {
        "file": name,
        "source_file_bytes": len(source),
        "source_sha256": sha256(source),
        "target_file_bytes": len(target),
        "target_sha256": sha256(target),
    }
    scales = {}
    for scale in filter(is_scale, tensors):
        fixed, exceptions = streams(scale, codec_of(scale, codec))
        scales[scale.name] = {
            "dtype": scale.dtype,
            "shape": list(scale.shape),
            "fixed_bytes": len(fixed.data),
            "exception_bytes": len(exceptions.data),
            "source_bytes": len(scale.data),
            "source_sha256": sha256(scale.data),
        }
        written.planes += 1
        written.original_bytes += len(scale.data)
        written.compressed_bytes += len(fixed.data) + len(exceptions.data)
    write_json(
        root / "receipts" / f"{name}.json",
        {**row, "source_header_base64": base64.b64encode(header).decode(), "scales": scales},
    )
    written.rows.append(row)


def home_made(
    root: Path,
    codec: Codec = NVFP4,
    shards: int = 2,
    *,
    content: dict[str, list[Tensor]] | None = None,
    two_d: bool | None = None,
) -> Path:
    """A user's container: no receipts, no contract, no metadata folder; the source's config and index at the root."""
    return without_receipts(mini_container(root, codec, shards, content=content, two_d=two_d))


def without_receipts(root: Path) -> Path:
    """A container as it would be, had a user made it: see `home_made`."""
    for path in (root / "receipts").iterdir():
        path.unlink()
    (root / "receipts").rmdir()
    (root / "build-contract.json").unlink()
    (root / "verification.json").unlink()
    for path in list((root / "metadata").iterdir()):
        path.rename(root / path.name)
    (root / "metadata").rmdir()
    return root


LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 2401231232\n"
)


def span(path: Path, tensor: str) -> tuple[int, int]:
    """Where a tensor's bytes lie in a shard: begin and end."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8 : 8 + length])[tensor]["data_offsets"]
    return 8 + length + begin, 8 + length + end


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Put bytes in the place of as many of a file."""
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)
