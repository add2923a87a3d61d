"""Damage and malice: one change to a checkpoint's folder, from a flipped bit to a hostile name that still adds up.

Each mutation draws what it needs from hypothesis and changes the folder in place; one that finds nothing to
change leaves the folder as it is.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from tests.building import LFS_POINTER, Tensor, shard_bytes
from tests.fuzz.folders import Folder, Link, Pipe, Subfolder
from tests.oracle import tensors_of_file

Draw = Callable[[st.SearchStrategy[Any]], Any]
Mutation = Callable[[Draw, Folder], None]

SHARD = ".safetensors"

HOSTILE_NAMES = [
    "", ".", "..", "../x.safetensors", "a/../../x.safetensors", "/etc/passwd", "/dev/zero", "a\\b.safetensors",
    "C:\\x.safetensors", "c:x.safetensors", "a//b", "./a", "a\0b", "a\nb", "e\x1b[2J\u202ev\u2066\x7f\u0085",
    "n" * 300 + SHARD, "n" * 250 + SHARD, "n" * 300 + "/a.safetensors", "n" * 5000, "a." * 3000 + "weight_scale",
    "[/]", "[bold]", ":fire:", ".csf-tool", ".csf-tool/lock", ".csf-tool/complete", ".CSF-tool/journal.json",
    ".csf-tool.closing", "config.json", "model.safetensors", "model.safetensors.index.json", "manifest.json",
    "__metadata__", "x.weight_scale", "x.weight_scale.nvfp4_csf_fixed", "x.weight_scale.mxfp4_csf_exceptions",
    "model-00001-of-99999.safetensors", "日本", "nul", "9" * 5000,
    "x\ty", "model.layers.0.mlp.experts.0.x\ty.weight_scale",
]  # fmt: skip

HOSTILE_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 16, 1.5, 1e308, 2**24, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63),
    10**4000, [], {}, [[]], [[[[]]]], {"a": {}}, [0, 0], [1, 2, 3], [2**62, 4], ["x"], "U8", "I8", "U32", "F4",
    "F6_X", "F8_E4M3", "F8_E8M0", "BF16", "csf", "nvfp4_csf", "mxfp4_csf", "complete", "0" * 64,
    "lil-mxfp4-csf-checkpoint/1", "AAAA", "////", "=", base64.b64encode(b"\xff" * 8).decode(),
    base64.b64encode(b"\x02\0\0\0\0\0\0\0{}").decode(),
]  # fmt: skip

RAW_VALUES = [
    "1e999", "-1e999", "NaN", "Infinity", "-0", "1E400", "0x10", "01", "9" * 5000, "[" * 90 + "]" * 90,
    "[" * 400 + "]" * 400, "[" * 5000 + "]" * 5000, '{"a":' * 300 + "1" + "}" * 300,
    '"\\ud800"', '"\\udc00x"', '"\\u0000"', '"\t"', "'x'", "", "tru", '"unfinished', "\ufeff1", "{}{}",
    " " * 2000 + "1",
]  # fmt: skip
"""What stands in a JSON file's text where a value should: what only a text can say, and what is no JSON."""

_MARK = "@@raw{}@@"


def mutate(draw: Draw, folder: Folder) -> None:
    """One mutation, drawn from all."""
    draw(st.sampled_from(MUTATIONS))(draw, folder)


# Files as bytes


def _files(folder: Folder, suffix: str = "") -> list[str]:
    return sorted(name for name, entry in folder.items() if isinstance(entry, bytes) and name.endswith(suffix))


def _one_file(draw: Draw, folder: Folder, suffix: str = "") -> tuple[str, bytes]:
    names = _files(folder, suffix)
    if not names:
        return "", b""
    name = draw(st.sampled_from(names))
    content = folder[name]
    assert isinstance(content, bytes)
    return name, content


def _place(draw: Draw, content: bytes) -> int:
    """Somewhere in a file: anywhere, or among the header's first bytes."""
    end = max(len(content) - 1, 0)
    return int(draw(st.one_of(st.integers(0, end), st.integers(0, min(end, 16)))))


def flip_bits(draw: Draw, folder: Folder) -> None:
    name, content = _one_file(draw, folder)
    if content:
        at = _place(draw, content)
        folder[name] = content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]


