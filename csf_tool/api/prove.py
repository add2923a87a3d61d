"""`csf_tool.verify` and `csf_tool.identity`: the bytes of a checkpoint, and which checkpoint it is."""

import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Literal

from csf_tool.api.calling import OnProgress, Source, number_of_jobs, opened, path_or_none, progress_to, public
from csf_tool.arguments import as_names
from csf_tool.choices import CrossCheck, IdentityBy
from csf_tool.documents.identity import IdentityDocument, identity_document
from csf_tool.documents.verify import VerifyDocument, verify_document
from csf_tool.prove.identity import find_identity
from csf_tool.prove.request import VerifyRequest


@public
def verify(
    checkpoint: Source,
    *,
    against: Source | None = None,
    hub: str | None = None,
    tensors_only: bool = False,
    all_tensors: bool = False,
    device: str = "auto",
    cross_check: Literal["all", "sample", "none"] = "sample",
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
        all_shards: leave no shard out, though the index does not list it.
        on_progress: called with the bytes done and the bytes to do.

    Raises:
        UsageError: there is nothing of that name, no checkpoint, or the options do not fit together.
        CheckpointError: not a shard of it can be read, or its manifest or index cannot.
        EnvironmentFault: the system, the network or the device cannot do it.
    """
    request = VerifyRequest(
        hub=hub,
        tensors_only=tensors_only,
        all_tensors=all_tensors,
        device=device,
        cross_check=None if cross_check == "sample" else CrossCheck(cross_check),
        manifest=path_or_none("manifest", manifest),
        quick=quick,
        only=as_names("only", only),
        save_hashes=path_or_none("save_hashes", save_hashes),
        jobs=number_of_jobs(jobs),
        drop_cache=drop_cache,
    )
    request.require_sense("save_hashes", against=against is not None)
    with ExitStack() as stack:
        source = stack.enter_context(opened("checkpoint", checkpoint, all_shards=all_shards))
        reference = None
        if against is not None:
            reference = stack.enter_context(opened("against", against, all_shards=all_shards))
        return verify_document(request.run(source, reference, progress_to(on_progress)))


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
        all_shards: leave no shard out, though the index does not list it.
        on_progress: called with the bytes done and the bytes to do; only `hash` takes time.

    Raises:
        UsageError: the layout has no identity, or not this one without hashing; or as `stats`.
        CheckpointError: a file that the identity is made of is missing, or records contradict each other.
        EnvironmentFault: the system, or the network, cannot read it.
    """
    with opened("checkpoint", checkpoint, all_shards=all_shards) as source:
        found = find_identity(source, IdentityBy(by), progress_to(on_progress), compute_hashes=hash)
        return identity_document(found)
