"""Checkpoints with hundreds of one fault: a builder for each kind that can occur in each tensor or each shard."""

import functools
import json
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from csf_tool.codes import Code
from tests.building import (
    INDEX,
    LFS_POINTER,
    MXFP4,
    NVFP4,
    Codec,
    Tensor,
    change_json,
    entry,
    header_of,
    matrix,
    mini_container,
    raw_file,
    recipes_config,
    shard_name,
    streams,
    write_hf,
    write_json,
    write_shard,
)

MANY = 300

CONTAINER = "model.safetensors"


@dataclass(frozen=True)
class Built:
    """A checkpoint, and more arguments for `verify`."""

    root: Path
    verify: tuple[object, ...] = ()


Build = Callable[[Path], Path | Built]


@functools.cache
def _parts(codec: Codec) -> dict[str, Tensor]:
    """The tensors of one module, dense and as streams, by their last names: encoding takes its time."""
    tensors = matrix("m", codec, 1)
    scale = next(t for t in tensors if t.dtype == codec.dtype)
    return {t.name.removeprefix("m."): t for t in [*tensors, *streams(scale, codec)]}


def module(i: int) -> str:
    return f"model.layers.{i % 3}.mlp.experts.{i // 3}.gate_proj"


WEIGHT, SCALE, GLOBAL = "weight", "weight_scale", "weight_scale_2"
FIXED, EXCEPTIONS = f"{SCALE}.nvfp4_csf_fixed", f"{SCALE}.nvfp4_csf_exceptions"
CSF = (WEIGHT, FIXED, EXCEPTIONS)
DENSE = (WEIGHT, SCALE)
Change = Callable[[Tensor], Tensor]


def of_module(i: int, lasts: Iterable[str], codec: Codec = NVFP4) -> list[Tensor]:
    return [replace(_parts(codec)[last], name=f"{module(i)}.{last}") for last in lasts]


def model(*lasts: str, whole: tuple[str, ...] = (), change: dict[str, Change] | None = None) -> list[Tensor]:
    """Many modules with these tensors, changed by their last names, and two with the tensors `whole` as they are."""
    changes = change or {}
    tensors = [t for i in range(1, MANY + 1) for t in of_module(i, lasts)]
    changed = [next((do(t) for last, do in changes.items() if t.name.endswith(f".{last}")), t) for t in tensors]
    return of_module(0, whole) + changed + of_module(MANY + 1, whole)


def shard(*lasts: str, whole: tuple[str, ...] = (), config: Any = None, **change: Change) -> Build:
    """One shard of many modules. Keywords are the last names of what is changed: `fixed` stands for the stream."""
    names = {"fixed": FIXED, "exceptions": EXCEPTIONS, "weight": WEIGHT, "scale": SCALE, "second": GLOBAL}
    changes = {names[key]: do for key, do in change.items()}
    return lambda root: write_hf(
        root,
        {shard_name(1, 1): model(*lasts, whole=whole, change=changes)},
        config=recipes_config(3, csf=FIXED in lasts) if config is None else config,
    )


def data(do: Callable[[bytes], bytes]) -> Change:
    return lambda tensor: replace(tensor, data=do(tensor.data))


def like(dtype: str, *shape: int, nbytes: int) -> Change:
    return lambda tensor: replace(tensor, dtype=dtype, shape=shape, data=b"\1" * nbytes)


def words(*numbers: int) -> Change:
    """Another list of exceptions."""
    raw = b"".join(number.to_bytes(4, "little") for number in numbers)
    return lambda tensor: replace(tensor, shape=(len(numbers),), data=raw)


def but(build: Build, do: Callable[[Path], object]) -> Build:
    """A checkpoint that is changed once it is written."""

    def changed(root: Path) -> Path | Built:
        built = build(root)
        do(built.root if isinstance(built, Built) else built)
        return built

    return changed


def against(ours: Build, theirs: Build, *more: object) -> Build:
    def both(root: Path) -> Built:
        reference = theirs(root / "reference")
        ours(root / "own")
        return Built(root / "own", ("--against", reference, *more))

    return both


