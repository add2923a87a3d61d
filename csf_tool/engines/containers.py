"""Containers as models: their config and tokenizer lie in metadata/, which engines are given as the model's folder."""

from pathlib import Path

from csf_tool.checkpoint.container import METADATA
from csf_tool.checkpoint.container_reading import read_manifest
from csf_tool.errors import CsfToolError


def container_of(folder: Path) -> Path | None:
    """The CSF container that a folder is, or whose metadata/ it is; None for all others."""
    if is_container(folder):
        return folder
    return folder.parent if folder.name == METADATA and is_container(folder.parent) else None


def model_of(folder: Path) -> Path:
    """The folder of the model whose shards lie in a folder: for those of a container, its metadata/."""
    return folder.parent / METADATA if is_container(folder.parent) else folder


def is_container(folder: Path) -> bool:
    """Whether a folder is a CSF container."""
    try:
        read_manifest(folder)
    except CsfToolError:
        return False
    return True
