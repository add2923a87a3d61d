"""open_checkpoint: recognise what a path is, read every header once, and cross-check names in every direction."""

import gc
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from csf_tool.checkpoint.background import in_background
from csf_tool.checkpoint.config import (
    CONFIG_FILES,
    SERVING_KEY,
    Recipe,
    contradictions,
    covering_recipe,
    quantization_config,
    recipes,
    recipes_in_use,
)
from csf_tool.checkpoint.container import MANIFEST, RECEIPTS, TENSORS, Container, check_totals, read_container
from csf_tool.checkpoint.downloads import unfinished_downloads
from csf_tool.checkpoint.files import RandomReader, is_folder, load_json
from csf_tool.checkpoint.headers import DTYPE_BITS, SHARD_SUFFIX, read_header
from csf_tool.checkpoint.index import Index, find_index, read_index
from csf_tool.checkpoint.journal import FOLDER as JOURNAL_FOLDER
from csf_tool.checkpoint.journal import has_journal
from csf_tool.checkpoint.model import Checkpoint, Layout, Shard, Stored
from csf_tool.checkpoint.names import module_of, parse_stream_name
from csf_tool.checkpoint.odd_scales import doubtful_scales, stacked_scales, warn_of
from csf_tool.checkpoint.planes import find_dense_planes, find_planes, stream_names
from csf_tool.checkpoint.problems import Problem, Severity, errors
from csf_tool.checkpoint.refusals import no_safetensors_file, no_shard_can_be_read, not_a_checkpoint
from csf_tool.codec.formats import FORMATS
from csf_tool.errors import CheckpointError, EnvironmentFault, UsageError
from csf_tool.text import brief, count

if TYPE_CHECKING:  # huggingface_hub takes a while to import
    from csf_tool.checkpoint.hub import HubRepo

_MIXED = "a container and a Hugging Face checkpoint in one folder? Download each into a folder of its own"

_SHARED_SHARDS = 8
"""How many shards' headers are worth a second process: it takes a few milliseconds to start and to hear of."""

MAX_NUMBERED_SHARDS = 10_000
"""Most shards that names are believed when they say that there are so many: a name can claim any number."""


def open_checkpoint(source: "str | Path | HubRepo") -> Checkpoint:
    """The checkpoint at `source`: a folder in either CSF layout or none, one safetensors file, or a repository.

    Only headers and JSON files are read. What is wrong with it is listed in `Checkpoint.problems`.

    Raises:
        UsageError: there is nothing at `source`, or nothing that could be a checkpoint.
        CheckpointError: it is one, but not a shard of it can be read, or its manifest or index cannot.
        EnvironmentFault: the operating system or the network cannot read it.
    """
    hub = None if isinstance(source, str | Path) else source
    path = Path(source) if isinstance(source, str | Path) else source.root
    try:
        with no_garbage_collection():
            if hub:
                return _open_folder(path, hub)
            if path.is_file():
                return _open_file(path)
            if not path.is_dir():
                raise UsageError(f"{path}: no such file or folder")
            checkpoint = _open_folder(path)
            checkpoint.problems += _leftovers(checkpoint.root)
            return checkpoint
    except PermissionError as error:
        raise EnvironmentFault(f"{path}: cannot be read: {error.strerror}") from error


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Headers become a million small objects that all live on: looking for garbage among them doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _open_file(path: Path) -> Checkpoint:
    if path.name.endswith(".json"):
        raise UsageError(f"{path}: is a JSON file; give the folder it is in, {path.parent}")
    checkpoint = Checkpoint(path, path.parent, Layout.FILE)
    try:
        checkpoint.shards = [_read_shard(checkpoint, path.name, checkpoint.problems)]
    except CheckpointError as error:
        if path.name.endswith(SHARD_SUFFIX):
            raise
        raise no_safetensors_file(path, error) from error
    return _finish(checkpoint)