def shards(root: Path) -> Path:
    """Many shards of one tensor, and one with planes."""
    content = {shard_name(i + 1, MANY + 1): [Tensor(f"norm.{i}", "U8", (3,), b"abc")] for i in range(MANY + 1)}
    content[shard_name(1, MANY + 1)] += of_module(0, CSF) + of_module(1, CSF)
    return write_hf(root, content, config=recipes_config(2))


def each(do: Callable[[Path], object]) -> Build:
    """Many shards, all but the first of which are changed."""
    names = [shard_name(i, MANY + 1) for i in range(2, MANY + 2)]
    return but(shards, lambda root: [do(root / name) for name in names])


def filled(content: bytes) -> Build:
    return each(lambda path: path.write_bytes(content))


def entries(header: Callable[[int], Any], nbytes: int) -> Build:
    """One shard whose header has many entries of a kind."""

    def write(root: Path) -> Path:
        root.mkdir(parents=True)
        document = {f"t.{i}": header(i) for i in range(MANY + 1)}
        (root / "model.safetensors").write_bytes(raw_file(document, bytes(nbytes)))
        return root

    return write


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(8))


def _repeat(root: Path) -> None:
    for path in list(root.glob("*.safetensors")):
        shutil.copy(path, root / f"{path.stem} (1).safetensors")


def _weight_map(change: Callable[[dict[str, str]], object]) -> Callable[[Path], None]:
    return lambda root: change_json(root / INDEX, lambda index: change(index["weight_map"]))


def _drop(names: str) -> Callable[[dict[str, str]], None]:
    def drop(weight_map: dict[str, str]) -> None:
        for name in [name for name in weight_map if name.endswith(names)]:
            del weight_map[name]

    return drop


def _swap(weight_map: dict[str, str]) -> None:
    files = sorted(set(weight_map.values()))
    weight_map |= {name: files[1 - files.index(file)] for name, file in weight_map.items()}


def two_shards(root: Path) -> Path:
    tensors = model(*CSF)
    half = len(tensors) // 2
    return write_hf(root, {shard_name(1, 2): tensors[:half], shard_name(2, 2): tensors[half:]}, config={})


def container(root: Path, content: dict[str, list[Tensor]] | None = None) -> Path:
    return mini_container(root, content=content or {CONTAINER: model(*DENSE)})


def container_shards(root: Path) -> Path:
    content = {shard_name(i + 1, MANY): [Tensor(f"norm.{i}", "U8", (3,), b"abc")] for i in range(MANY)}
    return container(root, content)


def plane_shards(root: Path) -> Path:
    return container(root, {shard_name(i + 1, MANY): of_module(i, DENSE) for i in range(MANY)})


def documents(build: Build, name: str, change: Callable[[Any], object]) -> Build:
    return but(build, lambda root: change_json(root / name, change))


def _receipt(change: Callable[[dict[str, Any]], object]) -> Build:
    return documents(container, f"receipts/{CONTAINER}.json", lambda receipt: change(receipt["scales"]))


def _ghosts(value: Any) -> dict[str, Any]:
    return {f"{module(i)}.ghost.weight_scale": value for i in range(MANY)}


def _rows(**fields: Any) -> Callable[[Any], None]:
    """Give rows of a manifest these values; with None, the key goes."""

    def change(manifest: Any) -> None:
        for row in manifest["shards"]:
            for key, value in fields.items():
                row[key] = value
                if value is None:
                    del row[key]

    return change


def _misspell(manifest: Any) -> None:
    for row in manifest["shards"]:
        row["source_shb256"] = row.pop("source_sha256")


def _break_bases(root: Path) -> None:
    """The first row of every plane gets a base that no format has."""
    fixed = _parts(NVFP4)[FIXED].data
    for path in (root / "tensors").iterdir():
        raw = path.read_bytes()
        assert raw.count(fixed) == 1
        path.write_bytes(raw.replace(fixed, b"\xff" + fixed[1:]))


def _sums(line: Callable[[int], str]) -> Build:
    return but(shards, lambda root: (root / "SHA256SUMS").write_text("".join(line(i) for i in range(MANY))))


def _json_files(content: str) -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        shard(*CSF)(root)
        for i in range(MANY):
            (root / f"part {i}.json").write_text(content)
        return root

    return write


