"""Folders as users have them: a Hub cache, a download, and what is no checkpoint at all."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.building import change_json, etag, mini_container, mini_hf, shard_name


def hub_cache(folder: Path, cache: Path, revision: str = "a" * 40) -> Path:
    """The snapshot of a Hub cache that holds the files of `folder`: links to blobs named by their hashes."""
    snapshot = cache / "models--example--mini" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    blobs = snapshot.parent.parent / "blobs"
    blobs.mkdir(exist_ok=True)
    for path in folder.iterdir():
        blob = blobs / etag(path)
        shutil.copy(path, blob)
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


def hf_download(folder: Path, revision: str = "b" * 40) -> Path:
    """Beside the files of `folder`, what `hf download --local-dir` notes of them."""
    notes = folder / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    for path in [p for p in folder.iterdir() if p.is_file()]:
        (notes / f"{path.name}.metadata").write_text(f"{revision}\n{etag(path)}\n1.0\n")
    return folder


def only(name: str, content: bytes = b"x") -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        root.mkdir()
        (root / name).write_bytes(content)
        return root

    return make


def spoilt(content: bytes, *names: str) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        mini_hf(root)
        for name in names:
            (root / name).write_bytes(content)
        return root

    return make


def without_shards(root: Path) -> Path:
    mini_hf(root)
    for name in (shard_name(1, 2), shard_name(2, 2)):
        (root / name).unlink()
    return root


def of_schema(schema: str) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        mini_container(root)
        change_json(root / "manifest.json", lambda manifest: manifest.update(schema=schema))
        return root

    return make