def _open_folder(path: Path, hub: "HubRepo | None" = None, *, follow: bool = True) -> Checkpoint:
    """The checkpoint in a folder; a serving directory is followed to its weights once, never in circles."""
    index_name = find_index(path)
    stray = _shard_files(path, hub=hub)
    passed_over: list[Problem] = []
    if (path / MANIFEST).exists():
        found = _container_here(path, index_name, stray, hub)
        if isinstance(found, Checkpoint):
            return found
        passed_over = found
    # Before the index: a serving directory has a copy of the source's, whose shards lie elsewhere.
    if not stray and (served := _serving_root(path)) and not hub:
        if not follow:
            raise UsageError(f"{path}: is a serving directory that another one names as its weights")
        checkpoint = _open_folder(served, follow=False)
        checkpoint.remark = f"the weights of the serving directory {path}"
        return checkpoint
    if index_name or stray:
        checkpoint = _open_hf(path, index_name, stray, hub)
        checkpoint.problems += passed_over
        checkpoint.remark = "mixed with what is left of a container" if passed_over else ""
        return checkpoint
    if hub:
        files = f"no {MANIFEST}, no *.safetensors.index.json and no {SHARD_SUFFIX} file"
        raise UsageError(f"{hub}: not a checkpoint: {files} in it")
    raise not_a_checkpoint(path)


def _container_here(
    path: Path, index_name: str | None, stray: list[str], hub: "HubRepo | None"
) -> Checkpoint | list[Problem]:
    """The container whose manifest is in a folder, or why the folder is taken for a Hugging Face checkpoint."""
    taken = "and the folder is taken as a Hugging Face checkpoint"
    try:
        container = read_container(path)
    except CheckpointError as error:
        if not index_name and not stray:
            raise
        text = f"cannot be read, {taken} ({error})"
        return [Problem(MANIFEST, "", text, Severity.WARNING)] if (path / TENSORS).is_dir() else []
    if stray and not _shard_files(path, TENSORS, hub=hub):
        text = f"lists shards in {TENSORS}, where none is, {taken}"
        return [Problem(MANIFEST, "", text, Severity.WARNING)]
    mixed = _mixed_index(path, index_name) if index_name else []
    container.problems += mixed
    checkpoint = open_container(path, container, stray, hub)
    checkpoint.remark = "mixed with a Hugging Face checkpoint" if mixed or stray else ""
    return checkpoint


def _leftovers(path: Path) -> list[Problem]:
    """What says that something here was begun and not finished, though all shards may look complete."""
    problems = []
    if unfinished := unfinished_downloads(path):
        text = f"{count(len(unfinished), 'file')} of a download or copy that was not finished: verify what there is"
        problems.append(Problem(unfinished[0].name, "", text, Severity.WARNING))
    if has_journal(path):
        text = "a csf-tool run into this folder is not finished: run the same command again"
        problems.append(Problem(JOURNAL_FOLDER, "", text, Severity.WARNING))
    return problems


def _mixed_index(path: Path, index_name: str) -> list[Problem]:
    """A container may have a copy of the source's index at its root; one that lists streams is the other layout's."""
    try:
        names = read_index(path, index_name).weight_map
    except CheckpointError as error:
        return [Problem(index_name, "", str(error).removeprefix(f"{index_name}: "))]
    if not any(map(parse_stream_name, names)):
        return []
    return [Problem(index_name, "", f"lists CSF streams beside {MANIFEST}: {_MIXED}")]


def _shard_files(root: Path, inside: str = "", *, hub: "HubRepo | None" = None) -> list[str]:
    """The names of the shards in a folder, links to missing blobs included, and those that the Hub has.

    Hidden files are none: macOS leaves a `._model.safetensors` beside every file on a foreign disk.
    """
    folder = root / inside
    paths = folder.glob("*" + SHARD_SUFFIX) if is_folder(folder) else ()
    here = {p.name for p in paths if not p.name.startswith(".") and not p.is_dir()}
    return sorted(here.union(hub.shard_names(inside) if hub else ()))


