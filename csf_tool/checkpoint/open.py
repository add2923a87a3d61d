"""open_checkpoint: recognise what a path is, and read every header once."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from csf_tool.arguments import as_path
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.config import CONFIG_FILES, SERVING_KEY, load_config, quantization_config
from csf_tool.checkpoint.cross_check import cross_check, note_stored_twice
from csf_tool.checkpoint.dense_planes import find_dense_planes
from csf_tool.checkpoint.downloads import unfinished_downloads
from csf_tool.checkpoint.hub_cache import advise_download
from csf_tool.checkpoint.index import Index
from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.checkpoint.layout import Folder, HuggingFace, Layout, SingleFile, shard_files
from csf_tool.checkpoint.left_aside import (
    SINGLE_FILE,
    Deciding,
    note_other_indexes,
    take_unlisted,
)
from csf_tool.checkpoint.missing_shards import name_missing_shards
from csf_tool.checkpoint.no_checkpoint import (
    no_files_of_one,
    no_safetensors_file,
    no_shard_can_be_read,
    no_such_place,
    not_a_checkpoint,
)
from csf_tool.checkpoint.numbered import whole_sets
from csf_tool.checkpoint.other_scales import find_other_scales
from csf_tool.checkpoint.packages import other_package, other_weights
from csf_tool.checkpoint.planes import find_planes
from csf_tool.checkpoint.problems import Problem, Problems
from csf_tool.checkpoint.ranks import refuse_ranks
from csf_tool.checkpoint.repository import Repository
from csf_tool.checkpoint.shard_headers import prepare, read_faultless, read_shard
from csf_tool.checkpoint.stored import Shard, Stored
from csf_tool.codec.formats import FORMATS
from csf_tool.codes import Code
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.own_files import OWN_FOLDER, has_journal
from csf_tool.disk.reader import exists, is_file, is_folder
from csf_tool.errors import CheckpointError, EnvironmentFault, UsageError
from csf_tool.garbage import no_garbage_collection
from csf_tool.text import brief


@no_garbage_collection()
def open_checkpoint(source: str | os.PathLike[str] | Repository, *, all_shards: bool = False) -> Checkpoint:
    """The checkpoint at `source`: a folder in either CSF layout or none, one safetensors file, or a repository.

    Only headers and JSON files are read. What is wrong with it is listed in `Checkpoint.problems`. Shards that its
    index does not list are left out if they hold only tensors of those that it lists, unless `all_shards`.

    Raises:
        TypeError: `source` is no path.
        UsageError: there is nothing at `source`, or nothing that could be a checkpoint.
        CheckpointError: it is one, but not a shard of it can be read, or its manifest or index cannot.
        EnvironmentFault: the operating system or the network cannot read it.
    """
    hub = source if isinstance(source, Repository) else None
    path = hub.root if hub else as_path("source", source)
    try:
        if hub:
            return _open_folder(path, hub, all_shards=all_shards)
        if is_file(path):
            return _open_file(path)
        if not is_folder(path):
            raise no_such_place(path)
        checkpoint = _open_folder(path, all_shards=all_shards)
        name_missing_shards(checkpoint)
        _note_leftovers(checkpoint)
        return checkpoint
    except PermissionError as error:
        raise EnvironmentFault(f"cannot be read: {error.strerror}", file=str(path)) from error
    except CheckpointError as error:
        raise _placed(error, path, hub) from error


@no_garbage_collection()
def open_shards(folder: Path, names: list[str]) -> Checkpoint:
    """The checkpoint that some shards in a folder are together, whatever its index says.

    Raises:
        CheckpointError: not one of them can be read.
        EnvironmentFault: the operating system cannot read them.
    """
    checkpoint = Checkpoint(folder, HuggingFace(folder))
    _read_shards(checkpoint, names)
    _require_a_shard(checkpoint, names)
    return _finish(checkpoint)


_OF_A_DAMAGED_FILE = {Code.INVALID_JSON, Code.INVALID_FIELD, Code.DAMAGED_FIELD}


def _placed(error: CheckpointError, path: Path, hub: Repository | None) -> CheckpointError:
    """The error of a document, with the folder that it is in, and what to do about a damaged one."""
    root = path if is_folder(path) else path.parent
    is_damaged = error.code in _OF_A_DAMAGED_FILE
    is_inside = error.file and Path(error.file) != path and exists(root / error.file)
    if not is_inside or (hub and not is_damaged):
        return error
    place = f"{hub}: {error.file}" if hub else str(root / error.file)
    remedy = f"; {advise_download(root, 'download that file again')}" if is_damaged else ""
    return type(error)(f"{error.problem}{remedy}", error.code, place, error.tensor)


def _open_file(path: Path) -> Checkpoint:
    if path.name.endswith(".json"):
        raise UsageError(f"is a JSON file; give its folder, {path.parent}", file=str(path))
    checkpoint = Checkpoint(path, SingleFile(path.parent))
    try:
        checkpoint.shards = [read_shard(checkpoint, path.name, checkpoint.problems)]
    except CheckpointError as error:
        if path.name.endswith(SHARD_SUFFIX):
            raise
        raise no_safetensors_file(path, error) from error
    return _finish(checkpoint)


def _open_folder(path: Path, hub: Repository | None = None, *, all_shards: bool, follow: bool = True) -> Checkpoint:
    """The checkpoint in a folder; a serving directory is followed to its weights once, never in circles."""
    folder = Folder.at(path, hub)
    passed_over = Problems()
    remains = ""
    for kind in LAYOUTS:
        problems = Problems()
        if layout := kind.recognised(folder, problems):
            return open_listed(layout, problems, hub)
        passed_over += problems
        remains = f"mixed with what is left of a {kind.name}" if problems else remains
    # Before the index: a serving directory has a copy of the source's, whose shards lie elsewhere.
    if not folder.shards and (served := _serving_root(path)) and not hub:
        if not follow:
            problem = "is a serving directory, and another serving directory gives it as its weights"
            raise UsageError(problem, Code.SERVING_DIRECTORY, str(path))
        checkpoint = _open_folder(served, all_shards=all_shards, follow=False)
        checkpoint.remark = f"the weights of the serving directory {path}"
        return checkpoint
    if folder.index_name or folder.shards:
        checkpoint = _open_hf(folder, all_shards=all_shards)
        checkpoint.problems += passed_over
        checkpoint.remark = remains or checkpoint.remark
        return checkpoint
    if hub:
        raise no_files_of_one(hub, other_weights(hub.files))
    raise not_a_checkpoint(path)


def _note_leftovers(checkpoint: Checkpoint) -> None:
    """Warn of runs and downloads that were begun here and not finished, though all shards may look complete."""
    try:
        unfinished = unfinished_downloads(checkpoint.root)
    except EnvironmentFault as error:  # a folder around the checkpoint: what is in it is read all the same
        checkpoint.problems.warn(f"cannot tell whether a download is unfinished: {error}", error.code)
        unfinished = []
    for file in unfinished:
        text = "is left over from an unfinished download or copy: check the files with csf-tool verify"
        checkpoint.problems.warn(text, Code.DOWNLOAD_UNFINISHED, file.name)
    if has_journal(checkpoint.root):
        text = "a csf-tool run into this folder is not finished: run the same command again"
        checkpoint.problems.warn(text, Code.RUN_UNFINISHED, OWN_FOLDER)


def open_listed(layout: Layout, problems: Problems, hub: Repository | None = None) -> Checkpoint:
    """The checkpoint of a layout whose documents have been read, with these problems, and which list the shards."""
    checkpoint = Checkpoint(layout.root, layout, problems=problems, remark=layout.remark, hub=hub)
    names = list(map(layout.stored_name, layout.listed))
    _read_shards(checkpoint, names)
    _require_a_shard(checkpoint, names)
    for file in shard_files(layout.root, layout.shard_folder, hub=hub):
        if file not in layout.listed:
            problems.error("is not listed in the manifest", Code.SHARD_NOT_IN_MANIFEST, layout.stored_name(file))
    return _finish(checkpoint)


def _open_hf(folder: Folder, *, all_shards: bool) -> Checkpoint:
    path, index_name, found = folder.path, folder.index_name, folder.shards
    is_alone = not index_name and len(found) == 1 and not exists(path / CONFIG_FILES[0])
    layout = SingleFile(path) if is_alone else HuggingFace(path)
    checkpoint = Checkpoint(path, layout, hub=folder.hub, all_shards=all_shards)
    if not index_name:
        _read_without_index(checkpoint, found)
        return _finish(checkpoint)
    index = checkpoint.index = Index(path, index_name)
    read = read_faultless(checkpoint, found)
    held = {name: shard.header.names for name, shard in read.items()}
    if index_agrees := bool(held) and index.lists_exactly(held):
        _read_shards(checkpoint, list(read), read)
        return _finish(checkpoint, index_agrees=index_agrees)
    listed, others = sorted(index.shards), _unlisted(checkpoint, index, found)
    if not listed and not others:
        problem = f"{index_name} lists no shards, and there are none"
        raise CheckpointError(problem, Code.NO_SHARD_HERE, checkpoint.label)
    if all_shards:
        _read_shards(checkpoint, listed + others, read)
    else:
        _read_shards(checkpoint, listed, read)
        take_unlisted(checkpoint, others, Deciding.by_index(index, checkpoint.shards), read)
        note_other_indexes(checkpoint, index)
    _require_a_shard(checkpoint, listed + others if all_shards else listed or others)
    return _finish(checkpoint)


def _read_without_index(checkpoint: Checkpoint, found: list[str]) -> None:
    """Read the shards of a folder without an index, where `model.safetensors` may say which of them count."""
    if SINGLE_FILE in found and len(found) > 1 and not checkpoint.all_shards:
        single = read_faultless(checkpoint, [SINGLE_FILE])
        if single:
            checkpoint.shards += single.values()
            others = [name for name in found if name != SINGLE_FILE]
            take_unlisted(checkpoint, others, Deciding.by_single_file(single[SINGLE_FILE]), {})
    taken = {shard.name: shard for shard in checkpoint.shards}
    left = [name for name in found if name not in {*taken, *checkpoint.aside, *checkpoint.lacking}]
    wanted = {*taken, *left, *whole_sets([*taken, *left])} - {*checkpoint.aside, *checkpoint.lacking}
    if len(taken) + len(left) > 1:
        text = "no index lists the shards, so csf-tool uses all of them; expand and compress write an index"
        checkpoint.problems.warn(text, Code.NO_INDEX)
    checkpoint.shards.clear()
    _read_shards(checkpoint, sorted(wanted), taken)
    _require_a_shard(checkpoint, sorted(wanted))
    if not checkpoint.all_shards:
        refuse_ranks(checkpoint.label, {shard.name: shard.header.names for shard in checkpoint.shards})


def _unlisted(checkpoint: Checkpoint, index: Index, found: list[str]) -> list[str]:
    """The shards that are here and that an index does not list: at the top, and in the folders that it speaks of."""
    folders = sorted({name.rpartition("/")[0] for name in index.shards if "/" in name})
    inside = [f"{folder}/{name}" for folder in folders for name in shard_files(index.root, folder, hub=checkpoint.hub)]
    return [name for name in [*found, *inside] if name not in index.shards]


def _read_shards(checkpoint: Checkpoint, names: list[str], read: Mapping[str, Shard] = MappingProxyType({})) -> None:
    """Read every shard that can be read and is not in `read`; what stops one is a problem of its own."""
    prepare(checkpoint, names)
    for name in names:
        try:
            checkpoint.shards.append(read.get(name) or read_shard(checkpoint, name, checkpoint.problems))
        except CheckpointError as error:
            checkpoint.lacking.append(name)
            checkpoint.problems.append(Problem.of(error, name))


def _require_a_shard(checkpoint: Checkpoint, names: list[str]) -> None:
    """Refuse a checkpoint that should have the shards `names`, and of which no shard at all can be read.

    Raises:
        CheckpointError: there is none.
    """
    if names and not checkpoint.shards:
        listed_by = checkpoint.index.name if checkpoint.index else checkpoint.layout.main_document
        raise no_shard_can_be_read(checkpoint, listed_by, names)


def _finish(checkpoint: Checkpoint, *, index_agrees: bool = False) -> Checkpoint:
    """Find the planes, and compare all lists of names with one another.

    Where the index was found to list exactly what the shards hold, no name can stand in two of them.
    """
    stored = Stored(checkpoint.shards)
    if not index_agrees and len(stored.row_of) != len(stored.names):
        is_listed = bool(checkpoint.index or checkpoint.layout.main_document or checkpoint.all_shards)
        note_stored_twice(checkpoint.problems, checkpoint.shards, is_listed=is_listed)
    checkpoint.plane_table, problems = find_planes(stored, checkpoint.layout.scale_receipts)
    checkpoint.problems += problems
    checkpoint.dense_table = find_dense_planes(stored)
    if not checkpoint.formats:
        checkpoint.remark = checkpoint.remark or other_package(checkpoint, stored)
    checkpoint.other_scales = find_other_scales(checkpoint.plane_table, checkpoint.dense_table)
    return cross_check(checkpoint, stored, index_agrees=index_agrees)


def _serving_root(path: Path) -> Path | None:
    """The folder of the weights of a serving directory; None for any other folder.

    Raises:
        UsageError: the weights of the serving directory are not here.
    """
    found = quantization_config(load_config(path))
    if found.get("quant_method") not in [fmt.serving_method for fmt in FORMATS]:
        return None
    root = found.get(SERVING_KEY)
    # Not Path.resolve: it raises what it likes for links that lead in circles.
    served = Path(os.path.realpath(path / root)) if isinstance(root, str) and "\0" not in root else None
    if served is None or not is_folder(served) or served == path.resolve():
        problem = f"is a serving directory, not a checkpoint: its weights are in {SERVING_KEY} {brief(root)}, "
        problem += "which does not exist here; give the folder that you downloaded"
        raise UsageError(problem, Code.SERVING_DIRECTORY, str(path))
    return served