def _mxfp4(root: Path) -> Path:
    tensors = [
        replace(t, name=f"{module(i)}.{last}", data=t.data[:-1] + b"\xff" if last.endswith("_fixed") else t.data)
        for i in range(MANY)
        for last, t in _parts(MXFP4).items()
        if last != "scale"
    ]
    return write_hf(root, {shard_name(1, 1): tensors}, config={})


def _exceptions(root: Path) -> Path:
    """A config that names every module as an exception from quantisation."""
    quantization = {"quant_algo": "NVFP4", "ignore": [module(i) for i in range(1, MANY + 1)]}
    return shard(*DENSE, config={"quantization_config": quantization})(root)  # type: ignore[return-value]


def _marked(root: Path) -> Path:
    config = recipes_config(3)
    recipe = {"quant_algo": "NVFP4", "weight_scale_encoding": "csf"}
    config["quantization_config"]["quantized_layers"] |= {f"model.ghost.{i}": recipe for i in range(MANY)}
    return shard(*CSF, config=config)(root)  # type: ignore[return-value]


def _tiled(root: Path) -> Path:
    return write_shard(root / "model.safetensors", model(*DENSE), {"_quantization_metadata": "{}"}).parent


def _stacked(root: Path) -> Path:
    tensors = [Tensor(f"layers.{i}.w_scales", "U8", (2, 2, 2), bytes(8)) for i in range(MANY)]
    return write_shard(root / "model.safetensors", tensors).parent


def _without_an_expert(root: Path) -> Path:
    """Many layers with two of three experts."""
    modules = [f"model.layers.{layer}.mlp.experts.{i}.gate_proj" for layer in range(MANY) for i in range(2)]
    tensors = [replace(_parts(NVFP4)[last], name=f"{name}.{last}") for name in modules for last in DENSE]
    return write_hf(root, {shard_name(1, 1): tensors}, config={"num_experts": 3})


BASE = _parts(NVFP4)[FIXED].data[0]

