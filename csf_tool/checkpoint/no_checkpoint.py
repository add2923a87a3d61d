"""Why a path is no checkpoint, in one line with what to do."""

from collections import Counter
from pathlib import Path

from csf_tool.checkpoint.causes import lines_of
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.downloads import unfinished_downloads
from csf_tool.checkpoint.index import INDEX_SUFFIX
from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.checkpoint.layout import Layout
from csf_tool.checkpoint.problems import Problem
from csf_tool.codes import Code
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.own_files import has_journal
from csf_tool.disk.paths import names_in
from csf_tool.disk.reader import exists
from csf_tool.disk.wrong_content import HEAD_BYTES, JSON, wrong_content
from csf_tool.errors import CheckpointError, CsfToolError, EnvironmentFault, UsageError
from csf_tool.text import count

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
        problem = (
            "a csf-tool run into this folder is not finished, and no shard is there yet: run the same command again"
        )
        return CheckpointError(problem, Code.RUN_UNFINISHED, str(path))
    if partial := unfinished_downloads(path):
        files = f"{count(len(partial), 'unfinished file')}, as {partial[0].name}"
        problem = f"an incomplete download ({files}): download it again"
        return CheckpointError(problem, Code.DOWNLOAD_BEGUN, str(path))
    for layout in LAYOUTS:
        if layout.has_remains(path):
            problem = f"a {layout.words} without its {layout.main_document}: download that file again"
            return CheckpointError(problem, Code.MISSING_FILE, str(path))
    children = names_in(path)
    if not children:
        return UsageError("is empty", Code.NOT_A_CHECKPOINT, str(path))
    if found := wrong_content(_head(path / CONFIG_FILES[0]), JSON):
        return CheckpointError(f"{CONFIG_FILES[0]} {found.problem}", found.code, str(path))
    inner = [name for name in children if _may_be_one(path / name)]
    inner = inner or [f"snapshots/{name}" for name in names_in(path / "snapshots")]
    hint = f"; did you mean {path / inner[0]}?" if inner else _other_weights(children)
    return no_files_of_one(path, hint)


def _may_be_one(folder: Path) -> bool:
    """Whether a folder inside the given one may be a checkpoint, for a hint; False where it cannot be listed."""
    try:
        return _listing(folder) is not None or any(name.endswith(SHARD_SUFFIX) for name in names_in(folder))
    except EnvironmentFault:
        return False


def no_files_of_one(place: object, hint: str = "") -> UsageError:
    """The error of a folder or a repository that has neither manifest nor index nor shards."""
    documents = "".join(f"no {layout.main_document}, " for layout in LAYOUTS if layout.main_document)
    problem = f"not a checkpoint: {documents}no *{INDEX_SUFFIX} and no {SHARD_SUFFIX} file in it{hint}"
    return UsageError(problem, Code.NOT_A_CHECKPOINT, str(place))


def _listing(folder: Path) -> type[Layout] | None:
    """The layout whose main document is in a folder."""
    return next((kind for kind in LAYOUTS if kind.main_document and exists(folder / kind.main_document)), None)


def _other_weights(names: list[str]) -> str:
    found = Counter(suffix for name in names if (suffix := Path(name).suffix.lower()) in _OTHER_WEIGHTS)
    return "".join(f"; it has {n} {_OTHER_WEIGHTS[suffix]}" for suffix, n in found.most_common(1))


def no_safetensors_file(path: Path, error: CheckpointError) -> UsageError:
    """Why a file of another name, which cannot be read as safetensors, is no checkpoint."""
    title = _OTHER_WEIGHTS.get(path.suffix.lower())
    why = f"is one of {title}" if title else error.problem
    problem = f"{why}; give a checkpoint's folder or one {SHARD_SUFFIX} file"
    return UsageError(problem, Code.OTHER_FORMAT if title else error.code, str(path))


def no_shard_can_be_read(path: Path, listed_by: str, names: list[str], problems: list[Problem]) -> CheckpointError:
    """Why a folder whose shards are known by name has none of them."""
    refusal, code = f"not one of {count(len(names), 'shard')} can be read", Code.NO_SHARD_HERE
    if any(p.code is not Code.MISSING_FILE for p in problems):
        refusal, code = f"{refusal} ({'; '.join(line.text for line in lines_of(problems)[:3])})", Code.NO_SHARD_READABLE
    elif layout := _listing(path.parent):
        refusal += f": this is a folder inside a {layout.name}; give {path.parent}"
    else:
        download = f"download the {SHARD_SUFFIX} files as well"
        refusal += f": none that {listed_by} lists is there, as {names[0]}; {download}"
    return CheckpointError(refusal, code, str(path))


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""
