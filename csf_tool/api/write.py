"""`csf_tool.expand`, `csf_tool.compress`, `csf_tool.convert` and `csf_tool.finish`: writing another checkpoint."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from csf_tool.api.calling import OnProgress, Source, number_of_jobs, opened, progress_to, public
from csf_tool.arguments import as_names, as_path
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.published import StatedOrigin
from csf_tool.choices import CompressTo, Target
from csf_tool.coders.decoder import make_decoder
from csf_tool.coders.encoder import make_encoder
from csf_tool.documents.written import (
    CompressDocument,
    ConvertDocument,
    ExpandDocument,
    compress_document,
    convert_document,
    expand_document,
    written_document,
)
from csf_tool.progress import Silent
from csf_tool.write.compress import CompressOptions
from csf_tool.write.compress import compress as run_compress
from csf_tool.write.consumed import as_compressed, as_converted, as_expanded
from csf_tool.write.convert import ConvertOptions
from csf_tool.write.convert import convert as run_convert
from csf_tool.write.expand import expand as run_expand
from csf_tool.write.finish import finish as run_finish
from csf_tool.write.finish import require_all_shards
from csf_tool.write.request import WriteRequest
from csf_tool.write.run import WriteOptions, Written
from csf_tool.write.selection import Rules
from csf_tool.write.targets import require_that_options_fit


@public
def expand(
    checkpoint: Source,
    destination: str | os.PathLike[str],
    *,
    device: str = "auto",
    jobs: int | None = None,
    shards: str | None = None,
    recheck: bool = False,
    drop_cache: bool | None = None,
    ignore_space: bool = False,
    adopt: bool = False,
    consume_source: bool = False,
    cluster: str | None = None,
    all_shards: bool = False,
    on_progress: OnProgress | None = None,
) -> ExpandDocument:
    """Write the ordinary dense checkpoint, and return what `csf-tool expand --json` says of it.

    The same call again goes on after an interruption, and does nothing once the result is complete.

    Args:
        checkpoint: a folder, a file, a repository on the Hub, or what `open_checkpoint` gave.
        destination: a new or empty folder, or one that such a call has left.
        device: where planes are decoded: "auto", "cpu", "cuda" or "cuda:N".
        jobs: shards in flight together; one a core, up to 4, when None.
        shards: "I/N": do the I-th of N parts of the shards by itself; `finish` does what is left after the last.
        recheck: read shards that an interrupted run finished, and compare them.
        drop_cache: keep the files out of the page cache; when None, large new ones, and all if they would fill memory.
        ignore_space: begin even where the disk reports too little room.
        adopt: compare files that others put into the destination, and keep what is right.
        consume_source: REMOVE each source shard once its replacement is written and proven. Nobody is asked.
        cluster: "tcp://HOST:PORT": run the shards on a Dask cluster.
        all_shards: leave no shard out, though the index does not list it.
        on_progress: called with the bytes done and the bytes to do.

    Raises:
        UsageError: there is nothing to expand, the destination cannot be right, or the options do not fit together.
        CheckpointError: the checkpoint is broken; nothing was written, or only whole and good shards.
        EnvironmentFault: not enough room, or the system, the network or the device cannot do it.
    """
    request = WriteRequest(
        number_of_jobs(jobs), shards, recheck, drop_cache, ignore_space, adopt, consume_source, cluster, all_shards
    )
    if consumed := _consumed(request, "checkpoint", checkpoint, destination, "expand"):
        return expand_document(as_expanded(consumed))
    with _begun(request, "checkpoint", checkpoint, destination) as w:
        progress = progress_to(on_progress)
        return expand_document(run_expand(w.source, w.destination, request.decoder(device), progress, w.options))


@public
def compress(
    dense: Source,
    destination: str | os.PathLike[str],
    *,
    to: Literal["hf", "container"] | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    keep_larger: bool = False,
    allow_padded: bool = False,
    family: str | None = None,
    source_model_id: str | None = None,
    source_revision: str | None = None,
    device: str = "auto",
    jobs: int | None = None,
    shards: str | None = None,
    recheck: bool = False,
    drop_cache: bool | None = None,
    ignore_space: bool = False,
    adopt: bool = False,
    consume_source: bool = False,
    cluster: str | None = None,
    all_shards: bool = False,
    on_progress: OnProgress | None = None,
) -> CompressDocument:
    """Write a CSF checkpoint of a dense FP4 one, and return what `csf-tool compress --json` says of it.

    The same call again goes on after an interruption, and does nothing once the result is complete.

    Args:
        dense: a folder, a file, a repository on the Hub, or what `open_checkpoint` gave.
        destination: a new or empty folder, or one that such a call has left.
        to: the layout to write; when None, the one whose readers take the format.
        include: scales to compress: globs on tensor names; the routed experts' when empty.
        exclude: scales to leave dense: globs on tensor names.
        keep_larger: compress planes that grow, too.
        allow_padded: compress scales that may be padded or in tile order, byte by byte.
        family: for a container, the model family to state.
        source_model_id: for a container, the source repository to state.
        source_revision: for a container, the source revision to state.
        device: where planes are encoded: "auto", "cpu", "cuda" or "cuda:N".
        jobs: shards in flight together; one a core, up to 4, when None.
        shards: "I/N": do the I-th of N parts of the shards by itself; `finish` does what is left after the last.
        recheck: read shards that an interrupted run finished, and compare them.
        drop_cache: keep the files out of the page cache; when None, large new ones, and all if they would fill memory.
        ignore_space: begin even where the disk reports too little room.
        adopt: compare files that others put into the destination, and keep what is right.
        consume_source: REMOVE each source shard once its replacement is written and proven. Nobody is asked.
        cluster: "tcp://HOST:PORT": run the shards on a Dask cluster.
        all_shards: leave no shard out, though the index does not list it.
        on_progress: called with the bytes done and the bytes to do.

    Raises:
        UsageError: nothing can be compressed, the destination cannot be right, or the options do not fit together.
        CheckpointError: the checkpoint is broken, or a written shard did not give back its original.
        EnvironmentFault: not enough room, or the system, the network or the device cannot do it.
    """
    request = WriteRequest(
        number_of_jobs(jobs), shards, recheck, drop_cache, ignore_space, adopt, consume_source, cluster, all_shards
    )
    layout = CompressTo(to) if to else None
    rules = Rules(as_names("include", include), as_names("exclude", exclude), keep_larger, allow_padded)
    origin = StatedOrigin(family, source_model_id, source_revision)
    require_that_options_fit(to, origin)
    what = CompressOptions(layout, rules, origin)
    if consumed := _consumed(request, "dense", dense, destination, "compress", what.wanted(layout)):
        return compress_document(as_compressed(consumed))
    with _begun(request, "dense", dense, destination) as w:
        encoder, decoder = request.encoder(device), request.decoder(device)
        done = run_compress(w.source, w.destination, what, encoder, decoder, progress_to(on_progress), w.options)
        return compress_document(done)


@public
def convert(
    source: Source,
    destination: str | os.PathLike[str],
    *,
    to: Literal["hf", "container", "serving"],
    link: bool = False,
    checkpoint_root: str | None = None,
    family: str | None = None,
    source_model_id: str | None = None,
    source_revision: str | None = None,
    jobs: int | None = None,
    shards: str | None = None,
    recheck: bool = False,
    drop_cache: bool | None = None,
    ignore_space: bool = False,
    adopt: bool = False,
    consume_source: bool = False,
    cluster: str | None = None,
    all_shards: bool = False,
    on_progress: OnProgress | None = None,
) -> ConvertDocument:
    """Write a CSF checkpoint in another layout, and return what `csf-tool convert --json` says of it.

    The same call again goes on after an interruption, and does nothing once the result is complete.

    Args:
        source: a folder, a repository on the Hub, or what `open_checkpoint` gave.
        destination: a new or empty folder, or one that such a call has left.
        to: the layout to write.
        link: hard-link unchanged shards instead of copying them.
        checkpoint_root: for "serving", the container's path as the server sees it.
        family: for a container, the model family to state.
        source_model_id: for a container, the source repository to state.
        source_revision: for a container, the source revision to state.
        jobs: shards in flight together; one a core, up to 4, when None.
        shards: "I/N": do the I-th of N parts of the shards by itself; `finish` does what is left after the last.
        recheck: read shards that an interrupted run finished, and compare them.
        drop_cache: keep the files out of the page cache; when None, large new ones, and all if they would fill memory.
        ignore_space: begin even where the disk reports too little room.
        adopt: compare files that others put into the destination, and keep what is right.
        consume_source: REMOVE each source shard once its replacement is written and proven. Nobody is asked.
        cluster: "tcp://HOST:PORT": run the shards on a Dask cluster.
        all_shards: leave no shard out, though the index does not list it.
        on_progress: called with the bytes done and the bytes to do.

    Raises:
        UsageError: the layouts do not go together, the destination cannot be right, or the options do not.
        CheckpointError: the checkpoint is broken.
        EnvironmentFault: not enough room, or the system or the network cannot do it.
    """
    request = WriteRequest(
        number_of_jobs(jobs), shards, recheck, drop_cache, ignore_space, adopt, consume_source, cluster, all_shards
    )
    origin = StatedOrigin(family, source_model_id, source_revision)
    require_that_options_fit(to, origin, checkpoint_root)
    what = ConvertOptions(checkpoint_root, origin)
    if consumed := _consumed(request, "source", source, destination, "convert", what.wanted(Target(to))):
        return convert_document(as_converted(consumed, Target(to)))
    with _begun(request, "source", source, destination, link=link) as w:
        progress = progress_to(on_progress)
        return convert_document(run_convert(w.source, w.destination, Target(to), what, progress, w.options))


@public
def finish(
    checkpoint: Source, destination: str | os.PathLike[str], *, device: str = "auto", all_shards: bool = False
) -> ExpandDocument | CompressDocument | ConvertDocument:
    """Write index and configs once all parts of a run with `shards` are there; the last part does it by itself.

    Args:
        checkpoint: the source of that run.
        destination: its destination.
        device: where planes are decoded or encoded: "auto", "cpu", "cuda" or "cuda:N".
        all_shards: as for that run.

    Raises:
        UsageError: no unfinished run is there, or one of another source.
        CheckpointError: the checkpoint is broken, or what the run has noted is.
        EnvironmentFault: shards are missing still, or the system cannot do it.
    """
    folder = as_path("destination", destination)
    with opened("checkpoint", checkpoint, all_shards=all_shards) as source:
        done = run_finish(source, folder, make_encoder(device), make_decoder(device), Silent())
        require_all_shards(done)
        return written_document(done)


def _consumed(
    request: WriteRequest,
    name: str,
    source: Source,
    destination: str | os.PathLike[str],
    operation: str,
    options: Mapping[str, Any] | None = None,
) -> Written | None:
    """See `WriteRequest.consumed`; an opened source has its shards still."""
    if isinstance(source, Checkpoint):
        return None
    return request.consumed(as_path(name, source), as_path("destination", destination), operation, options)


@dataclass(frozen=True)
class _Begun:
    """A run that is about to write."""

    source: Checkpoint
    destination: Path
    options: WriteOptions


@contextmanager
def _begun(
    request: WriteRequest, name: str, source: Source, destination: str | os.PathLike[str], *, link: bool = False
) -> Iterator[_Begun]:
    """Open the source, and make the options."""
    folder = request.place(as_path("destination", destination))
    request.require_sense()
    if request.cluster and not isinstance(source, Checkpoint) and Path(source).exists():
        source = request.place(Path(source))
    with (
        opened(name, source, all_shards=request.all_shards) as checkpoint,
        request.options(checkpoint, link=link) as options,
    ):
        yield _Begun(checkpoint, folder, options)