def zero_block(draw: Draw, folder: Folder) -> None:
    name, content = _one_file(draw, folder)
    if content:
        at, length = _place(draw, content), draw(st.sampled_from([1, 8, 64, 4096]))
        end = min(at + length, len(content))
        folder[name] = content[:at] + bytes(end - at) + content[end:]


def cut(draw: Draw, folder: Folder) -> None:
    name, content = _one_file(draw, folder)
    if content:
        folder[name] = content[: draw(st.one_of(st.just(0), st.just(len(content) - 1), st.integers(0, len(content))))]


def cut_out(draw: Draw, folder: Folder) -> None:
    name, content = _one_file(draw, folder)
    if content:
        at = _place(draw, content)
        folder[name] = content[:at] + content[at + draw(st.integers(1, 40)) :]


def append(draw: Draw, folder: Folder) -> None:
    name, content = _one_file(draw, folder)
    if name:
        tails = [b"\0", b"\n", b"x", b"{}", bytes(100), b"\xff\xfe", content]
        folder[name] = content + draw(st.sampled_from(tails))


def insert(draw: Draw, folder: Folder) -> None:
    name, content = _one_file(draw, folder)
    if content:
        at = _place(draw, content)
        folder[name] = content[:at] + draw(st.binary(min_size=1, max_size=9)) + content[at:]


def repeat_block(draw: Draw, folder: Folder) -> None:
    name, content = _one_file(draw, folder)
    if content:
        at, length = _place(draw, content), draw(st.integers(1, 64))
        folder[name] = content[: at + length] + content[at:]


def header_length(draw: Draw, folder: Folder) -> None:
    name, content = _one_file(draw, folder, SHARD)
    if len(content) >= 8:
        now = int.from_bytes(content[:8], "little")
        near = st.integers(max(now - 9, 0), now + 9)
        far = st.sampled_from([0, 1, 2, 100_000_000, 100_000_001, 1 << 31, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1])
        folder[name] = int(draw(st.one_of(near, far))).to_bytes(8, "little") + content[8:]


# Files as files


def drop_file(draw: Draw, folder: Folder) -> None:
    name, _ = _one_file(draw, folder)
    folder.pop(name, None)


def swap_files(draw: Draw, folder: Folder) -> None:
    a, first = _one_file(draw, folder)
    b, second = _one_file(draw, folder)
    if a:
        folder[a], folder[b] = second, first


def copy_file(draw: Draw, folder: Folder) -> None:
    name, content = _one_file(draw, folder)
    if name:
        beside = name.rpartition("/")[0]
        new = draw(
            st.sampled_from(["copy.safetensors", "._copy.safetensors", "model-00009-of-00009.safetensors", "LICENSE"])
        )
        folder[f"{beside}/{new}" if beside and draw(st.booleans()) else new] = content


def replace_file(draw: Draw, folder: Folder) -> None:
    name, _ = _one_file(draw, folder)
    others: list[Any] = [
        b"",
        b"{}",
        b"[]",
        b"null",
        LFS_POINTER,
        b"<html>",
        b"\x02\0\0\0\0\0\0\0{}",
        Pipe(),
        Subfolder(),
    ]
    others += [
        Link(t) for t in ("gone", name.rpartition("/")[2], ".", "/dev/zero", "/dev/null", "/", "../outside/secret")
    ]
    others += [Link(other) for other in _files(folder)]
    if name:
        folder[name] = draw(st.sampled_from(others))


def link_to_outside(draw: Draw, folder: Folder) -> None:
    """A file becomes a link to a copy of itself, as in a Hub cache: nothing is wrong with that."""
    name, content = _one_file(draw, folder)
    if name:
        blob = f".blobs/{hashlib.sha256(content).hexdigest()}"
        folder[blob] = content
        folder[name] = Link("../" * name.count("/") + blob)


