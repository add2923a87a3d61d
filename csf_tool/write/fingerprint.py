"""Fingerprint and place of a source, as journals state them to tell checkpoints apart."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.side_files import config_files
from csf_tool.disk.reader import read_document
from csf_tool.text import escape


def fingerprint(checkpoint: Checkpoint, consumed: Mapping[str, tuple[int, int]]) -> str:
    """SHA-256 over the names, sizes and times of the shards, and the bytes of configs, main document and index.

    No tensor data are read, so two revisions that differ in data alone are told apart by the files' times.
    `consumed` has size and time of shards that were there when the run began. A repository on the Hub is known by
    its name and commit.
    """
    if checkpoint.hub:
        return str(checkpoint.hub)
    hasher = hashlib.sha256()
    shards = {shard.name: (shard.size, shard.mtime_ns) for shard in checkpoint.shards} | dict(consumed)
    for name, (size, mtime_ns) in sorted(shards.items()):
        hasher.update(os.fsencode(name) + f"\0{size}\0{mtime_ns}\0".encode())  # the name's bytes may be no UTF-8
    documents = [file.path for file in config_files(checkpoint)]
    if document := checkpoint.layout.main_document:
        documents.append(checkpoint.root / document)
    if checkpoint.index:
        documents.append(checkpoint.layout.model_root / checkpoint.index.name)
    for path in documents:
        hasher.update(read_document(path, path.name) + b"\0")
    return hasher.hexdigest()


def source_root(source: Path) -> str:
    """The place of a source, as journals state it."""
    return escape(str(source.resolve()))