MANY_OF: dict[Code, Build] = {
    # Each shard
    Code.MISSING_FILE: each(Path.unlink),
    Code.NOT_A_FILE: each(_as_folder),
    Code.GIT_POINTER: filled(LFS_POINTER),
    Code.WEB_PAGE: filled(b"<html>"),
    Code.SAVED_MESSAGE: filled(b'{"error": 401}'),
    Code.NEVER_FILLED: filled(bytes(900)),
    Code.OTHER_FORMAT: filled(b"GGUF" + bytes(900)),
    Code.NOT_SAFETENSORS: filled(b"\1\2\3"),
    Code.INVALID_JSON: filled(raw_file(b'{"a":}')),
    Code.TRAILING_BYTES: each(_append),
    Code.INDEX_LACKS_SHARD: but(shards, _weight_map(lambda m: [m.pop(f"norm.{i}") for i in range(1, MANY + 1)])),
    Code.SHARD_LEFT_ASIDE: but(
        shards,
        lambda r: [shutil.copy(r / shard_name(i + 1, MANY + 1), r / f"copy {i}.safetensors") for i in range(MANY)],
    ),
    Code.ODD_JSON: _json_files('{"a": 1, "a": 2}'),
    Code.DOWNLOAD_UNFINISHED: but(shards, lambda r: [(r / f"{i}.aria2").write_bytes(b"x") for i in range(MANY)]),
    Code.HASH_DIFFERS: _sums(lambda i: f"{i:064x}  {shard_name(i + 1, MANY + 1)}\n"),
    Code.HASH_DAMAGED: _sums(lambda i: f"{i:060x}  {shard_name(i + 1, MANY + 1)}\n"),
    Code.UNSAFE_NAME: documents(
        container, "manifest.json", lambda m: m["metadata_sha256"].update({f"../{i}": "0" * 64 for i in range(MANY)})
    ),
    Code.SIZE_DIFFERS: documents(container_shards, "manifest.json", _rows(target_file_bytes=1)),
    Code.INVALID_FIELD: documents(container_shards, "manifest.json", _rows(target_sha256=None)),
    Code.DAMAGED_FIELD: documents(container_shards, "manifest.json", _misspell),
    Code.SHARD_NOT_IN_MANIFEST: but(
        container, lambda r: [write_shard(r / "tensors" / f"{i}.safetensors", []) for i in range(MANY)]
    ),
    Code.STRAY_RECEIPT: but(container, lambda r: [write_json(r / "receipts" / f"{i}.json", {}) for i in range(MANY)]),
    Code.CANNOT_BE_REBUILT: but(plane_shards, _break_bases),
    Code.SIDE_FILE_DIFFERS: against(_json_files("[1]"), _json_files("[2]")),
    # Each tensor
    Code.INDEX_LACKS_TENSOR: but(shard(*CSF), _weight_map(_drop(".weight"))),
    Code.INDEX_NAMES_MISSING_TENSOR: but(shard(*CSF), _weight_map(lambda m: m.update(_ghosts(shard_name(1, 1))))),
    Code.INDEX_NAMES_OTHER_SHARD: but(two_shards, _weight_map(_swap)),
    Code.TENSOR_IN_TWO_SHARDS: but(but(shard(*CSF), _repeat), lambda root: (root / INDEX).unlink()),
    Code.UNKNOWN_DTYPE: entries(lambda i: entry("F9", [1], i, i + 1), MANY + 1),
    Code.INVALID_HEADER: entries(lambda i: entry("U8", [1 + bool(i)], i, i + 1), MANY + 1),
    Code.DATA_OVERLAP: entries(lambda i: entry("U8", [2], i, i + 2), MANY + 2),
    Code.DATA_HOLE: entries(lambda i: entry("U8", [1], 2 * i, 2 * i + 1), 2 * MANY + 1),
    Code.TRUNCATED: entries(lambda i: entry("U8", [1], i, i + 1), 1),
    Code.ZERO_WEIGHT: shard(*CSF, weight=data(lambda raw: bytes(len(raw)))),
    Code.ZERO_STREAM: shard(*CSF, fixed=data(lambda raw: bytes(len(raw)))),
    Code.BASE_TOO_HIGH: shard(*CSF, fixed=data(lambda raw: b"\xff" + raw[1:])),
    Code.PADDING_BITS: _mxfp4,
    Code.POSITION_OUTSIDE: shard(*CSF, exceptions=words(0xFF000000, 0xFFFFFFFF)),
    Code.POSITION_ORDER: shard(*CSF, exceptions=words(0xFF000005, 0xFF000004)),
    Code.NEEDLESS_EXCEPTION: shard(*CSF, exceptions=words(BASE << 24)),
    Code.STREAM_SIZE: shard(*CSF, exceptions=like("U8", 8, nbytes=8)),
    Code.UNREADABLE_STREAMS: shard(*CSF, exceptions=words(0xFFFFFFFF)),
    Code.HALF_A_PAIR: shard(WEIGHT, FIXED, whole=CSF),
    Code.GEOMETRY_UNKNOWN: shard(FIXED, EXCEPTIONS, whole=CSF, fixed=lambda t: replace(t, shape=(len(t.data),))),
    Code.GEOMETRY_CONTRADICTS: shard(*CSF, weight=like("U8", 16, 64, nbytes=1024)),
    Code.GEOMETRY_IMPOSSIBLE: shard(
        *CSF,
        fixed=lambda t: replace(t, shape=(len(t.data),)),
        weight=like("U8", 8, 32, nbytes=256),
    ),
    Code.NOT_FP4_WEIGHT: shard(*CSF, weight=like("BF16", 16, 32, nbytes=1024)),
    Code.PLANE_STORED_TWICE: shard(*CSF, SCALE),
    Code.WEIGHT_WITHOUT_SCALE: shard(WEIGHT, whole=DENSE),
    Code.SCALE_WITHOUT_WEIGHT: shard(SCALE, whole=DENSE),
    Code.SCALE_SHAPE: shard(*DENSE, whole=DENSE, scale=like("F8_E4M3", 8, 4, nbytes=32)),
    Code.SCALE_LABEL: shard(*DENSE, whole=DENSE, scale=like("U8", 16, 4, nbytes=64)),
    Code.GLOBAL_SCALE: shard(*DENSE, GLOBAL, whole=(*DENSE, GLOBAL), second=like("I32", nbytes=4)),
    Code.EXPERT_MISSING: _without_an_expert,
    Code.COMPANION_MISSING: shard(*DENSE, whole=(*DENSE, GLOBAL)),
    Code.UNKNOWN_CODEC: shard(*CSF, SCALE, scale=lambda t: Tensor(f"{t.name}s.nvfp6_csf_fixed", "U8", (4,), bytes(4))),
    Code.CONTRACT_DIFFERS: documents(
        container, "build-contract.json", lambda c: c["source_names"].update(_ghosts(CONTAINER))
    ),
    Code.RECEIPT_DIFFERS: _receipt(lambda scales: scales.update(_ghosts(next(iter(scales.values()))))),
    Code.DOCUMENTS_CONTRADICT: documents(
        container_shards, "build-contract.json", lambda c: c.update(source_names={"norm": shard_name(1, MANY + 1)})
    ),
    Code.SOURCE_DIFFERS: _receipt(lambda scales: [scale.update(source_sha256="0" * 64) for scale in scales.values()]),
    Code.RECIPE_NOT_MARKED: shard(*CSF, config={"quantization_config": {"quantized_layers": {"x": {}}}}),
    Code.RECIPE_WITHOUT_STREAMS: _marked,
    Code.CONFIG_PRECISION: _exceptions,
    Code.SCALE_LAYOUT: _tiled,
    Code.STACKED_SCALES: _stacked,
    Code.REFERENCE_DIFFERS: against(shard(*CSF), shard(*DENSE, weight=data(lambda raw: raw[:-1] + b"\0"))),
    Code.REFERENCE_NAMES: against(shard(*CSF), shard(SCALE, whole=DENSE)),
}
"""How to make a checkpoint with many faults of a kind."""

