"""The tests' own decoder, written from the format note alone: what the tensors of a folder are, a byte at a time.

It shares no code with csf_tool and is as strict as it is slow: what it cannot read for certain is `Unsure`.
`tests/building.py` has the encoder that goes with it.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.building import BITS, CODECS, Codec


class Unsure(Exception):
    """Raised where a checkpoint has no certain meaning: nothing may call it equal to anything."""


@dataclass(frozen=True)
class Stored:
    """A tensor: dtype, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Tensors = dict[str, Stored]


def tensors_of_file(raw: bytes, *, tail: bool = False) -> Tensors:
    """The tensors of a safetensors file; with `tail`, bytes may follow the last one."""
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise Unsure("cut short")
    document = _strict(raw[8 : 8 + length])
    document.pop("__metadata__", None)
    data, found, at = raw[8 + length :], {}, 0
    spans = {}
    for name, entry in document.items():
        begin, end = entry["data_offsets"]
        spans[name] = (begin, end, entry)
    for name, (begin, end, entry) in sorted(spans.items(), key=lambda item: item[1][:2]):
        shape = tuple(entry["shape"])
        if begin != at or end > len(data) or any(type(n) is not int or n < 0 for n in (begin, end, *shape)):
            raise Unsure(f"{name}: offsets or shape")
        if entry["dtype"] in BITS and BITS[entry["dtype"]] * math.prod(shape) != 8 * (end - begin):
            raise Unsure(f"{name}: size")
        found[name] = Stored(entry["dtype"], shape, data[begin:end])
        at = end
    if at != len(data) and not tail:
        raise Unsure("trailing bytes")
    return found