def stray_file(draw: Draw, folder: Folder) -> None:
    names = [
        ".csf-tool", ".csf-tool.closing", ".csf-tool/journal.json", ".csf-tool/complete", "SHA256SUMS",
        "notes\udcff.txt", "e\x1b[2J\u202e.txt", "n" * 250, "n" * 243 + SHARD, ".x.gone-1-00000000.partial",
        "config.json", "hf_quant_config.json", "manifest.json", "model.safetensors.index.json",
        "other.safetensors.index.json", "metadata", "receipts",
        "tensors/stray.safetensors", "receipts/stray.json", ".cache/huggingface/download/config.json.metadata",
        ".cache/huggingface/download/model.safetensors.metadata", "metadata/model-00001-of-00001.safetensors",
        "folder.safetensors/x", "LICENSE", "sub/folder/file.txt", "sub\udcff/file.txt",
        "chat_template.jinja", "metadata/chat_template.jinja", "modeling_mini.py", "pytorch_model.bin",
        "draft/adapter_config.json", "metadata/draft/more.safetensors", "tokenizer.json",
    ]  # fmt: skip
    sums = "".join(f"{'0' * 64}  {name}\n" for name in (*HOSTILE_NAMES, "config.json")).encode("utf-8", "surrogatepass")
    contents = [
        b"",
        b"{}",
        b"[]",
        sums,
        b"\xff\xfe\0",
        b"0" * 64,
        b"a\x1b[2Jb c",
        b"deadbeef " + b"0" * 64,
        Pipe(),
        Link("gone"),
    ]
    folder[draw(st.sampled_from(names))] = draw(st.sampled_from(contents))


# JSON, in files of its own and in headers


def _texts(folder: Folder) -> list[str]:
    return _files(folder, ".json") + _files(folder, SHARD)


def _split(name: str, content: bytes) -> tuple[bytes, bytes]:
    """The JSON of a file and what follows it."""
    if not name.endswith(SHARD):
        return content, b""
    length = int.from_bytes(content[:8], "little")
    return content[8 : 8 + length], content[8 + length :]