ONCE = {
    # Of a checkpoint or a run as a whole
    Code.NOT_A_CHECKPOINT, Code.NO_SHARD_HERE, Code.NO_SHARD_READABLE, Code.DOWNLOAD_BEGUN, Code.RUN_UNFINISHED,
    Code.UNKNOWN_SCHEMA, Code.MIXED_LAYOUTS, Code.SERVING_DIRECTORY, Code.NO_INDEX, Code.CONFIG_FORMAT,
    Code.CONFIG_CONTRADICTS_ITSELF, Code.NO_RECORDED_HASH, Code.MIXED_REVISIONS, Code.OTHER_LIST, Code.NO_STACK,
    Code.RANK_FILES,
    Code.NO_RECEIPTS, Code.FAULTY_SOURCE, Code.NOTHING_TO_EXPAND, Code.NOTHING_MATCHED, Code.NO_ROOM, Code.NOT_EMPTY,
    Code.WRONG_IN_DESTINATION, Code.OTHER_RUN, Code.JOURNAL_TAKEN, Code.LOST_OUTPUT, Code.DAMAGED_JOURNAL,
    Code.NESTED_FOLDERS, Code.SHARED_SOURCE, Code.SOURCE_CHANGED, Code.WRITTEN_WRONGLY, Code.USAGE, Code.ENVIRONMENT,
    # Raised for the first file or tensor
    Code.HUB_LACKS_FILE, Code.UNUSABLE_NAME, Code.TOO_LARGE, Code.FILE_SHRANK,
}  # fmt: skip
"""Kinds that a command meets once: it ends with the first."""


def hostile(root: Path) -> Path:
    """A checkpoint with hundreds of causes of each of two kinds: words of its own choice stand in what is said."""
    rng = random.Random(1)
    names = ["".join(rng.choices("abcdefgh ", k=12)) for _ in range(MANY)]
    document = header_of(Tensor(f"t.{i}", "U8", (1,), b"x") for i in range(MANY))
    for key, name in zip(list(document), names, strict=True):
        document[key]["dtype"] = name
    root.mkdir(parents=True)
    (root / "model.safetensors").write_bytes(raw_file(document, bytes(MANY)))
    weight_map = {f"x.{name}": f"{name}.safetensors" for name in names}
    (root / INDEX).write_text(json.dumps({"weight_map": {**weight_map, "t.0": "model.safetensors"}}))
    return root
