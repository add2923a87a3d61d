"""Why a path is no checkpoint, in one line with what to do."""

from pathlib import Path

from csf_tool.checkpoint.causes import lines_of
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES
from csf_tool.checkpoint.downloads import unfinished_downloads
from csf_tool.checkpoint.hub_cache import advise_download, repositories_in
from csf_tool.checkpoint.index import INDEX_SUFFIX
from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.checkpoint.layout import Layout
from csf_tool.checkpoint.left_aside import SINGLE_FILE
from csf_tool.checkpoint.packages import OTHER_WEIGHTS, other_weights
from csf_tool.checkpoint.ranks import folders_of_ranks
from csf_tool.codes import Code
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.near_paths import not_there
from csf_tool.disk.own_files import has_journal
from csf_tool.disk.paths import names_in
from csf_tool.disk.reader import exists
from csf_tool.disk.wrong_content import HEAD_BYTES, JSON, wrong_content
from csf_tool.errors import CheckpointError, CsfToolError, EnvironmentFault, UsageError
from csf_tool.text import count, counted, some

_SUGGESTED = 5
"""Most checkpoints in a folder that a message names."""


def not_a_checkpoint(path: Path) -> CsfToolError:
    """Why a folder without manifest, index and shards is no checkpoint."""
    if has_journal(path):
        problem = (
            "a csf-tool run into this folder is not finished, and has written no shard yet: run the same command again"
        )
        return CheckpointError(problem, Code.RUN_UNFINISHED, str(path))
    if partial := unfinished_downloads(path):
        files = f"{counted([file.name for file in partial], 'unfinished file')}"
        problem = f"an incomplete download ({files}): {advise_download(path, 'download it again')}"
        return CheckpointError(problem, Code.DOWNLOAD_BEGUN, str(path))
    for layout in LAYOUTS:
        if layout.has_remains(path):
            advice = advise_download(path, "download that file again")
            problem = f"a {layout.words} without its {layout.main_document}: {advice}"
            return CheckpointError(problem, Code.MISSING_FILE, str(path))
    children = names_in(path)
    if not children:
        return UsageError("is empty", Code.NOT_A_CHECKPOINT, str(path))
    if found := wrong_content(_head(path / CONFIG_FILES[0]), JSON):
        return CheckpointError(f"{CONFIG_FILES[0]} {found.problem}", found.code, str(path))
    inner = [name for name in children if _may_be_one(path / name)]
    if ranks := folders_of_ranks(path, inner):
        return ranks
    inner = inner or [f"snapshots/{name}" for name in names_in(path / "snapshots")]
    hint = _inner_hint(path, inner) or repositories_in(path) or other_weights(children)
    if not hint and (advice := advise_download(path, "")):
        hint = f"; {advice}"
    return no_files_of_one(path, hint)


def no_such_place(path: Path) -> UsageError:
    """The error of a path that leads nowhere, as a link in a Hub cache does whose blob is missing."""
    advice = advise_download(path, "") if exists(path.parent) and not exists(path) else ""
    wanted = "file or folder"
    return UsageError(f"no such {wanted}: {advice}" if advice else not_there(path, wanted), file=str(path))


def _inner_hint(path: Path, inner: list[str]) -> str:
    """The end of a sentence that names the checkpoints in a folder, the first few of many; empty without any."""
    if len(inner) < 2:
        return "".join(f"; did you mean {path / name}?" for name in inner)
    return f"; it contains {count(len(inner), 'checkpoint')}: give one of them: {some(inner, _SUGGESTED, word='or')}"


def _may_be_one(folder: Path) -> bool:
    """Whether a folder inside the given one may be a checkpoint, for a hint; False where it cannot be listed."""
    try:
        return _listing(folder) is not None or any(name.endswith(SHARD_SUFFIX) for name in names_in(folder))
    except EnvironmentFault:
        return False


def no_files_of_one(place: object, hint: str) -> UsageError:
    """The error of a folder or a repository that has neither manifest nor index nor shards."""
    documents = "".join(f"no {layout.main_document}, " for layout in LAYOUTS if layout.main_document)
    problem = f"not a checkpoint: {documents}no *{INDEX_SUFFIX} and no {SHARD_SUFFIX} file{hint}"
    return UsageError(problem, Code.NOT_A_CHECKPOINT, str(place))


def _listing(folder: Path) -> type[Layout] | None:
    """The layout whose main document is in a folder."""
    return next((kind for kind in LAYOUTS if kind.main_document and exists(folder / kind.main_document)), None)


def no_safetensors_file(path: Path, error: CheckpointError) -> UsageError:
    """Why a file of another name, which cannot be read as safetensors, is no checkpoint."""
    if other := OTHER_WEIGHTS.get(path.suffix.lower()):
        return UsageError(f"is {other.one}: {other.remedy}", Code.OTHER_FORMAT, str(path))
    problem = f"{error.problem}; give a checkpoint's folder or one {SHARD_SUFFIX} file"
    return UsageError(problem, error.code, str(path))


def no_shard_can_be_read(checkpoint: Checkpoint, listed_by: str, names: list[str]) -> CheckpointError:
    """Why a folder whose shards are known by name has none of them."""
    path, found = checkpoint.path, [p for p in checkpoint.problems if p.file in checkpoint.lacking]
    refusal, code = f"none of {count(len(names), 'shard')} can be read", Code.NO_SHARD_HERE
    if any(p.code is not Code.MISSING_FILE for p in found):
        refusal, code = f"{refusal} ({'; '.join(line.text for line in lines_of(found)[:3])})", Code.NO_SHARD_READABLE
    elif layout := _listing(path.parent):
        refusal += f": this folder is part of a {layout.name}; give {path.parent}"
    else:
        aside = checkpoint.aside
        others = f" (found {counted(aside, 'other shard')})" if aside else ""
        if SINGLE_FILE in aside:
            others += f"; {SINGLE_FILE} will be used if you move {listed_by} away"
        download = advise_download(path, f"download the {SHARD_SUFFIX} files too")
        refusal += f": all shards that {listed_by} lists are missing, such as {names[0]}{others}; {download}"
    return CheckpointError(refusal, code, str(path))


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""