def _joined(name: str, text: bytes, rest: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + rest if name.endswith(SHARD) else text


_TOKEN = re.compile(rb'-?\d+|"[^"]*"|\[[^\[\]]*\]|\{[^{}]*\}|true|[:,{}\[\]]')


def _chosen_text(draw: Draw, folder: Folder) -> tuple[str, bytes, bytes] | None:
    """The name of a file with JSON in it, the JSON, and what follows it; None where there is no such file."""
    names = _texts(folder)
    if not names:
        return None
    name = draw(st.sampled_from(names))
    content = folder[name]
    assert isinstance(content, bytes)
    return name, *_split(name, content)


def replace_token(draw: Draw, folder: Folder) -> None:
    """A token of JSON text becomes another, whether or not the text is JSON before or after."""
    if not (chosen := _chosen_text(draw, folder)):
        return
    name, text, rest = chosen
    if tokens := list(_TOKEN.finditer(text)):
        token = tokens[draw(st.integers(0, len(tokens) - 1))]
        new = draw(st.sampled_from([*map(_encoded, HOSTILE_VALUES), *(v.encode() for v in RAW_VALUES)]))
        folder[name] = _joined(name, text[: token.start()] + new + text[token.end() :], rest)


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def _nodes(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key of a document, outermost first."""
    pending = [document]
    while pending:
        node = pending.pop(0)
        keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        for key in keys:
            yield node, key
            pending.append(node[key])


def change_json(draw: Draw, folder: Folder) -> None:
    """One node of a JSON document: another value, another key, gone, twice, or swapped with its neighbour."""
    if not (chosen := _chosen_text(draw, folder)):
        return
    name, text, rest = chosen
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    nodes = list(_nodes(document))
    if not nodes:
        return
    parent, key = nodes[draw(st.integers(0, len(nodes) - 1))]
    raw: dict[str, str] = {}
    draw(st.sampled_from(_CHANGES))(draw, parent, key, raw)
    folder[name] = _joined(name, _dumped(document, raw), rest)


def _dumped(document: Any, raw: dict[str, str]) -> bytes:
    text = json.dumps(document, separators=(",", ":"))
    for mark, new in raw.items():
        text = text.replace(mark, new)
    return text.encode("utf-8", "surrogatepass")


def _change_value(draw: Draw, parent: Any, key: Any, raw: dict[str, str]) -> None:
    parent[key] = draw(st.one_of(st.sampled_from(HOSTILE_VALUES), st.sampled_from(HOSTILE_NAMES), st.integers(0, 5000)))


def _change_to_raw(draw: Draw, parent: Any, key: Any, raw: dict[str, str]) -> None:
    mark = _MARK.format(len(raw))
    raw[f'"{mark}"'] = draw(st.sampled_from(RAW_VALUES))
    parent[key] = mark


def _near_number(draw: Draw, parent: Any, key: Any, raw: dict[str, str]) -> None:
    if type(parent[key]) is int:
        parent[key] += draw(st.sampled_from([-16, -8, -4, -1, 1, 4, 8, 16]))


def _drop(draw: Draw, parent: Any, key: Any, raw: dict[str, str]) -> None:
    del parent[key]


def _rename(draw: Draw, parent: Any, key: Any, raw: dict[str, str]) -> None:
    if isinstance(parent, dict):
        parent[draw(st.sampled_from(HOSTILE_NAMES))] = parent.pop(key)


def _twice(draw: Draw, parent: Any, key: Any, raw: dict[str, str]) -> None:
    if isinstance(parent, dict):
        mark = _MARK.format("-twice")
        parent[key + mark] = draw(st.sampled_from([parent[key], *HOSTILE_VALUES]))
        raw[mark] = ""
    else:
        parent.append(parent[key])


def _retype(draw: Draw, parent: Any, key: Any, raw: dict[str, str]) -> None:
    """A number that Python takes for the same, and other readers do not."""
    if isinstance(parent[key], int):
        number, mark = int(parent[key]), _MARK.format(len(raw))
        raw[f'"{mark}"'] = draw(
            st.sampled_from([f"{number}.0", f"{number}e0", f'"{number}"', f"{bool(number)}".lower()])
        )
        parent[key] = mark


def _swap(draw: Draw, parent: Any, key: Any, raw: dict[str, str]) -> None:
    others = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    other = draw(st.sampled_from(others))
    parent[key], parent[other] = parent[other], parent[key]


_CHANGES = [_change_value, _change_value, _change_to_raw, _near_number, _retype, _drop, _rename, _twice, _swap]


# Shards as tensors: the file stays valid safetensors


def _tensors(content: bytes) -> list[Tensor]:
    try:
        return [Tensor(name, t.dtype, t.shape, t.data) for name, t in tensors_of_file(content).items()]
    except Exception:  # another mutation came before: then it is no shard
        return []


def change_tensors(draw: Draw, folder: Folder) -> None:
    """A shard that is as valid as before, with other tensors in it."""
    name, content = _one_file(draw, folder, SHARD)
    tensors = _tensors(content)
    if tensors:
        draw(st.sampled_from(_TENSOR_CHANGES))(draw, folder, tensors)
        folder[name] = shard_bytes(tensors, {"format": "pt"})


def _drop_tensor(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    del tensors[draw(st.integers(0, len(tensors) - 1))]


def _copy_tensor(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    tensor = draw(st.sampled_from(tensors))
    others = [t.name for t in tensors]
    name = draw(
        st.one_of(st.sampled_from(HOSTILE_NAMES), st.sampled_from(others).map(lambda n: n + ".nvfp4_csf_fixed"))
    )
    if name not in (*others, "__metadata__"):
        tensors.append(Tensor(name, tensor.dtype, tensor.shape, tensor.data))


def _rename_tensor(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    i = draw(st.integers(0, len(tensors) - 1))
    _copy_tensor(draw, folder, tensors)
    del tensors[i]


def _swap_data(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    i = draw(st.integers(0, len(tensors) - 1))
    alike = [j for j, t in enumerate(tensors) if len(t.data) == len(tensors[i].data)]
    j = draw(st.sampled_from(alike))
    a, b = tensors[i], tensors[j]
    tensors[i], tensors[j] = (
        Tensor(a.name, a.dtype, a.shape, b.data),
        Tensor(b.name, b.dtype, b.shape, a.data),
    )


def _reorder(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    tensors[:] = draw(st.permutations(tensors))


def _reshape(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    i = draw(st.integers(0, len(tensors) - 1))
    t, n = tensors[i], len(tensors[i].data)
    shapes = [(n,), (1, n), (n, 1), (n // 2, 2), (2, n // 2), (n // 16, 16), (16, n // 16), (n, 1, 1), ()]
    dtype = draw(st.sampled_from(["U8", "I8", "F8_E4M3", "F8_E8M0", t.dtype]))
    tensors[i] = Tensor(t.name, dtype, draw(st.sampled_from(shapes)), t.data)


_COMPANION = re.compile(r"(.*)\.(weight_packed|weight|weight_scale|scale|weight_scale_2|input_scale)(\.\w+_csf_\w+)?")


def _drop_companion(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    """One module loses its weight, its scale with all streams of it, or a scalar; the index may forget it, too."""
    parts = sorted({match.group(1, 2) for t in tensors if (match := _COMPANION.fullmatch(t.name))})
    if parts:
        module, last = draw(st.sampled_from(parts))
        gone = {t.name for t in tensors if (m := _COMPANION.fullmatch(t.name)) and m.group(1, 2) == (module, last)}
        tensors[:] = [t for t in tensors if t.name not in gone]
        if draw(st.booleans()):
            _forget(folder, gone)


def _forget(folder: Folder, names: set[str]) -> None:
    """Take names out of every index that can be read."""
    for file in _files(folder, ".index.json"):
        content = folder[file]
        assert isinstance(content, bytes)
        try:
            document = json.loads(content)
            document["weight_map"] = {k: v for k, v in document["weight_map"].items() if k not in names}
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            continue
        folder[file] = json.dumps(document).encode("utf-8", "surrogatepass")


def _resize_companion(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    """A weight, scale or scalar gets half or twice as many rows or columns, and data to fit; perhaps another dtype."""
    found = [i for i, t in enumerate(tensors) if _COMPANION.fullmatch(t.name) and len(t.shape) == 2 and t.data]
    if found:
        i = draw(st.sampled_from(found))
        t = tensors[i]
        rows, columns = t.shape
        shape = draw(
            st.sampled_from([(rows // 2, columns), (2 * rows, columns), (rows, columns // 2), (rows, 2 * columns)])
        )
        size = len(t.data) * shape[0] * shape[1] // (rows * columns)
        same = ["U8", "I8", "F8_E4M3", "F8_E8M0"]
        dtype = draw(st.sampled_from([t.dtype, t.dtype, *(same if t.dtype in same else [])]))
        tensors[i] = Tensor(t.name, dtype, shape, (t.data * 2)[:size])


def _other_data(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    """Another byte in a tensor, streams above all: bases, codes, padding, positions and values of exceptions."""
    streams = [i for i, t in enumerate(tensors) if "_csf_" in t.name and t.data]
    i = draw(st.sampled_from(streams or list(range(len(tensors)))))
    t = tensors[i]
    if t.data:
        at = draw(st.integers(0, len(t.data) - 1))
        value = draw(st.sampled_from([0, 1, 0x0F, 0x80, 0xF0, 0xFE, 0xFF]))
        tensors[i] = Tensor(t.name, t.dtype, t.shape, t.data[:at] + bytes([value]) + t.data[at + 1 :])


def _other_exceptions(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    """An exception list with a word more, a word less, or in another order."""
    lists = [i for i, t in enumerate(tensors) if t.name.endswith("_exceptions")]
    if lists:
        i = draw(st.sampled_from(lists))
        t = tensors[i]
        words = [t.data[at : at + 4] for at in range(0, len(t.data), 4)]
        changed = draw(
            st.sampled_from([words[1:], words[:-1], words[::-1], words + words[-1:], [*words, b"\xff\xff\xff\xff"], []])
        )
        tensors[i] = Tensor(t.name, t.dtype, (len(changed),), b"".join(changed))


def _move_tensor(draw: Draw, folder: Folder, tensors: list[Tensor]) -> None:
    """A tensor goes to another shard."""
    name, content = _one_file(draw, folder, SHARD)
    others = _tensors(content)
    moved = draw(st.sampled_from(tensors))
    if others and moved.name not in {t.name for t in others}:
        tensors.remove(moved)
        folder[name] = shard_bytes([*others, moved], {"format": "pt"})


_TENSOR_CHANGES = [
    _drop_tensor, _copy_tensor, _rename_tensor, _swap_data, _reorder, _reshape, _other_data, _other_data,
    _other_exceptions, _move_tensor, _drop_companion, _drop_companion, _resize_companion,
]  # fmt: skip


# Containers whose hashes follow the damage, so that what lies behind the hashes is reached as well


def repair_hashes(draw: Draw, folder: Folder) -> None:
    """The manifest and the receipts state the sizes and hashes that the files have now."""
    manifest = _document(folder, "manifest.json")
    rows = manifest.get("shards") if isinstance(manifest, dict) else None
    if not isinstance(rows, list):
        return
    for row in rows:
        name = row.get("file") if isinstance(row, dict) else None
        content = folder.get(f"tensors/{name}")
        if isinstance(name, str) and isinstance(content, bytes):
            facts = {"target_file_bytes": len(content), "target_sha256": hashlib.sha256(content).hexdigest()}
            row.update(facts)
            receipt = _document(folder, f"receipts/{name}.json")
            if isinstance(receipt, dict):
                receipt.update(facts)
                _restate_sizes(receipt, content)
                folder[f"receipts/{name}.json"] = _dumped(receipt, {})
    hashes = manifest.get("metadata_sha256")
    for name in hashes if isinstance(hashes, dict) else ():
        content = folder.get(f"metadata/{name}")
        if isinstance(content, bytes):
            hashes[name] = hashlib.sha256(content).hexdigest()
    for total in ("compressed_scale_bytes", "compressed_weight_file_bytes", "saved_weight_file_bytes"):
        manifest.pop(total, None)
    folder["manifest.json"] = _dumped(manifest, {})


def _restate_sizes(receipt: dict[str, Any], content: bytes) -> None:
    tensors = {t.name: t for t in _tensors(content)}
    scales = receipt.get("scales")
    for name, scale in scales.items() if isinstance(scales, dict) else ():
        for key, stream in (("fixed_bytes", "fixed"), ("exception_bytes", "exceptions")):
            stored = next(
                (t for t in tensors.values() if t.name.startswith(f"{name}.") and t.name.endswith(stream)), None
            )
            if isinstance(scale, dict) and stored:
                scale[key] = len(stored.data)


def _document(folder: Folder, name: str) -> Any:
    content = folder.get(name)
    try:
        return json.loads(content) if isinstance(content, bytes) else None
    except (ValueError, RecursionError):
        return None


# Lists of hashes, beside the shards


def right_sums(draw: Draw, folder: Folder) -> None:
    """A list of what the files hold now, in one of the styles that are read."""
    escape = draw(st.booleans())
    style = draw(st.sampled_from(["{0}  {1}", "{0} *./{1}", "SHA256 ({1}) = {0}", "SHA2-256({1})= {0}"]))
    lines = [_sums_line(style, name, content, escape) for name, content in folder.items() if isinstance(content, bytes)]
    folder["SHA256SUMS"] = draw(st.sampled_from([b"\n", b"\r\n"])).join(lines) + b"\n"


def _sums_line(style: str, name: str, content: bytes, escape: bool) -> bytes:
    odd = any(c in name for c in "\\\n\r")
    written = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") if odd else name
    line = style.format(hashlib.sha256(content).hexdigest(), written)
    return (("\\" if odd or escape else "") + line).encode("utf-8", "surrogateescape")


def change_sums(draw: Draw, folder: Folder) -> None:
    """One line of a list of hashes: cut, repeated, with another hash or name, or in another place."""
    sums = folder.get("SHA256SUMS")
    if not isinstance(sums, bytes) or not sums.strip():
        right_sums(draw, folder)
        sums = folder["SHA256SUMS"]
    assert isinstance(sums, bytes)
    lines = sums.split(b"\n")
    i = draw(st.integers(0, len(lines) - 1))
    line, name = lines[i], draw(st.sampled_from(HOSTILE_NAMES)).encode("utf-8", "surrogatepass")
    lines[i : i + 1] = draw(
        st.sampled_from([
            [], [line, line], [line[1:]], [line[:-1]], [line[:64]], [b"#" + line], [b"\\" + line], [line.upper()],
            [line.replace(b"  ", b" ")], [line, b"0" * 64 + line[64:]], [b"\xef\xbb\xbf" + line], [line + b"\\"],
            [line, b"0" * 64 + b"  " + name], [line[:66] + name], [b"\\" + line[:66] + name], [line + b"\0"],
            [line.replace(b"a", b"\0")], [b"# size: 1 config.json", b"# size: 2 config.json", line], lines[::-1],
        ])
    )  # fmt: skip
    folder["SHA256SUMS"] = b"\n".join(lines)


MUTATIONS: list[Mutation] = [
    flip_bits, flip_bits, zero_block, cut, cut_out, append, insert, repeat_block, header_length,
    drop_file, swap_files, copy_file, replace_file, link_to_outside, stray_file, stray_file,
    replace_token, replace_token, change_json, change_json, change_json, change_json,
    change_tensors, change_tensors, change_tensors, change_tensors, repair_hashes, repair_hashes,
    right_sums, change_sums, change_sums,
]  # fmt: skip
