"""Why a path is no checkpoint, in one line with what to do."""

from collections import Counter
from pathlib import Path

from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.container import CONTRACT, MANIFEST, RECEIPTS, TENSORS
from csf_tool.checkpoint.downloads import unfinished_downloads
from csf_tool.checkpoint.index import INDEX_SUFFIX
from csf_tool.checkpoint.problems import Problem
from csf_tool.disk.disguises import HEAD_BYTES, JSON, disguise
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.own_files import has_journal
from csf_tool.errors import CheckpointError, CsfToolError, UsageError
from csf_tool.text import count

NOT_THERE = "not there"
"""How a problem begins whose file is missing."""

_OTHER_WEIGHTS = {
    ".gguf": "GGUF files",
    ".bin": "torch's .bin files",
    ".pt": "torch's .pt files",
    ".pth": "torch's .pth files",
    ".npz": "numpy's .npz files",
    ".onnx": "ONNX files",
    ".csf": ".csf files, another format of that name (CSF is here a compression of block scales)",
}
"""Suffixes of weights that are no safetensors, and of files that only share a name with the format."""


def not_a_checkpoint(path: Path) -> CsfToolError:
    """Why a folder without manifest, index and shards is no checkpoint."""
    if has_journal(path):
        return CheckpointError(
            f"{path}: a csf-tool run into this folder is not finished, and no shard is there yet: "
            "run the same command again"
        )
    if partial := unfinished_downloads(path):
        return CheckpointError(
            f"{path}: an incomplete download ({count(len(partial), 'unfinished file')}, as {partial[0].name}): "
            "download it again"
        )
    if (path / TENSORS).is_dir() and ((path / CONTRACT).exists() or (path / RECEIPTS).is_dir()):
        return CheckpointError(f"{path}: a CSF container without its {MANIFEST}: download that file again")
    children = sorted(p.name for p in path.iterdir())
    if not children:
        return UsageError(f"{path}: is empty")
    if reason := disguise(_head(path / CONFIG_FILES[0]), JSON):
        return CheckpointError(f"{path}: {CONFIG_FILES[0]} {reason}")
    inner = [c for c in children if (path / c / MANIFEST).exists() or list((path / c).glob("*" + SHARD_SUFFIX))]
    inner = inner or [f"snapshots/{p.name}" for p in sorted(path.glob("snapshots/*"))]
    hint = f"; did you mean {path / inner[0]}?" if inner else _other_weights(children)
    return no_files_of_one(path, hint)


def no_files_of_one(place: object, hint: str = "") -> UsageError:
    """That a folder or a repository has neither manifest nor index nor shards."""
    return UsageError(
        f"{place}: not a checkpoint: no {MANIFEST}, no *{INDEX_SUFFIX} and no {SHARD_SUFFIX} file in it{hint}"
    )


def _other_weights(names: list[str]) -> str:
    found = Counter(suffix for name in names if (suffix := Path(name).suffix.lower()) in _OTHER_WEIGHTS)
    return "".join(f"; it has {n} {_OTHER_WEIGHTS[suffix]}" for suffix, n in found.most_common(1))


def no_safetensors_file(path: Path, error: CheckpointError) -> UsageError:
    """Why a file of another name, which cannot be read as safetensors, is no checkpoint."""
    title = _OTHER_WEIGHTS.get(path.suffix.lower())
    why = f"is one of {title}" if title else str(error).removeprefix(f"{path.name}: ")
    return UsageError(f"{path}: {why}; give a checkpoint's folder or one {SHARD_SUFFIX} file")


def no_shard_can_be_read(path: Path, listed_by: str, names: list[str], problems: list[Problem]) -> CheckpointError:
    """Why a folder whose shards are known by name has none of them."""
    refusal = f"{path}: not one of {count(len(names), 'shard')} can be read"
    if not all(p.problem.startswith(NOT_THERE) for p in problems):
        return CheckpointError(f"{refusal} ({'; '.join(str(p) for p in problems[-3:])})")
    if (path.parent / MANIFEST).exists():
        return CheckpointError(f"{refusal}: this is a folder inside a container; give {path.parent}")
    return CheckpointError(
        f"{refusal}: none that {listed_by} lists is there, as {names[0]}; download the {SHARD_SUFFIX} files as well"
    )


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""
