"""Configs as they are published, each beside a tiny checkpoint that fits it: compress, verify and expand.

What each file of tests/data/published_configs has is said in its README.
"""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from csf_tool.checkpoint.marks import SOURCE_KEY
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.errors import UsageError
from csf_tool.progress import Silent
from csf_tool.prove.verify import verify
from csf_tool.write.compress import Compressed, CompressOptions, compress
from csf_tool.write.expand import expand
from csf_tool.write.selection import Rules
from tests.building import MXFP4, NVFP4, Tensor, matrix, tree, write_shard

CONFIGS = sorted((Path(__file__).parent / "data" / "published_configs").glob("*.json"))
CONFIG_NAMES = ("config.json", "hf_quant_config.json")
INDENTS = (2, 4, None, "\t")
"""Indentations that the published files have, taken in turn."""


def plain(name: str, dtype: str, *shape: int, bits: int = 8) -> Tensor:
    count = bits
    for size in shape:
        count *= size
    return Tensor(name, dtype, shape, random.Random(name).randbytes(count // 8))


def nvfp4(module: str) -> list[Tensor]:
    return matrix(module, NVFP4, seed=len(module), rows=32, cols=16)


def compressed_tensors(module: str) -> list[Tensor]:
    names = {".weight": ".weight_packed", ".weight_scale_2": ".weight_global_scale"}
    ends = {module + old: module + new for old, new in names.items()}
    return [Tensor(ends.get(t.name, t.name), t.dtype, t.shape, t.data) for t in nvfp4(module)]


KINDS: dict[str, Callable[[str], list[Tensor]]] = {
    "nvfp4": nvfp4,
    "ct": compressed_tensors,
    "mxfp4": lambda m: matrix(m, MXFP4, seed=len(m), rows=32, cols=16),
    "bf16": lambda m: [plain(f"{m}.weight", "BF16", 4, 16, bits=16)],
    "fp8": lambda m: [plain(f"{m}.weight", "F8_E4M3", 16, 32), plain(f"{m}.weight_scale", "F32", bits=32)],
    "mxfp8": lambda m: [plain(f"{m}.weight", "F8_E4M3", 16, 64), plain(f"{m}.weight_scale", "U8", 16, 2)],
    "stacked": lambda m: [plain(m, "U8", 2, 16, 32), plain(f"{m}_weight_scale", "F8_E4M3", 2, 16, 4)],
    "blocks": lambda m: [plain(f"{m}_blocks", "U8", 2, 16, 2, 16), plain(f"{m}_scales", "U8", 2, 16, 2)],
}
"""Matrices of a module by how they are stored."""


def expanded(pattern: str) -> Iterator[str]:
    """The names that a pattern with braces stands for, as a shell expands it."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return map("".join, itertools.product(*parts))


def write_source(folder: Path, published: dict[str, Any], indent: int | str | None) -> Path:
    tensors = [
        tensor
        for kind, patterns in published["tensors"].items()
        for pattern in patterns
        for module in expanded(pattern)
        for tensor in KINDS[kind](module)
    ]
    write_shard(folder / "model.safetensors", tensors, {"format": "pt"})
    for name, config in published["configs"].items():
        (folder / name).write_text(json.dumps(config, indent=indent) + "\n" * (indent == 2))
    return folder


def run(source: Path, to: Path, published: dict[str, Any]) -> Compressed:
    options = CompressOptions(rules=Rules(include=published.get("include", ())))
    return compress(open_checkpoint(source), to, options, NumpyEncoder(), NumpyDecoder(), Silent())


def places(value: Any) -> Iterator[dict[str, Any]]:
    """Every object of a document that has recipes."""
    if isinstance(value, dict):
        if isinstance(value.get("quantized_layers"), dict):
            yield value
        for inner in value.values():
            yield from places(inner)


def marked_modules(folder: Path) -> list[tuple[str, set[str], set[str]]]:
    """Of every place with recipes: its file, the modules that are marked, and those that csf-tool has written."""
    found = []
    for name in CONFIG_NAMES:
        config = json.loads((folder / name).read_text()) if (folder / name).exists() else None
        for place in places(config):
            layers = place["quantized_layers"]
            csf = {module for module, recipe in layers.items() if recipe.get("weight_scale_encoding") == "csf"}
            found.append((name, csf, set(layers) if SOURCE_KEY in place else set()))
    return found


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_published_config(path: Path, tmp_path: Path) -> None:
    published = json.loads(path.read_text())
    expects = published["expects"]
    source = write_source(tmp_path / "dense", published, INDENTS[CONFIGS.index(path) % len(INDENTS)])
    if expects["layout"] is None:
        with pytest.raises(UsageError, match="block scales"):
            run(source, tmp_path / "csf", published)
        assert not (tmp_path / "csf").exists()
        return
    done = run(source, tmp_path / "csf", published)
    assert done.target.layout.name == expects["layout"]
    assert bool(done.notes) == bool(expects["note"])
    assert expects["note"] in " ".join(done.notes)
    if expects["layout"] == "hf":
        found = marked_modules(tmp_path / "csf")
        assert found
        assert all(csf == set(expects["marked"]) for _, csf, _ in found)
        assert all(written == set(expects["written"]) for *_, written in found)
    checked = verify(open_checkpoint(tmp_path / "csf"), open_checkpoint(source), NumpyDecoder(), Silent())
    assert checked.ok
    warnings = {str(p.code) for p in open_checkpoint(tmp_path / "csf").problems}
    assert warnings == set(expects["warnings"])
    expand(open_checkpoint(tmp_path / "csf"), tmp_path / "back", NumpyDecoder(), Silent())
    back, there = tree(tmp_path / "back"), tree(source)
    assert {name: back[name] for name in CONFIG_NAMES if name in there} == {
        name: there[name] for name in CONFIG_NAMES if name in there
    }
    assert back["model.safetensors"] == there["model.safetensors"]