def open_container(
    path: Path, container: Container, stray: Sequence[str] = (), hub: "HubRepo | None" = None
) -> Checkpoint:
    """The checkpoint of a container whose own files have been read; `stray` are shards that do not belong there."""
    checkpoint = Checkpoint(path, path, Layout.CONTAINER, container=container, problems=container.problems, hub=hub)
    for name in stray:
        container.error(name, f"a shard beside {MANIFEST}: {_MIXED}")
    names = [f"{TENSORS}/{file}" for file in container.rows]
    _read_shards(checkpoint, names, _faultless_shards(checkpoint, names))
    for file in (name for name in _shard_files(path, TENSORS, hub=hub) if name not in container.rows):
        container.error(f"{TENSORS}/{file}", "is not listed in the manifest")
    return _finish(checkpoint)


def _open_hf(path: Path, index_name: str | None, found: list[str], hub: "HubRepo | None") -> Checkpoint:
    layout = Layout.HF if index_name or len(found) > 1 or (path / CONFIG_FILES[0]).exists() else Layout.FILE
    checkpoint = Checkpoint(path, path, layout, hub=hub)
    names = list(found)
    read: dict[str, Shard] = {}
    if index_name:
        checkpoint.index = Index(path, index_name)
        read = _faultless_shards(checkpoint, found)
        if read and (agreeing := _open_agreeing(checkpoint, read)):
            return agreeing
        indexed = sorted(checkpoint.index.shards)
        folders = {name.rpartition("/")[0] for name in indexed if "/" in name}
        found += [f"{folder}/{name}" for folder in sorted(folders) for name in _shard_files(path, folder, hub=hub)]
        names = indexed + [name for name in found if name not in indexed]
    elif len(found) > 1:
        text = "no index lists the shards: they are taken as they are; expand and compress write one"
        checkpoint.problems.append(Problem("", "", text, Severity.WARNING))
    if not index_name:
        names = sorted({*found, *_numbered_siblings(found)})
    if not names:
        raise CheckpointError(f"{checkpoint.label}: {index_name} lists no shards, and none are here")
    _read_shards(checkpoint, names, read)
    return _finish(checkpoint)


def _open_agreeing(opened: Checkpoint, shards: dict[str, Shard]) -> Checkpoint | None:
    """The checkpoint of these shards if its index is written as most are, and lists exactly what they hold."""
    index = opened.index
    assert index is not None
    checkpoint = replace(opened, shards=list(shards.values()), problems=[])
    held = {name: shard.header.names for name, shard in shards.items()}
    with in_background(lambda: index.spells_out(held)) as agrees:
        stored = Stored(checkpoint.shards, distinct=True)  # or else the answer is no
        _find_planes(checkpoint, stored)
        return _cross_check(checkpoint, stored, index_agrees=True) if agrees() else None


def _faultless_shards(checkpoint: Checkpoint, names: list[str]) -> dict[str, Shard]:
    """The shards by name; none when anything is wrong with one of them."""
    _prepare(checkpoint, names)

    def read(some: list[str]) -> list[Shard]:
        problems: list[Problem] = []
        shards = [_read_shard(checkpoint, name, problems) for name in some]
        return [] if problems else shards

    try:
        if checkpoint.hub or len(names) < _SHARED_SHARDS:
            found = read(names)
        else:
            with in_background(lambda: read(names[1::2])) as others:
                found = read(names[::2]) + (others() or [])
    except CheckpointError:
        return {}
    shards = {shard.name: shard for shard in found}
    return {name: shards[name] for name in names} if len(shards) == len(names) else {}


