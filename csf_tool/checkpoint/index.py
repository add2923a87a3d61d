"""model.safetensors.index.json: which shard holds which tensor."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

from csf_tool.codes import Code
from csf_tool.disk.json_files import ESCAPED, load_json, parse_json
from csf_tool.disk.paths import safe_relative
from csf_tool.disk.reader import file_size
from csf_tool.errors import CheckpointError, CsfToolError

INDEX_SUFFIX = ".safetensors.index.json"
INDEX_NAME = "model" + INDEX_SUFFIX

MAP_KEY = "weight_map"

_QUOTED_KEY = b'"weight_map"'
_PIECE_BYTES = 1 << 20
_PIECE_LINES = 1 << 13


@dataclass(frozen=True)
class Index:
    """An index file of a folder. It is read when something in it is asked for.

    What it says in `metadata.total_size` is not believed, and not held against it: no reader of weights goes by that,
    and real repositories have stale ones. What csf-tool writes has the true size.
    """

    root: Path
    name: str

    @cached_property
    def document(self) -> dict[str, Any]:
        """The whole document.

        Raises:
            CheckpointError: it is not an index, or a shard path in it leaves the folder.
        """
        document = load_json(self.root / self.name, self.name)
        weight_map = document.get(MAP_KEY) if isinstance(document, dict) else None
        if not isinstance(weight_map, dict) or not set(map(type, weight_map.values())) <= {str}:
            problem = f"{MAP_KEY} is not a map of tensor name to shard file"
            raise CheckpointError(problem, Code.INVALID_FIELD, self.name)
        for shard in set(weight_map.values()):
            safe_relative(shard, self.name)
        return cast(dict[str, Any], document)

    @property
    def weight_map(self) -> dict[str, str]:
        """The map of tensor name to shard path."""
        return cast(dict[str, str], self.document[MAP_KEY])

    @cached_property
    def shards(self) -> set[str]:
        """The shards that it places tensors in."""
        return set(self.weight_map.values())

    def spells_out(self, held: dict[str, list[str]]) -> bool:
        """Whether it places exactly these tensors in these shards, written as `json.dumps` does, sorted by name.

        Most indexes do. Then comparing text is enough, in half the time of reading every name, and piece by piece,
        for memory that is touched but once costs more than the comparison. False says nothing.
        """
        names = {name for tensors in held.values() for name in tensors}
        lines = sorted([f'"{name}": "{shard}"' for shard, tensors in held.items() for name in tensors])
        if not lines or len(names) != len(lines) or not all(held.values()):
            return False
        try:
            file_size(self.root / self.name, self.name)
            with open(self.root / self.name, "rb") as file:
                rest = _without_lines(file, lines)
            document = parse_json(rest, self.name)
            for shard in held:
                safe_relative(shard, self.name)
        except (OSError, UnicodeEncodeError, CsfToolError):
            return False
        if b"\\" in rest or rest.count(_QUOTED_KEY) != 1:  # the key may have another spelling, or another place
            return False
        return isinstance(document, dict) and document.get(MAP_KEY) == {}


def _without_lines(file: BinaryIO, lines: list[str]) -> bytes:
    """What an index has before and after its map's `lines`; nothing where it has others, or escapes in them."""
    head = file.read(_PIECE_BYTES)
    opening = re.search(_QUOTED_KEY + rb': {([ \n]*)(?=")', head)
    if not opening:
        return b""
    file.seek(opening.end())
    between = f",{opening[1].decode() or ' '}"
    for at in range(0, len(lines), _PIECE_LINES):
        piece = lines[at : at + _PIECE_LINES]
        is_last = at + len(piece) == len(lines)
        expected = between.join(piece if is_last else [*piece, ""]).encode("utf-8")
        # Plain names and files leave four quotes a line and the breaks between lines: anything more needs an escape.
        marks = 4 * len(piece) + between.count("\n") * (len(piece) - is_last)
        if len(expected.translate(None, ESCAPED)) + marks != len(expected) or file.read(len(expected)) != expected:
            return b""
    return head[: opening.end()] + file.read(_PIECE_BYTES)


def find_index(root: Path) -> str | None:
    """The name of the index file in a folder, preferring the usual one; hidden files are none (`._x` of macOS)."""
    if (root / INDEX_NAME).exists() or (root / INDEX_NAME).is_symlink():
        return INDEX_NAME
    return min((p.name for p in root.glob("*" + INDEX_SUFFIX) if not p.name.startswith(".")), default=None)


def read_index(root: Path, name: str) -> Index:
    """The index file `name` of a folder.

    Raises:
        CheckpointError: it is not an index, or a shard path in it leaves the folder.
    """
    index = Index(root, name)
    index.document  # noqa: B018 (read now, so that it is refused here)
    return index


def index_document(index: Index | None, weight_map: dict[str, str], total_size: int) -> dict[str, Any]:
    """What an index with this map says; whatever else `index` says stays as it is."""
    said = index.document if index else {}
    metadata = said.get("metadata")
    kept = metadata if isinstance(metadata, dict) else {}
    return {**said, "metadata": {**kept, "total_size": total_size}, MAP_KEY: weight_map}
