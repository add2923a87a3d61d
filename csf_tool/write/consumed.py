"""Sources whose shards a run has removed, all or all but the last: that run is finished, and its result is reported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import Target
from csf_tool.codes import Code
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.own_files import OWN_FOLDER
from csf_tool.disk.paths import holds_files, names_in, safe_relative
from csf_tool.disk.reader import exists
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.text import escape
from csf_tool.write.compress import Compressed
from csf_tool.write.consume import status_of
from csf_tool.write.convert import Converted
from csf_tool.write.dry_run import DryRun
from csf_tool.write.expand import Expanded
from csf_tool.write.fingerprint import source_root
from csf_tool.write.journal import Journal, consumed_shards, is_complete
from csf_tool.write.run import Run, Written
from csf_tool.write.run_notes import PLACE, consuming_run, finished_run, is_as_noted
from csf_tool.write.sound import sound_result
from csf_tool.write.targets import TARGETS


def finished_removal(
    source: Path, destination: Path, operation: str, options: Mapping[str, Any], *, dry_run: bool
) -> Written | None:
    """Remove the last source shards of a run that was killed while it did so; None where no such run is there.

    Raises:
        UsageError: the destination is of another source or another run, it has changed since its run was finished, or
            a shard in `source` is not the one that the run has read.
    """
    names = _last_to_remove(source, destination, operation, options)
    if names is None:
        return None
    done = Written(source=str(source), destination=str(destination), was_complete=True)
    if dry_run:
        done.dry_run = DryRun(removes=names)
        return done
    for name in names:
        (source / name).unlink(missing_ok=True)
    if is_complete(destination):
        Journal(destination).close()
    return done


def consumed_result(source: Path, destination: Path) -> Expanded | Compressed | Converted | None:
    """The result, which is complete, of the run that removed the shards of `source`; None where there is none.

    Raises:
        As `finished_removal`.
    """
    if is_complete(destination) or not (noted := _note_of(source, destination)):
        return None
    run = Run.parse(noted)
    _last_to_remove(source, destination, run.operation, run.options)
    done = Written(source=str(source), destination=str(destination), was_complete=True)
    if run.operation == "convert":
        return as_converted(done, Target(run.options["to"]))
    return as_compressed(done) if run.operation == "compress" else as_expanded(done)


def _last_to_remove(source: Path, destination: Path, operation: str, options: Mapping[str, Any]) -> list[str] | None:
    """The source shards that such a run was killed over removing at its end; None where no such run is there.

    There are none where a run that removed the shards of `source` has finished.

    Raises:
        As `finished_removal`.
    """
    if not is_complete(destination):
        noted = _note_of(source, destination)
        if not noted:
            return None
        _require_such(Run.parse(noted), source, destination, operation, options)
        if not is_as_noted(destination, noted):
            problem = f"was made from {source}, whose shards are gone, and is no longer as that run left it"
            problem += ": a file was added or removed, or has another size"
            if (place := noted.get(PLACE)) not in (None, escape(str(destination.resolve()))):
                problem = f"is not what was made from {source}: that is {place}, and its shards are gone"
            raise UsageError(problem, Code.LOST_OUTPUT, str(destination))
        return []
    _require_such(Journal(destination).run(), source, destination, operation, options)
    if sound_result(destination, operation, excused=Code.RUN_UNFINISHED) is None:
        problem = "is no longer complete, although it was: nothing was removed; csf-tool verify tells what is wrong"
        raise UsageError(problem, Code.LOST_OUTPUT, str(destination))
    consumed = consumed_shards(destination)
    for name, recorded in consumed.items():
        status = status_of(source / safe_relative(name, OWN_FOLDER))
        if status and (status.st_size, status.st_mtime_ns) != recorded:
            problem = f"is not the shard that {destination} was made from: nothing was removed"
            raise UsageError(problem, file=str(source / name))
    return [name for name in consumed if status_of(source / name)]


def _note_of(source: Path, destination: Path) -> dict[str, Any]:
    """The note of the run that removed the shards of `source`, in its result or in the source; empty where none is."""
    if _has_shards(source) or not names_in(destination):
        return {}
    noted = finished_run(destination) or consuming_run(source)
    return noted if noted.get("root") == source_root(source) else {}


def _has_shards(source: Path) -> bool:
    """Whether shards of a checkpoint are left in a folder: those that it lists, or any where it has no list."""
    try:
        listed = next((found[0] for layout in LAYOUTS if (found := layout.needed_of(source))), [])
    except CheckpointError:
        listed = []
    return any(exists(source / name) for name in listed) if listed else holds_files(source, SHARD_SUFFIX)


def _require_such(run: Run | None, source: Path, destination: Path, operation: str, options: Mapping[str, Any]) -> None:
    """Check that a run had this source, did the same, and had the same options.

    Raises:
        UsageError: it had not.
    """
    if run is None or run.root != source_root(source):
        of = run.label if run else "something else"
        raise UsageError(f"is the result of {of}, not of {source}: nothing was removed", file=str(destination))
    if not run.is_such(operation, options):
        why = ", with other options" if run.operation == operation else ""
        problem = f"is the result of `csf-tool {run.operation} {run.label}`{why}: nothing was removed"
        raise UsageError(problem, file=str(destination))


def as_expanded(done: Written) -> Expanded:
    """The result of `expand`."""
    return Expanded(**vars(done), device="", planes=0)


def as_compressed(done: Written) -> Compressed:
    """The result of `compress`, with the layout that is there."""
    target = TARGETS[open_checkpoint(Path(done.destination)).layout.name]
    return Compressed(**vars(done), target=target, device="", by_format=[], left=[])


def as_converted(done: Written, to: Target) -> Converted:
    """The result of `convert`."""
    return Converted(**vars(done), target=to)