def _numbered_siblings(found: list[str]) -> list[str]:
    """The names of all shards of a numbered set (`model-00002-of-00005.safetensors`) of which some are here."""
    sets: dict[tuple[str, int, str], set[int]] = {}
    for name in found:
        if match := re.fullmatch(rf"(.*-)([0-9]+)-of-([0-9]+)\{SHARD_SUFFIX}", name):
            stem, number, total = match.groups()
            sets.setdefault((stem, len(number), total), set()).add(int(number))
    siblings: list[str] = []
    for (stem, width, total), numbers in sets.items():
        if len(siblings) + int(total) <= MAX_NUMBERED_SHARDS:
            first = 0 if 0 in numbers else 1
            siblings += [f"{stem}{i:0{width}}-of-{total}{SHARD_SUFFIX}" for i in range(first, first + int(total))]
    return siblings


def _read_shards(checkpoint: Checkpoint, names: list[str], read: Mapping[str, Shard] = MappingProxyType({})) -> None:
    """Read every shard that can be read and is not in `read`; what stops one is a problem of its own."""
    _prepare(checkpoint, names)
    for name in names:
        try:
            shard = read.get(name) or _read_shard(checkpoint, name, checkpoint.problems)
            checkpoint.shards.append(shard)
        except CheckpointError as error:
            checkpoint.lacking.append(name)
            checkpoint.problems.append(Problem(name, "", str(error).removeprefix(f"{name}: ")))
    if names and not checkpoint.shards:
        listed_by = checkpoint.index.name if checkpoint.index else MANIFEST
        raise no_shard_can_be_read(checkpoint.path, listed_by, names, checkpoint.problems[-len(names) :])


def _prepare(checkpoint: Checkpoint, names: list[str]) -> None:
    """Have the headers of shards on the Hub fetched together."""
    if checkpoint.hub:
        checkpoint.hub.prepare(names)


def _read_shard(checkpoint: Checkpoint, name: str, problems: list[Problem]) -> Shard:
    path = checkpoint.root / name
    if checkpoint.hub and (remote := checkpoint.hub.remote(name)):
        size = remote.file.size
        header = read_header(remote.open(), size)
        problems += [Problem(name, fault.tensor, fault.problem) for fault in header.faults]
        return Shard(name, path, size, 0, header, remote)
    with RandomReader(path, name) as reader:
        status = os.fstat(reader.fileno())
        header = read_header(reader, status.st_size)
    problems += [Problem(name, fault.tensor, fault.problem) for fault in header.faults]
    for dtype in sorted(set(header.dtypes) - DTYPE_BITS.keys()):
        first = header.names[header.dtypes.index(dtype)]
        text = f"has dtype {dtype!r}, which safetensors does not name: newer than csf-tool, or damaged"
        problems.append(Problem(name, first, text, Severity.WARNING))
    return Shard(name, path, status.st_size, status.st_mtime_ns, header)


def _finish(checkpoint: Checkpoint) -> Checkpoint:
    """Find the planes, and hold every list of names against every other."""
    stored = Stored(checkpoint.shards)
    if len(stored.row_of) != len(stored.names):
        checkpoint.problems += _stored_twice(checkpoint.shards)
    _find_planes(checkpoint, stored)
    return _cross_check(checkpoint, stored)


def _find_planes(checkpoint: Checkpoint, stored: Stored) -> None:
    receipts = checkpoint.container.scale_receipts if checkpoint.container else {}
    checkpoint.plane_table, problems = find_planes(stored, receipts)
    checkpoint.dense_table = find_dense_planes(stored)
    checkpoint.problems += problems


def _cross_check(checkpoint: Checkpoint, stored: Stored, *, index_agrees: bool = False) -> Checkpoint:
    """Hold every list of names against every other, the index only where it may disagree."""
    checkpoint.problems += checkpoint.hub.problems if checkpoint.hub else []
    if not checkpoint.formats:
        checkpoint.problems += stacked_scales(checkpoint.shards)
    if checkpoint.dense_table:
        checkpoint.doubtful = doubtful_scales(checkpoint.dense_table, checkpoint.shards)
        checkpoint.problems += warn_of(checkpoint.doubtful)
    if checkpoint.index and not index_agrees:
        _compare_index(checkpoint, stored)
    if checkpoint.container:
        _compare_container(checkpoint, checkpoint.container, stored)
    elif checkpoint.path.is_dir():  # the config beside one file speaks of other files as well
        _compare_recipes(checkpoint)
    return checkpoint


