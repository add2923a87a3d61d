"""model.safetensors.index.json: which shard holds which tensor."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from csf_tool.codes import Code
from csf_tool.disk import quick
from csf_tool.disk.json_files import load_json
from csf_tool.disk.paths import names_in, safe_relative
from csf_tool.errors import CheckpointError

INDEX_SUFFIX = ".safetensors.index.json"
INDEX_NAME = "model" + INDEX_SUFFIX

_OF_VARIANT = re.compile(r"(.+\.safetensors)\.index\.[^./]+\.json", re.DOTALL)
"""The name of the index of a variant, as transformers and diffusers write it: `model.safetensors.index.fp8.json`."""

MAP_KEY = "weight_map"


@dataclass(frozen=True)
class Index:
    """An index file of a folder, which is read when first needed.

    Its `metadata.total_size` is neither used nor checked: no reader of weights goes by it, and real repositories have
    stale ones. Indexes that csf-tool writes have the true size.
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

    def lists_exactly(self, held: Mapping[str, Sequence[str]]) -> bool:
        """Whether it places every tensor in the shard that holds it, and lists nothing else.

        `held` are names by shard. A name in two shards, or a shard without tensors, no index lists.

        Raises:
            CheckpointError: as `document`.
        """
        if quick.spells_out(self.root / self.name, MAP_KEY, held):
            return True
        places = {name: shard for shard, names in held.items() for name in names}
        return all(held.values()) and sum(map(len, held.values())) == len(places) and places == self.weight_map


def find_index(root: Path, shards: Collection[str] = ()) -> str | None:
    """The name of the index file in a folder, preferring the usual one; hidden files are none (`._x` of macOS).

    The index of a variant is asked last, and only where no single file that loaders take before it is there or among
    `shards`, those that a repository lists.
    """
    names = [name for name in names_in(root) if not name.startswith(".")]
    found = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if found:
        return INDEX_NAME if INDEX_NAME in found else min(found)
    variants = ((name, match[1]) for name in names if (match := _OF_VARIANT.fullmatch(name)))
    return min((name for name, single in variants if single not in names and single not in shards), default=None)


def is_index_name(name: str) -> bool:
    """Whether a file is called as an index is, that of a variant included."""
    return name.endswith(INDEX_SUFFIX) or bool(_OF_VARIANT.fullmatch(name))


def read_index(root: Path, name: str) -> Index:
    """The index file `name` of a folder.

    Raises:
        CheckpointError: it is not an index, or a shard path in it leaves the folder.
    """
    index = Index(root, name)
    index.document  # noqa: B018 (read now, so that it is refused here)
    return index


def index_document(index: Index | None, weight_map: dict[str, str], total_size: int) -> dict[str, Any]:
    """The document of an index with this map; everything else is as in `index`."""
    document = index.document if index else {}
    metadata = document.get("metadata")
    kept = metadata if isinstance(metadata, dict) else {}
    return {**document, "metadata": {**kept, "total_size": total_size}, MAP_KEY: weight_map}
