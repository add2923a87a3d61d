"""Containers as models: their config and tokenizer lie in metadata/, which engines are given as the model's folder."""

from pathlib import Path

from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.container import METADATA
from csf_tool.checkpoint.container_reading import read_manifest
from csf_tool.disk.reader import is_file
from csf_tool.errors import CsfToolError


def container_of(folder: Path) -> Path | None:
    """The CSF container that a folder is, or whose metadata/ it is; None for all others."""
    if is_container(folder):
        return folder
    names = (folder, folder.absolute(), folder.resolve())  # it may be `.`, or a link
    return next((name.parent for name in names if name.name == METADATA and is_container(name.parent)), None)


def model_of(shard: Path) -> Path:
    """The folder of the model that a shard is of: for those of a container, its metadata/; else where a config is."""
    if is_container(shard.parent.parent):
        return shard.parent.parent / METADATA
    return next((folder for folder in shard.parents if is_file(folder / CONFIG_FILES[0])), shard.parent)


def is_container(folder: Path) -> bool:
    """Whether a folder is a CSF container."""
    try:
        read_manifest(folder)
    except CsfToolError:
        return False
    return True
