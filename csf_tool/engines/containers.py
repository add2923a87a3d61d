"""Containers as models: their config and tokenizer lie in metadata/, which engines are given as the model's folder."""

from pathlib import Path

from csf_tool.checkpoint.container import METADATA
from csf_tool.checkpoint.container_reading import read_manifest
from csf_tool.errors import CsfToolError


def container_of(model: Path) -> Path | None:
    """The CSF container whose metadata/ is a model's folder; None for all other folders."""
    return model.parent if model.name == METADATA and is_container(model.parent) else None


def is_container(folder: Path) -> bool:
    """Whether a folder is a CSF container."""
    try:
        read_manifest(folder)
    except CsfToolError:
        return False
    return True
