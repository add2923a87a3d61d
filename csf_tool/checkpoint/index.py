"""model.safetensors.index.json: which shard holds which tensor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.files import load_json, safe_relative
from csf_tool.errors import CheckpointError

INDEX_SUFFIX = ".safetensors.index.json"
INDEX_NAME = "model" + INDEX_SUFFIX


@dataclass(frozen=True)
class Index:
    """A parsed index: its file's name, the whole document, and the map of tensor name to shard path."""

    name: str
    document: dict[str, Any]
    weight_map: dict[str, str]

    @property
    def total_size(self) -> object:
        """What metadata.total_size says; it is known to be stale in real repositories."""
        metadata = self.document.get("metadata")
        return metadata.get("total_size") if isinstance(metadata, dict) else None


def find_index(root: Path) -> str | None:
    """The name of the index file in a folder, preferring the usual one."""
    if (root / INDEX_NAME).exists() or (root / INDEX_NAME).is_symlink():
        return INDEX_NAME
    return min((p.name for p in root.glob("*" + INDEX_SUFFIX)), default=None)


def read_index(root: Path, name: str) -> Index:
    """The index file `name` of a folder.

    Raises:
        CheckpointError: it is not an index, or a shard path in it leaves the folder.
    """
    document = load_json(root / name, name)
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{name}: weight_map is not a map of tensor name to shard file")
    for shard in set(weight_map.values()):
        safe_relative(shard, name)
    return Index(name, document, weight_map)