def _strict(raw: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise Unsure("a key twice")
        return dict(pairs)

    document = json.loads(raw.decode("utf-8"), object_pairs_hook=once)
    if not isinstance(document, dict):
        raise Unsure("no object")
    return document


def shard_names(root: Path) -> list[str]:
    """The shards of a folder by relative path: a container's, or those at the root and in the index's folders."""
    return [name for name in _shard_files(root) if is_container(root) or _counts(root, name)]


def left_aside(root: Path) -> list[str]:
    """The files beside the shards that look like shards and count for nothing, by relative path."""
    return [] if is_container(root) else [name for name in _shard_files(root) if not _counts(root, name)]


def is_container(root: Path) -> bool:
    """Whether a manifest can be read; what is left of a container beside other shards is none."""
    if not (root / "manifest.json").is_file() or not (root / "tensors").is_dir():
        return False
    try:
        return isinstance(json.loads((root / "manifest.json").read_bytes()), dict)
    except ValueError:
        return False


def _shard_files(root: Path) -> list[str]:
    folders = {f"{name.rpartition('/')[0]}/" for name in _indexed(root) if "/" in name} | {""}
    found = {
        folder + path.name
        for folder in ({"tensors/"} if is_container(root) else folders)
        for path in (root / folder).glob("*.safetensors")
    }
    return sorted(n for n in found if (root / n).is_file() and not n.rpartition("/")[2].startswith("."))


def _counts(root: Path, name: str) -> bool:
    """Whether a shard counts: the index lists it, or it holds nothing that the index has a home for.

    Without an index, `model.safetensors` is the list.
    """
    listed, decided = set(_indexed(root)), set(_weight_map(root))
    if not listed and (root / "model.safetensors").is_file():
        listed, decided = {"model.safetensors"}, set(tensors_of_file((root / "model.safetensors").read_bytes()))
    if not listed or name in listed:
        return True
    try:
        held = tensors_of_file((root / name).read_bytes())
    except Exception:  # as in `stored_tensors`
        return False
    return {_dense(tensor) for tensor in held}.isdisjoint(map(_dense, decided))


def _dense(name: str) -> str:
    scale, _, last = name.rpartition(".")
    return scale if last.endswith(("_csf_fixed", "_csf_exceptions")) else name


def _indexed(root: Path) -> list[str]:
    return list(_weight_map(root).values())


def _weight_map(root: Path) -> dict[str, str]:
    index = root / "model.safetensors.index.json"
    return dict(json.loads(index.read_bytes())["weight_map"]) if index.is_file() else {}


def stored_tensors(root: Path, names: list[str] | None = None, *, tail: bool = False) -> Tensors:
    """The tensors of a folder's shards, or of one file, as they are; `names` are its shards where that is known.

    Raises:
        Unsure: they have no certain meaning.
    """
    try:
        found: Tensors = {}
        for path in [root] if root.is_file() else [root / name for name in names or shard_names(root)]:
            tensors = tensors_of_file(path.read_bytes(), tail=tail)
            if found.keys() & tensors.keys():
                raise Unsure("a tensor twice")
            found |= tensors
        return found
    except Unsure:
        raise
    except Exception as error:  # whatever a damaged file does to code that trusts it
        raise Unsure(repr(error)) from error


def logical_tensors(root: Path, names: list[str] | None = None, *, tail: bool = False) -> Tensors:
    """The same with every pair of streams decoded.

    Raises:
        Unsure: they have no certain meaning.
    """
    found = stored_tensors(root, names, tail=tail)
    try:
        for codec in CODECS:
            _replace_streams(found, codec)
        return found
    except Unsure:
        raise
    except Exception as error:  # as above
        raise Unsure(repr(error)) from error


def _replace_streams(found: Tensors, codec: Codec) -> None:
    fixed_suffix, exceptions_suffix = f".{codec.name}_csf_fixed", f".{codec.name}_csf_exceptions"
    names = {n.removesuffix(fixed_suffix) for n in found if n.endswith(fixed_suffix)}
    names |= {n.removesuffix(exceptions_suffix) for n in found if n.endswith(exceptions_suffix)}
    for name in names:
        if name in found:
            raise Unsure("dense as well")
        fixed, exceptions = found.pop(name + fixed_suffix), found.pop(name + exceptions_suffix)
        rows, cols = _geometry(name, fixed, found, codec)
        found[name] = Stored(codec.dtype, (rows, cols), decode(fixed.data, exceptions.data, rows, cols, codec))


def _geometry(name: str, fixed: Stored, found: Tensors, codec: Codec) -> tuple[int, int]:
    """By the weight beside the scale; without one, by a fixed stream in two dimensions."""
    module = name.rpartition(".")[0]
    for weight in (found.get(f"{module}.weight_packed"), found.get(f"{module}.weight")):
        if weight:
            rows, packed = weight.shape
            return rows, packed * 2 // codec.group
    slabs, slab_bytes = fixed.shape
    if codec.bits != 4:
        raise Unsure("the columns are padded")
    return slabs * 16, (slab_bytes // 16 - 1) * 2


def decode(fixed: bytes, exceptions: bytes, rows: int, cols: int, codec: Codec) -> bytes:
    """The scales of a plane, one after another."""
    row_bytes = -(-cols * codec.bits // 8)
    if rows % 16 or not rows or not cols or len(fixed) != rows // 16 * 16 * (1 + row_bytes) or len(exceptions) % 4:
        raise Unsure("sizes")
    out = bytearray()
    for row in range(rows):
        slab = row // 16 * 16 * (1 + row_bytes)
        base = fixed[slab + row % 16]
        start = slab + 16 + row % 16 * row_bytes
        codes = int.from_bytes(fixed[start : start + row_bytes], "little")
        if base > codec.top_base or codes >> cols * codec.bits:
            raise Unsure("base or padding")
        out += bytes(base + (codes >> col * codec.bits & (1 << codec.bits) - 1) for col in range(cols))
    last = -1
    for at in range(0, len(exceptions), 4):
        word = int.from_bytes(exceptions[at : at + 4], "little")
        position = word & 0xFFFFFF
        if not last < position < rows * cols:
            raise Unsure("positions")
        out[position] = word >> 24
        last = position
    return bytes(out)