def _stored_twice(shards: list[Shard]) -> list[Problem]:
    problems = []
    home: dict[str, str] = {}
    for shard in shards:
        for name in shard.header.names:
            if name in home:
                text = f"stands in {home[name]} as well: which of them counts cannot be known; move one file away"
                problems.append(Problem(shard.name, name, text))
            home[name] = shard.name
    return problems


def _compare_index(checkpoint: Checkpoint, stored: Stored) -> None:
    """The index against the shards, in both directions."""
    index = checkpoint.index
    assert index is not None
    readable = {shard.name for shard in checkpoint.shards}
    if readable == index.shards and _lists_exactly(index, checkpoint.shards):
        return
    for name, shard in index.weight_map.items():
        row = stored.row_of.get(name)
        if row is None and shard in readable:
            checkpoint.problems.append(Problem(shard, name, f"{index.name} places it here, the shard does not hold it"))
        elif row is not None and stored.shards[row].name != shard:
            text = f"{index.name} places it in {shard}"
            checkpoint.problems.append(Problem(stored.shards[row].name, name, text))
    for shard in sorted(readable - index.shards):
        text = f"{index.name} does not list this shard"
        checkpoint.problems.append(Problem(shard, "", text, Severity.WARNING))
    for name, row in stored.row_of.items():
        if stored.shards[row].name in index.shards and name not in index.weight_map:
            text = f"{index.name} does not list this tensor"
            checkpoint.problems.append(Problem(stored.shards[row].name, name, text, Severity.WARNING))


def _lists_exactly(index: Index, shards: list[Shard]) -> bool:
    """Whether every tensor of every shard is in the index, each at its place, and nothing else."""
    placed = (list(map(index.weight_map.get, shard.header.names)).count(shard.name) for shard in shards)
    sizes = [len(shard.header) for shard in shards]
    return list(placed) == sizes and sum(sizes) == len(index.weight_map)


def _compare_container(checkpoint: Checkpoint, container: Container, stored: Stored) -> None:
    """Manifest, contract and receipts against the shards."""
    table = checkpoint.plane_table
    fixed_row = dict(zip(table.names, table.fixed, strict=True))
    for shard in checkpoint.shards:
        row = container.rows[shard.file]
        if row.target_file_bytes not in (None, shard.size):
            container.error(shard.name, f"is {shard.size} bytes, the manifest says {row.target_file_bytes}")
        if shard.header.metadata.get("codec", container.fmt.codec) != container.fmt.codec:
            container.error(shard.name, f"its metadata name codec {brief(shard.header.metadata['codec'])}")
    _compare_contract(checkpoint, container, stored)
    for file, receipt in container.receipts.items():
        for name in sorted(receipt.scales.keys() - fixed_row.keys()):
            container.error(f"{TENSORS}/{file}", "its receipt lists it, no pair of streams stands for it", name)
        for name in receipt.scales:
            if (place := container.source_names.get(name, file)) != file:
                container.error(f"{RECEIPTS}/{file}.json", f"lists it, the contract places it in {place}", name)
    if container.receipts:
        for name in sorted(fixed_row.keys() - container.scale_receipts.keys()):
            where = stored.shards[fixed_row[name]].name
            container.error(where, "no receipt lists it: its source bytes are unknown", name)
    kinds = [table.kinds[kind] for kind in table.kind_of]
    dense_bytes, fixed_bytes = sum(kind.dense_bytes for kind in kinds), sum(kind.fixed_bytes for kind in kinds)
    check_totals(container, len(table), dense_bytes, fixed_bytes + sum(table.exception_bytes))


