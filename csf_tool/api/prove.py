"""`csf_tool.verify` and `csf_tool.identity`: the bytes of a checkpoint, and which checkpoint it is."""

import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Literal

from csf_tool.api.calling import OnProgress, Source, number_of_jobs, opened, path_or_none, progress_to, public
from csf_tool.arguments import as_names
from csf_tool.checkpoint.hash_list import read_hash_list
from csf_tool.checkpoint.page_cache import should_drop_cache
from csf_tool.checkpoint.published import place_of
from csf_tool.choices import CrossCheck, IdentityBy
from csf_tool.coders.decoder import NumpyDecoder, make_decoder
from csf_tool.disk.new_file import require_writable
from csf_tool.documents.identity import IdentityDocument, identity_document
from csf_tool.documents.verify import VerifyDocument, verify_document
from csf_tool.hub.name import list_on_hub
from csf_tool.prove.identity import find_identity
from csf_tool.prove.options import VerifyOptions, require_that_options_fit
from csf_tool.prove.verify import verify as run


@public
def verify(
    checkpoint: Source,
    *,
    against: Source | None = None,
    hub: str | None = None,
    tensors_only: bool = False,
    all_tensors: bool = False,
    device: str = "auto",
    cross_check: Literal["all", "sample", "none"] = "all",
    manifest: str | os.PathLike[str] | None = None,
    quick: bool = False,
    only: str | Iterable[str] = (),
    save_hashes: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    drop_cache: bool | None = None,
    all_shards: bool = False,
    on_progress: OnProgress | None = None,
) -> VerifyDocument:
    """The proof of the decoded bytes, as `csf-tool verify --json` gives it.

    A fault is no exception: `ok` says whether a check failed, and `checks` what was checked and found.

    Args:
        checkpoint: a folder, a file, a repository on the Hub, or what `open_checkpoint` gave.
        against: a dense checkpoint that every tensor, config and tokenizer must equal.
        hub: `org/name` or `org/name@revision`: compare hashes with those that the Hub lists.
        tensors_only: with `against`, do not compare config, tokenizer and metadata.
        all_tensors: on the Hub, fetch every tensor, not just the scales.
        device: where planes are decoded: "auto", "cpu", "cuda" or "cuda:N".
        cross_check: planes decoded on a GPU that are compared with the CPU's decode.
        manifest: a file that lists the SHA-256 of files, as sha256sum or `save_hashes` write it.
        quick: headers, and sizes by `manifest`, alone.
        only: read these shards alone: names or globs.
        save_hashes: if no check fails, a new file to list every file's SHA-256 in.
        jobs: shards in flight together; one a core, up to 4, when None.
        drop_cache: keep the files out of the page cache; when None, if they are larger than half of memory.
        all_shards: leave no shard aside, though the index does not list it.
        on_progress: called with the bytes done and the bytes to do.

    Raises:
        UsageError: there is nothing of that name, no checkpoint, or the options do not fit together.
        CheckpointError: not a shard of it can be read, or its manifest or index cannot.
        EnvironmentFault: the system, the network or the device cannot do it.
    """
    names, hash_file = as_names("only", only), path_or_none("save_hashes", save_hashes)
    require_that_options_fit(
        quick=quick, against=against is not None, tensors_only=tensors_only, only=names, save_hashes=hash_file
    )
    if hash_file:
        require_writable(hash_file, "save_hashes")
    listed_in, workers = path_or_none("manifest", manifest), number_of_jobs(jobs)
    with ExitStack() as stack:
        source = stack.enter_context(opened("checkpoint", checkpoint, all_shards=all_shards))
        reference = None
        if against is not None:
            reference = stack.enter_context(opened("against", against, all_shards=all_shards))
        options = VerifyOptions(
            jobs=workers,
            drop_cache=should_drop_cache(source, drop_cache),
            all_tensors=all_tensors,
            tensors_only=tensors_only,
            published=list_on_hub(hub).published_hashes() if hub is not None else [],
            hub=hub or "",
            only=names,
            quick=quick,
            listed=read_hash_list(listed_in, place_of(source)) if listed_in else None,
            save_hashes=hash_file.name if hash_file else "",
        )
        decoder = NumpyDecoder() if quick else make_decoder(device, CrossCheck(cross_check))
        found = run(source, reference, decoder, progress_to(on_progress), options)
        if hash_file and found.hashes:
            hash_file.write_text(found.hashes.render(), "utf-8")
        return verify_document(found)


@public
def identity(
    checkpoint: Source,
    *,
    by: Literal["digests", "sizes"] = "digests",
    hash: bool = False,
    all_shards: bool = False,
    on_progress: OnProgress | None = None,
) -> IdentityDocument:
    """The content identity that launchers pin, and its basis, as `csf-tool identity --json` gives it.

    Args:
        checkpoint: a folder, a file, a repository on the Hub, or what `open_checkpoint` gave.
        by: what stands for a shard: its SHA-256, or (far weaker) its size.
        hash: hash every shard instead of trusting records.
        all_shards: leave no shard aside, though the index does not list it.
        on_progress: called with the bytes done and the bytes to do; only `hash` takes time.

    Raises:
        UsageError: the layout has no identity, or not this one without hashing; or as `stats`.
        CheckpointError: a file that the identity is made of is missing, or records contradict each other.
        EnvironmentFault: the system, or the network, cannot read it.
    """
    with opened("checkpoint", checkpoint, all_shards=all_shards) as source:
        found = find_identity(source, IdentityBy(by), progress_to(on_progress), compute_hashes=hash)
        return identity_document(found)
