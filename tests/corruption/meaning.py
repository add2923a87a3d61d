"""What a checkpoint's shards mean: an own reading of safetensors and of streams, sharing nothing with csf_tool."""

import json
from pathlib import Path

import numpy as np

from tests.building import Codec

Meaning = dict[str, tuple[str, tuple[int, ...], bytes]]


def meaning(folder: Path, codec: Codec) -> Meaning | None:
    """Every dense tensor of a checkpoint by name: dtype, shape and bytes; None where its shards make no sense."""
    try:
        stored: Meaning = {}
        for path in sorted(folder.rglob("*.safetensors")):
            for name, tensor in _tensors(path.read_bytes()).items():
                assert name not in stored
                stored[name] = tensor
        return dict(_dense(name, stored, codec) for name in stored if not name.endswith("_exceptions"))
    except (OSError, ValueError, KeyError, IndexError, TypeError, AssertionError, AttributeError):
        return None


def _tensors(raw: bytes) -> Meaning:
    length = int.from_bytes(raw[:8], "little")
    document = json.loads(raw[8 : 8 + length])
    data = raw[8 + length :]
    found: Meaning = {}
    for name, entry in document.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            assert 0 <= begin <= end <= len(data)
            found[name] = (entry["dtype"], tuple(entry["shape"]), data[begin:end])

    return found


def _dense(name: str, stored: Meaning, codec: Codec) -> tuple[str, tuple[str, tuple[int, ...], bytes]]:
    suffix = f".{codec.name}_csf_fixed"
    if not name.endswith(suffix):
        return name, stored[name]
    scale = name.removesuffix(suffix)
    fixed, exceptions = stored[name][2], stored[f"{scale}.{codec.name}_csf_exceptions"][2]
    cols = stored[f"{scale.rpartition('.')[0]}.weight"][1][1] * 2 // codec.group
    row_bytes = -(-cols * codec.bits // 8)
    slabs = np.frombuffer(fixed, np.uint8).reshape(-1, 16 * (1 + row_bytes))
    bits = np.unpackbits(slabs[:, 16:].reshape(-1, row_bytes), axis=1, bitorder="little")[:, : cols * codec.bits]
    codes = np.packbits(bits.reshape(-1, codec.bits), axis=1, bitorder="little").reshape(-1, cols)
    dense = (slabs[:, :16].reshape(-1, 1) + codes).reshape(-1)
    for word in np.frombuffer(exceptions, "<u4").tolist():
        dense[word % 2**24] = word >> 24
    return scale, (codec.dtype, (len(codes), cols), dense.tobytes())