def _compare_contract(checkpoint: Checkpoint, container: Container, stored: Stored) -> None:
    """The contract against the shards."""
    listed, table = container.source_names, checkpoint.plane_table
    fixed_row = dict(zip(table.names, table.fixed, strict=True))
    dense_names = stored.row_of.keys() - stream_names(table) | fixed_row.keys()
    for name in sorted(listed.keys() - dense_names):
        container.error(f"{TENSORS}/{listed[name]}", "the contract lists it, no shard holds it", name)
    for name in sorted(dense_names - listed.keys() if listed else ()):
        home = stored.shards[fixed_row[name] if name in fixed_row else stored.row_of[name]]
        container.error(home.name, "the contract does not list it", name)
    if all(_holds_no_others(shard, listed) for shard in checkpoint.shards):
        return
    for name, file in listed.items():
        if (row := stored.row_of.get(name)) is not None and stored.shards[row].file != file:
            container.error(stored.shards[row].name, f"the contract places it in {file}", name)


def _holds_no_others(shard: Shard, source_names: dict[str, str]) -> bool:
    """Whether every tensor of a shard that the contract lists is placed in this shard by it."""
    return set(map(source_names.get, shard.header.names)) <= {shard.file, None}


def _compare_recipes(checkpoint: Checkpoint) -> None:
    """Config recipes against the streams: a reader finds CSF planes by the recipes alone."""
    csf_modules = set(map(module_of, checkpoint.plane_table.names))
    configs = {}
    for name in CONFIG_FILES:
        if not (checkpoint.root / name).exists():
            continue
        try:
            configs[name] = load_json(checkpoint.root / name, name)
        except CheckpointError as error:
            checkpoint.problems.append(Problem(name, "", str(error).removeprefix(f"{name}: ")))
            continue
        _compare_recipe_file(checkpoint, name, recipes(configs[name]), csf_modules)
    checkpoint.problems += contradictions(configs, checkpoint.formats)


def _compare_recipe_file(checkpoint: Checkpoint, name: str, found: list[Recipe], csf_modules: set[str]) -> None:
    marked = {recipe.module for recipe in found if recipe.is_csf}
    unmarked = {recipe.module for recipe in found if not recipe.is_csf}
    used, homeless = recipes_in_use(csf_modules, marked | unmarked)
    missing_shards = any(not p.tensor for p in errors(checkpoint.problems))
    for module in sorted(marked - used) if not missing_shards else ():
        text = "is marked weight_scale_encoding: csf, but no shard holds CSF streams of it"
        checkpoint.problems.append(Problem(name, module, text))
    for module in sorted(unmarked & used):
        text = "has CSF streams, but its recipe is not marked weight_scale_encoding: csf"
        checkpoint.problems.append(Problem(name, module, text))
    for scale in checkpoint.dense_table.names:
        if (recipe := covering_recipe(module_of(scale), marked)) is not None:
            text = f"is stored dense, but {recipe} is marked weight_scale_encoding: csf"
            checkpoint.problems.append(Problem(name, scale, text))
    if homeless:
        text = f"no recipe covers {count(len(homeless), 'module')} with CSF streams: readers would not find them"
        checkpoint.problems.append(Problem(name, min(homeless), text, Severity.WARNING))


def _serving_root(path: Path) -> Path | None:
    """Where the weights of a serving directory lie, or None when the folder is none.

    Raises:
        UsageError: it is a serving directory whose weights are not here.
    """
    try:
        found = quantization_config(load_json(path / CONFIG_FILES[0], CONFIG_FILES[0]))
    except CheckpointError:
        return None  # none, or none that could be read
    if found.get("quant_method") not in [fmt.serving_method for fmt in FORMATS]:
        return None
    root = found.get(SERVING_KEY)
    # Not Path.resolve: it raises what it likes for links that lead in circles.
    served = Path(os.path.realpath(path / root)) if isinstance(root, str) and "\0" not in root else None
    if served is None or not is_folder(served) or served == path.resolve():
        raise UsageError(
            f"{path}: is a serving directory, not a checkpoint: its weights lie under {SERVING_KEY} {brief(root)}, "
            "which is not here; give the folder that was downloaded"
        )
    return served
